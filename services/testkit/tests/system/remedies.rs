//! What commands say where there is nothing to do or to show, and where what they need is not there: the thing by its name, and the remedy.

use std::{net::TcpListener, process::Command};

use devstack::redis;
use testkit::{World, binary, doorbuster};

use crate::rebuild::execute;

/// Exit code and what a command said; none may take these words.
fn said(world: &World, line: &str) -> (i32, String) {
    doorbuster(world, &line.split(' ').collect::<Vec<_>>())
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    let redis = redis::start(redis::RedisOptions::default()).unwrap();
    let world = World::builder().redis(redis.endpoint()).build();
    let topics = &world.connections().topics;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let nowhere = "postgresql://nobody@127.0.0.1:1/nowhere";
    for (line, code, words) in [
        // Nothing there, nothing to do.
        ("voucher list", 0, "no vouchers"),
        ("rebuild redis --all", 0, "nothing to replay"),
        ("rebuild redis --all --apply", 0, "nothing to replay"),
        ("rebuild redis nothing --apply", 1, "nor does Postgres"),
        ("catch-up orders --apply", 0, "Postgres has everything"),
        ("migrate --apply", 0, "at this version already"),
        ("rebuild orders", 0, "the live tables were not changed: add --swap"),
        ("dlq list --cause x", 0, "no dead letters"),
        ("dlq stats --partition 99", 0, "no dead letters"),
        ("dlq redrive --apply", 0, "no dead letters"),
        ("dlq list 0:17", 2, "no dead letter 0:17 fits"),
        ("dlq stats 0:17 --json", 2, "no dead letter 0:17 fits"),
        ("dlq show 3:17", 2, "no dead letter 3:17 fits"),
        (
            "dlq redrive --as-schema 99",
            2,
            "--as-schema: the registry has no version 99 of the schema of requests; it has version 1 (schema id ",
        ),
        // Places that the log does not have.
        ("tail events --partition 0 --offset 0", 0, "partition 0: read from offset 0 to 0"),
        ("tail events --partition 0 --offset 1", 2, "holds offsets 0..0, but 1 is needed"),
        ("tail requests --partition 0 --offset 1 --follow", 2, "holds offsets 0..0, but 1 is needed"),
        ("voucher ledger nothing --partition 0 --from 1", 2, "holds offsets 0..0, but 1 is needed"),
        ("tail events --partition 99", 2, &format!("{}: has 2 partitions, and none of number 99", topics.events)),
        ("tail requests --partition 99", 2, &format!("{}: has 2 partitions, and none of number 99", topics.requests)),
        ("state nothing --at now --partition 99", 2, &format!("{}: has 2 partitions", topics.events)),
        // Addresses.
        (&format!("rebuild orders --into {nowhere}"), 2, "no connection to Postgres (--into): "),
        ("rebuild orders --into nowhere", 2, "--into is no address of Postgres"),
        (&format!("audit --watch --listen {taken}"), 2, &format!("cannot listen on --listen {taken}: Address already in use")),
    ] {
        let (found, text) = said(&world, line);
        assert!(found == code && text.contains(words) && !text.contains("WHO AND WHY"), "{line}: {found}: {text}");
        assert!(!line.contains("--into") || !text.contains("DOORBUSTER_POSTGRES"), "{line}: {text}");
    }
    drop(listener);
    let output = Command::new(binary()).arg("lag").envs(world.env_vars()).env("DOORBUSTER_POSTGRES", nowhere).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no connection to Postgres (DOORBUSTER_POSTGRES)") && text.contains("refused"), "{text}");

    // A database that nobody has migrated.
    execute(&world, "DROP TABLE orders, vouchers, lane_positions, refinery_schema_history");
    let file = std::env::temp_dir().join(format!("{}.none", world.connections().prefix));
    let export = format!("snapshot export {}", file.display());
    let order = world.order_id(&world.voucher_id(), "ann", None);
    for line in [
        "audit",
        "audit --deep",
        "catch-up orders",
        "lag",
        "rebuild orders",
        "rebuild redis --all",
        "state nothing --at now",
        "voucher ledger nothing",
        "voucher list",
        "voucher show nothing",
        "voucher pause nothing",
        &export,
        &format!("explain {order}"),
    ] {
        let (code, text) = said(&world, line);
        assert!(code == 2 && text.contains("doorbuster migrate --apply"), "{line}: {code}: {text}");
    }
    assert!(!file.exists());
}
