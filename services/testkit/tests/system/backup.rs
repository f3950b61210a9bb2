//! Backups: restored, a sale goes on where the log ends; cut off, changed or in the wrong place, they are refused; killed, commands leave
//! nothing and are repeated.

use std::{fs, path::Path, time::Duration};

use domain::{CancelledBy, RequestBody};
use testkit::{World, buy, buyers, doorbuster, plan, sale, voucher_request, wait_until, with_database};

use crate::{
    Shop,
    audit_finds::{KEEP, RESTORE, on_database},
    names,
    rebuild::{WHOLE, Written, execute, start_patiently, waiting},
    redis_lost::flush_all,
    runbook,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The name of a snapshot.
const FILE: &str = "orders-1.snapshot";

/// Runs what the runbook says under a heading, but for what starts services; every command must succeed.
fn follow_runbook(world: &World, heading: &str, folder: &Path) {
    let lines = runbook::lines().into_iter().filter(|line| line.heading == heading && !line.text.starts_with("doorbuster run "));
    let lines: Vec<_> = lines.collect();
    assert!(!lines.is_empty(), "{heading}");
    for line in lines {
        let (code, text) = runbook::execute(world, folder, &line.text);
        assert_eq!(code, 0, "{heading}: {}: {text}", line.text);
    }
}

/// All rows, as text in a fixed order.
fn rows(world: &World) -> String {
    let sql = "SELECT (SELECT coalesce(string_agg(o::text, '|' ORDER BY order_id), '') FROM orders o) || '/' || \
         (SELECT coalesce(string_agg(v::text, '|' ORDER BY voucher_id), '') FROM vouchers v) || '/' || \
         (SELECT coalesce(string_agg(partition || ':' || next_offset, '|' ORDER BY partition), '') FROM lane_positions)";
    on_database(world, async |client| client.query_one(sql, &[]).await).get(0)
}

/// Drops the world's database and makes a new, empty one of that name.
fn destroy_database(world: &World) {
    let address = &world.connections().postgres;
    let name = address.rsplit('/').next().unwrap().to_owned();
    testkit::block_on(async {
        let maintenance =
            infra::config::Connections { postgres: with_database(address, "postgres"), ..world.connections().clone() };
        let client = infra::postgres::connect(&maintenance).await.unwrap();
        client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    });
}

#[test]
fn a_sale_goes_on_after_postgres_and_redis_were_destroyed_and_restored_as_the_runbook_says() {
    let mut shop = Shop::new();
    let voucher = shop.open(150);
    let folder = tempfile::tempdir().unwrap();
    let sell = |shop: &Shop, range: std::ops::Range<usize>| {
        let buyers = buyers(names(range.end).skip(range.start));
        sale(plan(shop.url(), &voucher, Duration::from_millis(1_500)), buyers)
    };
    let cancel = |shop: &Shop, name: &str| {
        let order_id = shop.world.order_id(&voucher, name, None);
        let body = RequestBody::CancellationRequested { order_id, by: CancelledBy::Buyer };
        shop.world.append_request(1, &voucher_request(&voucher, body));
    };
    sell(&shop, 0..40).join().unwrap();
    cancel(&shop, "buyer-0");
    // In the middle of a sale.
    let going_on = sell(&shop, 40..80);
    follow_runbook(&shop.world, "Back up", folder.path());
    going_on.join().unwrap();
    cancel(&shop, "buyer-1");
    shop.world.wait_settled(&[&voucher]);
    let (before, events) = (rows(&shop.world), shop.world.events(1));

    for service in [&shop.purchase, &shop.compensation, &shop.orders] {
        service.end();
    }
    destroy_database(&shop.world);
    flush_all(shop.redis.endpoint());
    follow_runbook(&shop.world, "Restore", folder.path());
    assert_eq!(rows(&shop.world), before);
    for service in [&mut shop.orders, &mut shop.compensation, &mut shop.purchase] {
        service.restart().unwrap();
        service.wait_ready();
    }
    shop.world.wait_settled(&[&voucher]);
    follow_runbook(&shop.world, "Prove", folder.path());
    assert_eq!((rows(&shop.world), shop.world.events(1)), (before, events.clone()), "nothing is decided twice");

    // A winner asks again, a cancelled one has his order still, and there is a unit for somebody new.
    for (user, accepted) in [("buyer-2", true), ("buyer-0", true), ("late", true)] {
        let answer = buy(&shop.url(), &voucher, user);
        assert_eq!(answer.is_accepted() || answer.order_id.is_some(), accepted, "{user}: {answer:?}");
    }
    shop.world.wait_settled(&[&voucher]);
    let after = shop.world.events(1);
    assert_eq!(after[..events.len()], events);
    let audit = shop.world.assert_audit();
    assert_eq!((audit.vouchers[0].sold, audit.order_rows), (79, 81));
}

#[test]
fn a_snapshot_that_does_not_fit_is_refused_and_changes_nothing() {
    let written = Written::new(&WHOLE);
    let world = &written.world;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let file = at(FILE);
    let (code, text) = doorbuster(world, &["snapshot", "export", &file, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    let place = serde_json::json!([{ "partition": 1, "next_offset": 9, "events_from": 9 }]);
    assert_eq!((code, &told["places"], &told["orders"]), (0, &place, &serde_json::json!(5)), "{text}");
    let (code, text) = doorbuster(world, &["snapshot", "export", &file]);
    assert!(code == 2 && text.contains("is there already"), "{code}: {text}");

    let whole = rows(world);
    let refused = |file: &str, named: &str| {
        let before = rows(world);
        for apply in [&[][..], &["--apply"]] {
            let (code, text) = doorbuster(world, &[&["snapshot", "import", file], apply].concat());
            assert!(code == 2 && text.contains(named), "{named}: {code}: {text}");
        }
        assert_eq!(rows(world), before, "{named}");
    };
    refused(&file, "not empty");
    let bytes = fs::read(&file).unwrap();
    fs::write(at("cut-off"), &bytes[..bytes.len() - 10]).unwrap();
    let mut changed = zstd_lines(&bytes);
    changed = changed.replace("\"quantity\":1", "\"quantity\":2");
    fs::write(at("changed"), zstd::encode_all(changed.as_bytes(), 1).unwrap()).unwrap();
    execute(world, "TRUNCATE orders, vouchers, lane_positions");
    for (name, named) in [("cut-off", "cut off"), ("changed", "digest"), ("none", "No such file")] {
        refused(&at(name), named);
        let (code, text) = doorbuster(world, &["snapshot", "verify", &at(name)]);
        assert!(code == 2 && text.contains(&at(name)), "{code}: {text}");
    }
    execute(world, "INSERT INTO lane_positions VALUES ('x', 0, 7, '')");
    refused(&file, "not empty");
    execute(world, "TRUNCATE lane_positions");
    let elsewhere = World::new();
    let (code, text) = doorbuster(&elsewhere, &["snapshot", "import", &file, "--apply"]);
    assert!(code == 2 && text.contains("is of topics"), "{code}: {text}");
    let (code, text) = doorbuster(world, &["snapshot", "import", &file]);
    assert!(code == 0 && text.contains("would: import 1 vouchers and 5 orders") && rows(world) == "//", "{code}: {text}");
    let (code, text) = doorbuster(world, &["snapshot", "import", &file, "--apply"]);
    assert_eq!((code, rows(world)), (0, whole), "{text}");
    let (code, text) = doorbuster(world, &["rebuild", "orders"]);
    assert_eq!(code, 0, "{text}");

    // A decision that is not in the log yet could be lost with the log's next lane: no snapshot of it.
    let ahead = Written::new(&WHOLE[..8]);
    let (code, text) = doorbuster(&ahead.world, &["snapshot", "export", &at("ahead"), "--patience", "500ms"]);
    assert!(code == 2 && text.contains("request 8 is decided in Postgres"), "{code}: {text}");
    ahead.append(&WHOLE[8..]);
    let (code, text) = doorbuster(&ahead.world, &["snapshot", "export", &at("ahead")]);
    assert_eq!(code, 0, "{text}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

/// Postgres is read at one moment, and the log then, as far as it answers that: what lanes do meanwhile is not in the snapshot, and all that
/// they had decided before is behind its place in the log.
#[test]
fn a_snapshot_is_of_one_moment_whatever_lanes_do_while_it_is_made() {
    let written = Written::new(&WHOLE[..8]);
    let (world, folder) = (&written.world, tempfile::tempdir().unwrap());
    let file = folder.path().join(FILE).display().to_string();
    execute(world, KEEP);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lane = runtime.block_on(world.postgres());
    runtime.block_on(lane.batch_execute("BEGIN; LOCK TABLE orders")).unwrap();
    let mut child = start_patiently(world, &["snapshot", "export", &file, "--patience", "60s"]);
    let cut = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'doorbuster' AND datname = current_database() \
         AND state = 'idle in transaction' AND backend_xmin IS NOT NULL";
    let cuts = || on_database(world, async |client| client.query_one(cut, &[]).await).get::<_, i64>(0);
    wait_until(PATIENCE, "the export to have its cut of Postgres", || cuts() > 0);
    // What was decided before the cut is published only now, and much is decided after it.
    written.append(&WHOLE[8..]);
    wait_until(PATIENCE, "the export to ask for the orders", || waiting(world) > 0);
    let decided = "DELETE FROM orders; UPDATE vouchers SET seq = 99; UPDATE lane_positions SET next_offset = 99; COMMIT";
    runtime.block_on(lane.batch_execute(decided)).unwrap();
    assert!(child.wait().unwrap().success());
    drop(lane);
    runtime.shutdown_background();

    execute(world, RESTORE);
    let (code, text) = doorbuster(world, &["rebuild", "orders", "--from", &file]);
    assert!(code == 0 && text.contains("equal"), "{code}: {text}");
    execute(world, "TRUNCATE orders, vouchers, lane_positions");
    let (code, text) = doorbuster(world, &["snapshot", "import", &file, "--apply"]);
    assert!(code == 0 && text.contains("import 1 vouchers and 5 orders"), "{code}: {text}");
    let (code, text) = doorbuster(world, &["catch-up", "orders"]);
    assert!(code == 0 && text.contains("has everything"), "{code}: {text}");
}

fn zstd_lines(bytes: &[u8]) -> String {
    String::from_utf8(zstd::decode_all(bytes).unwrap()).unwrap()
}

/// Whoever holds a table holds a command up in the middle, and there it is killed.
#[test]
fn an_export_or_import_that_was_killed_is_made_again_and_leaves_nothing() {
    let written = Written::new(&WHOLE);
    let world = &written.world;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let file = path.display().to_string();
    let killed_while_held = |held: &str, args: &[&str], meanwhile: &dyn Fn()| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let holder = runtime.block_on(world.postgres());
        runtime.block_on(holder.batch_execute(&format!("BEGIN; LOCK TABLE orders IN {held} MODE"))).unwrap();
        let mut child = start_patiently(world, args);
        wait_until(PATIENCE, "the command to wait", || waiting(world) > 0);
        meanwhile();
        child.kill().unwrap();
        child.wait().unwrap();
        drop(holder);
        runtime.shutdown_background();
    };
    let files = || fs::read_dir(folder.path()).unwrap().count();

    let busy = || {
        let (code, text) = doorbuster(world, &["snapshot", "export", &file]);
        assert!(code == 2 && text.contains("another export"), "{code}: {text}");
    };
    killed_while_held("ACCESS EXCLUSIVE", &["snapshot", "export", &file], &busy);
    assert!(!path.exists() && files() == 1, "only what the next one overwrites");
    let (code, text) = doorbuster(world, &["snapshot", "export", &file]);
    assert_eq!((code, files()), (0, 1), "{text}");
    let (code, text) = doorbuster(world, &["snapshot", "verify", &file]);
    assert!(code == 0 && text.contains("1 vouchers, 5 orders"), "{code}: {text}");

    let whole = rows(world);
    execute(world, "TRUNCATE orders, vouchers, lane_positions");
    killed_while_held("SHARE", &["snapshot", "import", &file, "--apply"], &|| ());
    wait_until(PATIENCE, "an import to go through", || {
        assert_eq!(rows(world), "//", "all or nothing");
        doorbuster(world, &["snapshot", "import", &file, "--apply"]).0 == 0
    });
    assert_eq!(rows(world), whole);
}
