//! The beginning of the log was deleted: whoever needs it says what is missing and changes nothing, whoever does not goes on, and a snapshot
//! leads past it.

use std::time::{Duration, Instant};

use domain::{CancelledBy, RequestBody};
use infra::{kafka::client_config, redis::Gate};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer},
};
use testkit::{World, buy, buyers, doorbuster, plan, sale, voucher_request, wait_until};

use crate::{
    Shop,
    audit_finds::{delete_events, on_database},
    names,
    rebuild::{WHOLE, Written, execute, litter},
    redis_lost::flush_all,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Orders, and how far lanes have come: what no refused command may change.
fn stores(world: &World) -> (i64, i64, i64) {
    let sql = "SELECT (SELECT count(*) FROM orders), (SELECT coalesce(sum(seq), 0)::bigint FROM vouchers), \
         (SELECT coalesce(sum(next_offset), 0)::bigint FROM lane_positions)";
    let row = on_database(world, async |client| client.query_one(sql, &[]).await);
    (row.get(0), row.get(1), row.get(2))
}

/// Where all topics end.
fn log_ends(world: &World) -> Vec<i64> {
    let topics = &world.connections().topics;
    let places =
        [(&topics.requests, 0), (&topics.requests, 1), (&topics.events, 0), (&topics.events, 1), (&topics.dead_letters, 0)];
    let places = places.into_iter();
    places.map(|(topic, partition)| world.ends(topic, partition).high).collect()
}

#[track_caller]
fn assert_says(world: &World, args: &[&str], expected: i32, named: &str) {
    let before = (stores(world), litter(world), log_ends(world));
    let (code, text) = doorbuster(world, args);
    assert!(code == expected && text.contains(named), "{args:?}: {code}: {text}");
    if expected == 2 {
        assert_eq!((stores(world), litter(world), log_ends(world)), before, "{args:?}");
    }
}

#[test]
fn postgres_is_brought_to_the_log_by_hand_and_past_deleted_history_from_a_snapshot() {
    let written = Written::log(&WHOLE[..5]);
    let (world, folder) = (&written.world, tempfile::tempdir().unwrap());
    let file = folder.path().join("snapshot").display().to_string();
    assert_says(world, &["catch-up", "orders"], 0, "would: fold 5 events into partition 1, the answers to requests 0..5");
    assert_eq!(stores(world), (0, 0, 0));
    assert_says(world, &["catch-up", "orders", "--apply"], 0, "did: fold 5 events");
    assert_eq!(stores(world), (4, 5, 5));
    assert_says(world, &["catch-up", "orders", "--apply"], 0, "has everything");
    assert_says(world, &["snapshot", "export", &file], 0, "4 orders");
    written.append(&WHOLE[5..]);
    assert_says(world, &["rebuild", "orders"], 1, "postgres_behind");
    assert_says(world, &["catch-up", "orders", "--apply"], 0, "answers to requests 5..9");
    assert_eq!(stores(world), (5, 9, 9));
    assert_says(world, &["rebuild", "orders"], 0, "equal");
    assert_says(world, &["rebuild", "orders", "--from", &file], 0, "equal");

    delete_events(world, 1, 5);
    assert_says(world, &["rebuild", "orders"], 2, "offsets 0..5 were deleted");
    assert_says(world, &["rebuild", "orders", "--from", &file, "--swap"], 0, "swapped");
    execute(world, "UPDATE orders SET quantity = 2 WHERE voucher_seq = 2");
    assert_says(world, &["rebuild", "orders", "--from", &file], 1, "quantity is 2, by the log 1");
    execute(world, "TRUNCATE orders, vouchers, lane_positions");
    assert_says(world, &["catch-up", "orders"], 2, "answers to requests 0..5 among them");
    assert_says(world, &["catch-up", "orders", "--apply"], 2, "offsets 0..5 were deleted");
    assert_says(world, &["snapshot", "import", &file, "--apply"], 0, "did: import");
    assert_says(world, &["catch-up", "orders", "--apply"], 0, "answers to requests 5..9");
    assert_eq!(stores(world), (5, 9, 9));
    assert_says(world, &["rebuild", "orders", "--from", &file], 0, "equal");

    // Now the snapshot is too old.
    delete_events(world, 1, 7);
    assert_says(world, &["rebuild", "orders", "--from", &file], 2, "offsets 5..7 were deleted");
    execute(world, "TRUNCATE orders, vouchers, lane_positions");
    assert_says(world, &["snapshot", "import", &file], 2, "offsets 5..7 were deleted");
    assert_says(world, &["snapshot", "import", &file, "--apply"], 2, "offsets 5..7 were deleted");
    delete_events(world, 1, 9);
    assert_says(world, &["catch-up", "orders", "--apply"], 2, "all answers among them");
    // A lane that took "no event" for "nothing was decided yet" would decide everything once more.
    let orders = world.launch_service("orders", "orders", &[]);
    wait_until(PATIENCE, "the lane to stop", || orders.process.log_tail(100).contains("offsets 0..9 were deleted"));
    assert_eq!((stores(world), log_ends(world)[3]), ((0, 0, 0), 9));
}

/// Sets a group's offset by hand, with nobody in the group.
fn commit(world: &World, service: &str, topic: &str, offset: i64) {
    let mut config = client_config(world.connections());
    let consumer: BaseConsumer = config.set("group.id", world.connections().group(service)).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 1, Offset::Offset(offset)).unwrap();
    wait_until(PATIENCE, "the group to be empty", || consumer.commit(&list, CommitMode::Sync).is_ok());
}

