//! An audit that cannot fail proves nothing: it must find what is planted, and say so when it cannot tell.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};
use replay::{Audit, Kind, Verdict};
use testkit::{World, buyers, doorbuster, plan, sale};

use crate::{Shop, names};

/// A statement on one order, a word that the verdict must hold, and the differences that must be among those found.
type Plant<'a> = (&'a str, &'a str, &'a [(Kind, u64)]);

fn kinds(audit: &Audit) -> Vec<(Kind, u64)> {
    match &audit.verdict {
        Verdict::Different { counts, .. } => counts.iter().map(|(kind, count)| (*kind, *count)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_planted_difference_is_found_and_named() {
    let shop = Shop::new();
    let voucher = shop.open(5);
    sale(plan(shop.url(), &voucher, Duration::from_millis(300)), buyers(names(8))).join().unwrap();
    shop.world.wait_settled(&[&voucher]);
    // Nobody is there to repair what is planted now.
    [&shop.purchase, &shop.orders, &shop.compensation].into_iter().for_each(testkit::Service::end);
    let at_rest = shop.world.assert_audit();
    assert_eq!((at_rest.order_rows, at_rest.vouchers[0].sold), (5, 5));

    let in_postgres: [Plant<'_>; 6] = [
        ("UPDATE orders SET quantity = 2 WHERE order_id = $1", "quantity", &[(Kind::OrderRowChanged, 1)]),
        ("DELETE FROM orders WHERE order_id = $1", "no row", &[(Kind::OrderRowMissing, 1)]),
        (
            "INSERT INTO orders SELECT 'ffffffff-ffff-8fff-8fff-ffffffffffff', voucher_id, partition, 'x', quantity, status, reason, requested_at, \
             decided_at, changed_at, expires_at, payment_ref, voucher_seq + 100, request_offset, slot FROM orders WHERE order_id = $1",
            "no event",
            &[(Kind::OrderRowExtra, 1)],
        ),
        ("UPDATE vouchers SET total = total + 1 WHERE $1::uuid IS NOT NULL", "total", &[(Kind::VoucherRow, 1)]),
        (
            "UPDATE lane_positions SET next_offset = next_offset - 1 WHERE partition = 1 AND $1::uuid IS NOT NULL",
            "position",
            &[(Kind::PostgresBehind, 1), (Kind::VoucherRow, 1), (Kind::OrderRowExtra, 1)],
        ),
        (
            "UPDATE lane_positions SET next_offset = 1000000 WHERE partition = 1 AND $1::uuid IS NOT NULL",
            "beyond",
            &[(Kind::Position, 1)],
        ),
    ];
    let some = on_database(&shop.world, async |client| {
        client
            .batch_execute(
                "CREATE TABLE o AS TABLE orders; CREATE TABLE v AS TABLE vouchers; CREATE TABLE l AS TABLE lane_positions",
            )
            .await?;
        let row = client.query_one("SELECT order_id FROM orders ORDER BY voucher_seq DESC LIMIT 1", &[]).await?;
        row.try_get::<_, uuid::Uuid>(0)
    });
    for (planted, named, expected) in in_postgres {
        on_database(&shop.world, async |client| client.execute(planted, &[&some]).await);
        assert_found(&shop, planted, named, expected);
        on_database(&shop.world, async |client| {
            let restore = "TRUNCATE orders, vouchers, lane_positions; INSERT INTO vouchers TABLE v; INSERT INTO orders TABLE o; \
                 INSERT INTO lane_positions TABLE l";
            client.batch_execute(restore).await
        });
        shop.world.assert_audit();
    }

    let key = |name: &str| format!("{{v:{voucher}}}:{name}");
    let in_redis: [(String, String, &str, Kind); 4] = [
        (
            format!("HINCRBY {} stock 1", key("voucher")),
            format!("HINCRBY {} stock -1", key("voucher")),
            "stock",
            Kind::RedisVoucher,
        ),
        (format!("HINCRBY {} sold -1", key("voucher")), format!("HINCRBY {} sold 1", key("voucher")), "sold", Kind::RedisVoucher),
        (
            format!("HINCRBY {} reserved 1", key("voucher")),
            format!("HINCRBY {} reserved -1", key("voucher")),
            "reserved",
            Kind::RedisReserved,
        ),
        (format!("HSET {} ghost 1", key("held")), format!("HDEL {} ghost", key("held")), "ghost", Kind::RedisHeld),
    ];
    for (plant, undo, named, kind) in in_redis {
        redis(&shop.world, &plant);
        assert_found(&shop, &plant, named, &[(kind, 1)]);
        redis(&shop.world, &undo);
        shop.world.assert_audit();
    }
    redis(&shop.world, &format!("RENAME {} elsewhere:{voucher}", key("voucher")));
    assert_found(&shop, "a lost voucher", voucher.as_str(), &[(Kind::RedisMissing, 1)]);
    redis(&shop.world, &format!("RENAME elsewhere:{voucher} {}", key("voucher")));
    shop.world.assert_audit();

    shop.world.append(&shop.world.connections().topics.dead_letters, 0, b"", b"?");
    assert_found(&shop, "a dead letter from nowhere", "dead letter", &[(Kind::DeadLetter, 1)]);
    let (last, _) = shop.world.events(1).pop().unwrap();
    shop.world.append_event(1, &last);
    assert_found(&shop, "an event twice", "again", &[(Kind::DeadLetter, 1), (Kind::EventRepeated, 1), (Kind::VoucherSeqGap, 1)]);
}

#[test]
fn deleted_history_and_absent_servers_are_no_verdict() {
    let shop = Shop::new();
    let voucher = shop.open(5);
    sale(plan(shop.url(), &voucher, Duration::from_millis(300)), buyers(names(5))).join().unwrap();
    shop.world.wait_settled(&[&voucher]);
    let (events, connections) = (&shop.world.connections().topics.events, shop.world.connections());

    let away = infra::config::Connections { redis: "redis://127.0.0.1:1".to_owned(), ..connections.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let audit = runtime.block_on(replay::audit(&away, &shop.world.codec(), replay::AuditOptions::default()));
    assert!(matches!(audit.verdict, Verdict::CannotTell { .. }), "{:#?}", audit.verdict);

    let admin: AdminClient<DefaultClientContext> = infra::kafka::client_config(connections).create().unwrap();
    let mut deleted = TopicPartitionList::new();
    deleted.add_partition_offset(events, 1, Offset::Offset(2)).unwrap();
    runtime.block_on(admin.delete_records(&deleted, &AdminOptions::new())).unwrap();
    let audit = shop.world.audit();
    let Verdict::CannotTell { reasons } = &audit.verdict else { panic!("{:#?}", audit.verdict) };
    assert!(reasons.iter().any(|r| r.contains(events) && r.contains("0..2")), "{reasons:?}");
    let (code, text) = doorbuster(&shop.world, &["audit"]);
    assert!(code == 2 && text.contains("0..2"), "{code}: {text}");
}

fn assert_found(shop: &Shop, planted: &str, named: &str, expected: &[(Kind, u64)]) {
    let audit = shop.world.audit_with(replay::AuditOptions { patience: Duration::from_millis(500) });
    let found = kinds(&audit);
    assert!(expected.iter().all(|kind| found.contains(kind)), "{planted}: {:#?}", audit.verdict);
    assert!(format!("{:?}", audit.verdict).contains(named), "{planted}: {:#?}", audit.verdict);
    let (code, text) = doorbuster(&shop.world, &["audit", "--json", "--patience", "500ms"]);
    assert!(code == 1 && text.contains("\"verdict\": \"different\""), "{planted}: {code} {text}");
}

fn on_database<T>(world: &World, work: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, tokio_postgres::Error>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { work(&world.postgres().await).await }).unwrap()
}

/// One command in Redis' inline form.
fn redis(world: &World, command: &str) {
    let mut stream = TcpStream::connect(world.connections().redis.trim_start_matches("redis://")).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 1];
    stream.read_exact(&mut answer).unwrap();
    assert_ne!(&answer, b"-", "Redis refused {command}");
}
