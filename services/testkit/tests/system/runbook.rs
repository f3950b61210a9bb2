//! The runbook: every command line in it runs as written, and ends as it says.

use std::{fs, path::Path, process::Command, time::Duration};

use domain::{CancelledBy, EventBody, RequestBody, VoucherId};
use infra::redis::Store;
use testkit::{World, binary, block_on, buy, order_request, voucher_request, wait_until};

use crate::{Shop, dead_letters::lost_order};

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs on servers that are lost on the way, in a test of its own.
const ELSEWHERE: &str = "Backup and restore";

/// A line of code in the runbook that begins with `doorbuster`.
pub(crate) struct Line {
    section: String,
    pub(crate) heading: String,
    pub(crate) text: String,
}

pub(crate) fn lines() -> Vec<Line> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/RUNBOOK.md")).unwrap();
    let (mut section, mut heading, mut is_code, mut found) = ("", "", false, Vec::new());
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code && line.starts_with("doorbuster ") {
            found.push(Line { section: section.to_owned(), heading: heading.to_owned(), text: line.to_owned() });
        } else if let Some(title) = line.strip_prefix("## ").filter(|_| !is_code) {
            (section, heading) = (title, "");
        } else if let Some(title) = line.strip_prefix("### ").filter(|_| !is_code) {
            heading = title;
        }
    }
    found
}

/// What a shell in this folder makes of the line, `doorbuster` being that of this build.
fn command(world: &World, folder: &Path, line: &str) -> Command {
    let arguments = line.strip_prefix("doorbuster ").expect("a command line of ours");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" {arguments}")]).arg(binary()).envs(world.env_vars()).current_dir(folder);
    command
}

/// Its exit code and what it printed.
pub(crate) fn execute(world: &World, folder: &Path, line: &str) -> (i32, String) {
    let output = command(world, folder, line).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code().unwrap_or(-1), text)
}

/// Starts what goes on until it is told to stop, and stops it behind its first line.
fn watch(world: &World, folder: &Path, line: &str) {
    let (out, err) = (folder.join("out"), folder.join("err"));
    let mut command = command(world, folder, line);
    command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
    let mut child = command.spawn().unwrap();
    let mut ended = None;
    wait_until(PATIENCE, &format!("a line of: {line}"), || {
        ended = child.try_wait().unwrap();
        ended.is_some() || fs::read_to_string(&out).unwrap().contains('\n')
    });
    let _ = child.kill();
    child.wait().unwrap();
    assert!(ended.is_none(), "{line}: it ended: {ended:?}: {}", fs::read_to_string(&err).unwrap());
}

/// The exit code that the line's comment names.
fn expected(line: &str) -> i32 {
    let named =
        line.split_once("# exits with ").map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    named.map_or(0, |digits| digits.parse().expect("a number behind `exits with`"))
}

fn freeze(world: &World, voucher: &VoucherId) {
    block_on(async {
        let store = Store::connect(&world.connections().redis).await.unwrap();
        store.freeze(voucher, "runbook").await.unwrap();
    });
}

#[test]
fn every_command_line_runs_as_written() {
    let shop = Shop::new();
    let (world, voucher, folder) = (&shop.world, shop.open(2), tempfile::tempdir().unwrap());
    for user in ["first", "second"] {
        assert!(buy(&shop.url(), &voucher, user).is_accepted(), "{user}");
    }
    // Past the gate, which would refuse him.
    let late = world.order_id(&voucher, "late", None);
    let rejected = world.append_request(1, &order_request(&voucher, late, "late", 1));
    assert!(matches!(world.event_of(1, rejected).body, EventBody::OrderRejected { .. }));
    let body = RequestBody::CancellationRequested { order_id: world.order_id(&voucher, "first", None), by: CancelledBy::Buyer };
    let cancelled = world.append_request(1, &voucher_request(&voucher, body));
    assert!(matches!(world.event_of(1, cancelled).body, EventBody::OrderCancelled { .. }));
    let letter = lost_order(world, &voucher, "lost");

    // Longer ones before those that are a part of them.
    let placeholders = [
        ("PARTITION:OFFSET", letter),
        ("NEW_PARTITION", world.partitions().to_string()),
        ("PARTITIONS", (world.partitions() + 1).to_string()),
        ("PARTITION", "1".to_owned()),
        ("ADDRESS:PORT", "127.0.0.1:0".to_owned()),
        ("VOUCHER", voucher.to_string()),
        ("ORDER", late.to_string()),
    ];
    let lines: Vec<_> = lines().into_iter().filter(|line| line.section != ELSEWHERE).collect();
    assert!(lines.len() > 20, "only {} lines were found", lines.len());
    for Line { section, heading, text } in &lines {
        let line = placeholders.iter().fold(text.clone(), |line, (name, value)| line.replace(name, value));
        if line.contains(" voucher thaw ") {
            freeze(world, &voucher);
        } else {
            world.wait_settled(&[&voucher]);
        }
        if [" --watch", " --follow"].iter().any(|forever| line.contains(forever)) {
            watch(world, folder.path(), &line);
            continue;
        }
        let (code, said) = execute(world, folder.path(), &line);
        println!("{line}: {code}\n{said}");
        assert_eq!(code, expected(&line), "docs/RUNBOOK.md, {section}, {heading}: {text}: {said}");
    }
    world.wait_settled(&[&voucher]);
    let audit = world.assert_audit();
    let sold = audit.vouchers.iter().find(|row| row.voucher == voucher).map(|row| row.sold);
    assert_eq!((sold, audit.dead_letters), (Some(2), 1), "the lost order was redriven");
}
