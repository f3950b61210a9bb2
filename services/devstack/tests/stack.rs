//! Whole stacks: two at once, and none after their owner is gone.

mod probing;

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use devstack::{Endpoints, ProcessId, Stack, StackError, StackOptions, detached};
use probing::{redis, registry_status, with_children};

const SOON: Duration = Duration::from_secs(10);
const DEVSTACK: &str = env!("CARGO_BIN_EXE_devstack");

fn quick() -> StackOptions {
    StackOptions { postgres_fsync: false, ..StackOptions::default() }
}

/// Asks Redis, Postgres and the registry something of this stack's own; Kafka has just answered with its own id.
fn use_it(stack: &Stack, name: &str) {
    redis(&stack.endpoints().redis, &format!("SET name {name}"));
    devstack::postgres::query(&stack.endpoints().postgres, &format!("create table {name} (x int)")).unwrap();
    assert_eq!(registry_status(&stack.endpoints().registry), 200);
}

#[test]
fn two_stacks_run_side_by_side_and_leave_nothing() {
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| Stack::start(quick()).unwrap());
        let second = scope.spawn(|| Stack::start(quick()).unwrap());
        (first.join().unwrap(), second.join().unwrap())
    });
    use_it(&first, "one");
    use_it(&second, "two");
    assert_eq!(redis(&first.endpoints().redis, "GET name"), "one");
    assert_eq!(redis(&second.endpoints().redis, "GET name"), "two");

    let of = |stack: &Stack| with_children(stack.servers().iter().filter_map(|server| server.process()));
    let processes = [of(&first), of(&second)].concat();
    let folders = [first.folder().to_path_buf(), second.folder().to_path_buf()];
    assert!(processes.len() > 8, "four servers each, and Postgres' children: {processes:?}");
    first.stop().unwrap();
    drop(second);
    assert!(processes.iter().all(|process| !process.is_alive()));
    assert!(folders.iter().all(|folder| !folder.exists()));
}

#[test]
fn a_killed_parent_leaves_no_child() {
    let mut parent = Command::new(DEVSTACK)
        .args(["exec", "--", "sh", "-c", "echo $$ && exec sleep 600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let command = ProcessId::of(line.trim().parse().unwrap()).unwrap();
    let processes = with_children(ProcessId::of(parent.id()).unwrap().children());
    assert!(processes.contains(&command) && processes.len() > 5, "{processes:?}");

    parent.kill().unwrap();
    parent.wait().unwrap();
    for process in processes {
        assert!(process.wait_gone(SOON), "{process:?} outlived its parent");
    }
}

#[test]
fn a_signal_ends_the_command_and_the_servers() {
    let logs = tempfile::tempdir().unwrap();
    let mut parent = Command::new(DEVSTACK)
        .args(["exec", "--", "sh", "-c", "echo $$ && sleep 600"])
        .env("CARGO_TARGET_DIR", logs.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let own = ProcessId::of(parent.id()).unwrap();
    let processes = with_children(own.children());
    own.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(parent.wait().unwrap().code(), Some(128 + 15));
    for process in processes {
        assert!(process.wait_gone(SOON), "{process:?} is still there");
    }
}

#[test]
fn exec_gives_the_commands_code_and_keeps_the_logs_of_a_failure() {
    let logs = tempfile::tempdir().unwrap();
    let script = r#"test -n "$DOORBUSTER_KAFKA$DOORBUSTER_REDIS$DOORBUSTER_POSTGRES$DOORBUSTER_REGISTRY" && exit 7"#;
    let output =
        Command::new(DEVSTACK).args(["exec", "--", "sh", "-c", script]).env("CARGO_TARGET_DIR", logs.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the end of kafka's log"), "{said}");
    let kept: Vec<_> = fs::read_dir(logs.path().join("test-logs")).unwrap().flatten().collect();
    assert_eq!(kept.len(), 1);
    for name in ["kafka", "redis", "postgres", "registry"] {
        assert!(kept[0].path().join(format!("{name}.log")).is_file(), "{name}");
    }
}

#[test]
fn a_detached_stack_stays_until_it_is_taken_down_and_keeps_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let up = |options| detached::up(DEVSTACK.as_ref(), dir, options);
    let options = StackOptions { redis_aof: true, registry_data: true, ..StackOptions::default() };

    let endpoints: Endpoints = up(options.clone()).unwrap();
    redis(&endpoints.redis, "SET name one");
    devstack::postgres::query(&endpoints.postgres, "create table kept (x int)").unwrap();
    let status = detached::status(dir).unwrap();
    assert_eq!(status.len(), 4);
    assert!(status.iter().all(|server| server.state == detached::ServerState::Answering), "{status:?}");
    assert_eq!(up(options.clone()).unwrap(), endpoints, "a running stack is left as it is");

    assert!(detached::down(dir).unwrap());
    let ended = detached::status(dir).unwrap();
    assert!(ended.iter().all(|server| server.state == detached::ServerState::Ended), "{ended:?}");
    assert!(!detached::down(dir).unwrap(), "there is nothing left to stop");

    assert_eq!(up(options).unwrap(), endpoints, "the same ports again");
    assert_eq!(redis(&endpoints.redis, "GET name"), "one");
    assert_eq!(devstack::postgres::query(&endpoints.postgres, "select count(*) from kept").unwrap(), "0");
    assert_eq!(registry_status(&endpoints.registry), 200);
    assert!(detached::down(dir).unwrap());
}

#[test]
fn a_stack_that_cannot_start_says_why_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let options = StackOptions { redis_args: vec!["--nonsense".into(), "1".into()], ..quick() };
    let error = detached::up(DEVSTACK.as_ref(), folder.path(), options).unwrap_err();
    assert!(matches!(error, StackError::Keeper(_)), "{error}");
    assert!(error.to_string().contains("redis is not ready") && error.to_string().contains("nonsense"), "{error}");
    assert!(detached::status(folder.path()).unwrap().is_empty());
    assert!(detached::endpoints(folder.path()).is_none());
}