#[test]
fn a_thousand_orders_are_replayed_without_effects_and_their_beginning_is_missed_by_name() {
    let mut shop = Shop::new();
    let voucher = shop.open(1_000);
    sale(plan(shop.url(), &voucher, Duration::from_secs(6)), buyers(names(1_000))).join().unwrap();
    for name in names(100) {
        let order_id = shop.world.order_id(&voucher, &name, None);
        let body = RequestBody::CancellationRequested { order_id, by: CancelledBy::Buyer };
        shop.world.append_request(1, &voucher_request(&voucher, body));
    }
    shop.world.wait_settled(&[&voucher]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot").display().to_string();
    let effects = |shop: &Shop| (log_ends(&shop.world), shop.world.in_redis(&voucher), stores(&shop.world));
    let before = effects(&shop);
    for replay in [
        &["rebuild", "orders", "--swap"][..],
        &["verify", "decisions"],
        &["audit"],
        &["tail", "events"],
        &["snapshot", "export", &file],
        &["rebuild", "orders", "--from", &file],
        &["catch-up", "orders", "--apply"],
    ] {
        let (code, text) = doorbuster(&shop.world, replay);
        assert_eq!((code, effects(&shop)), (0, before.clone()), "{replay:?}: {}", &text[text.len().saturating_sub(2_000)..]);
    }

    let events = shop.world.connections().topics.events.clone();
    delete_events(&shop.world, 1, 500);
    for (args, named) in [
        (&["audit"][..], "offsets 0..500 were deleted"),
        (&["verify", "decisions"], "offsets 0..500 were deleted"),
        (&["rebuild", "orders", "--swap", "--accept-differences"], "offsets 0..500 were deleted"),
        (&["rebuild", "redis", voucher.as_str(), "--apply"], "offsets 0..500 were deleted"),
        (&["tail", "events", "--partition", "1", "--offset", "0"], "offsets 0..500 were deleted"),
    ] {
        assert_says(&shop.world, args, 2, named);
        assert_eq!(shop.world.in_redis(&voucher), before.1, "{args:?}");
    }
    // These need nothing of it.
    for (args, named) in [
        (&["lag"][..], "nobody is behind"),
        (&["voucher", "list"], voucher.as_str()),
        (&["voucher", "show", voucher.as_str()], "gate ready"),
        (&["catch-up", "orders"], "has everything"),
        (&["tail", "events", "--partition", "1", "--limit", "1"], "\"offset\":5"),
        (&["rebuild", "orders", "--from", &file], "equal"),
    ] {
        assert_says(&shop.world, args, 0, named);
    }
    assert_eq!(effects(&shop), before);

    // Offsets of the groups, below the log's start and above its end: nobody's position.
    let requests = shop.world.connections().topics.requests.clone();
    for (round, offset) in [1, 1_000_000].into_iter().enumerate() {
        [&shop.purchase, &shop.compensation, &shop.orders].into_iter().for_each(testkit::Service::end);
        commit(&shop.world, "orders", &requests, offset);
        commit(&shop.world, "compensation", &events, offset);
        for service in [&mut shop.orders, &mut shop.compensation, &mut shop.purchase] {
            service.restart().unwrap();
            service.wait_ready();
        }
        let answer = buy(&shop.url(), &voucher, &format!("late-{round}"));
        assert!(answer.is_accepted(), "{answer:?}");
        shop.world.wait_settled(&[&voucher]);
        assert_says(&shop.world, &["rebuild", "orders", "--from", &file], 0, "equal");
    }

    // The lanes need what is gone only where Postgres has lost it.
    shop.orders.end();
    execute(&shop.world, "TRUNCATE orders, vouchers, lane_positions");
    let ends = log_ends(&shop.world);
    shop.orders.restart().unwrap();
    let started = Instant::now();
    wait_until(PATIENCE, "the lane to stop", || shop.orders.process.log_tail(100).contains("offsets 0..500 were deleted"));
    println!("stopped after {:?}", started.elapsed());
    assert!(!shop.orders.is_ready());
    assert_eq!((log_ends(&shop.world), stores(&shop.world)), (ends, (0, 0, 0)));
    shop.orders.end();
    assert_says(&shop.world, &["snapshot", "import", &file, "--apply"], 0, "did: import");
    shop.orders.restart().unwrap();
    shop.orders.wait_ready();
    shop.world.wait_settled(&[&voucher]);
    assert_says(&shop.world, &["rebuild", "orders", "--from", &file], 0, "equal");

    // A voucher that was opened later is repaired, whatever is missing of another one.
    let later = shop.open(1);
    flush_all(shop.redis.endpoint());
    let gate = |of| shop.world.in_redis(of).map(|found| found.gate);
    wait_until(PATIENCE, "the later one to be on sale again", || gate(&later) == Some(Gate::Ready));
    let log = || shop.compensation.process.log_tail(1_000);
    wait_until(PATIENCE, "an alarm", || log().contains("events were deleted that a repair may need"));
    assert_ne!(gate(&voucher), Some(Gate::Ready), "it is not sold with counts that nobody knows");
}
