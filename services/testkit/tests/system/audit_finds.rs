//! An audit that cannot fail proves nothing: it must find what is planted, and say so when it cannot tell.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use domain::{EventBody, LoggedRequest, RefusalReason, RequestBody, State, Timestamp, VoucherId};
use rdkafka::{
    Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};
use replay::{Kind, Verdict};
use testkit::{World, block_on, buyers, doorbuster, order_request, plan, sale, voucher_request};

use crate::{Shop, names};

/// A statement on one order, a word that the verdict must hold, and the differences that must be among those found.
pub(crate) type Plant<'a> = (&'a str, &'a str, &'a [(Kind, u64)]);

/// Wrong rows, each of them found by whoever compares the tables with the log.
pub(crate) const WRONG_ROWS: [Plant<'static>; 4] = [
    ("UPDATE orders SET quantity = 2 WHERE order_id = $1", "quantity is 2, by the log 1", &[(Kind::OrderRowChanged, 1)]),
    ("DELETE FROM orders WHERE order_id = $1", "has events, but no row", &[(Kind::OrderRowMissing, 1)]),
    (
        "INSERT INTO orders SELECT 'ffffffff-ffff-8fff-8fff-ffffffffffff', voucher_id, partition, 'x', quantity, status, reason, requested_at, \
         decided_at, changed_at, expires_at, NULL, voucher_seq + 100, request_offset, slot FROM orders WHERE order_id = $1",
        "has a row, but no event",
        &[(Kind::OrderRowExtra, 1)],
    ),
    (
        "UPDATE vouchers v SET total = total + 1 FROM orders o WHERE o.order_id = $1 AND o.voucher_id = v.voucher_id",
        "total",
        &[(Kind::VoucherRow, 1)],
    ),
];

/// Keeps the tables as they are, and puts back what was kept.
pub(crate) const KEEP: &str =
    "CREATE TABLE o AS TABLE orders; CREATE TABLE v AS TABLE vouchers; CREATE TABLE l AS TABLE lane_positions";
pub(crate) const RESTORE: &str = "TRUNCATE orders, vouchers, lane_positions; INSERT INTO vouchers TABLE v; INSERT INTO orders TABLE o; \
     INSERT INTO lane_positions TABLE l";

pub(crate) fn kinds(verdict: &Verdict) -> Vec<(Kind, u64)> {
    match verdict {
        Verdict::Different { counts, .. } => counts.iter().map(|(kind, count)| (*kind, *count)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_planted_difference_is_found_and_named() {
    let shop = Shop::new();
    let voucher = shop.open(5);
    // Its sale is over, but not for long.
    let ended = shop.world.voucher_id();
    let mut terms = shop.world.terms(5, 1, 1);
    (terms.begins_at, terms.ends_at) = (terms.begins_at.plus(-1_800_000), terms.begins_at);
    shop.world.open(&ended, terms.clone());
    sale(plan(shop.url(), &voucher, Duration::from_millis(300)), buyers(names(8))).join().unwrap();
    shop.world.wait_settled(&[&voucher, &ended]);
    // Nobody is there to repair what is planted now.
    [&shop.purchase, &shop.orders, &shop.compensation].into_iter().for_each(testkit::Service::end);
    let at_rest = shop.world.assert_audit();
    assert_eq!((at_rest.order_rows, at_rest.vouchers.iter().map(|v| v.sold).sum::<i64>()), (5, 5));

    let positions: [Plant<'_>; 2] = [
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
        client.batch_execute(KEEP).await?;
        let row = client.query_one("SELECT order_id FROM orders ORDER BY voucher_seq DESC LIMIT 1", &[]).await?;
        row.try_get::<_, uuid::Uuid>(0)
    });
    for (planted, named, expected) in WRONG_ROWS.into_iter().chain(positions) {
        on_database(&shop.world, async |client| client.execute(planted, &[&some]).await);
        assert_found(&shop, planted, named, expected);
        on_database(&shop.world, async |client| client.batch_execute(RESTORE).await);
        shop.world.assert_audit();
    }

    let key = |of: &VoucherId, name: &str| format!("{{v:{of}}}:{name}");
    let (hash, held) = (key(&voucher, "voucher"), key(&voucher, "held"));
    let gone = key(&ended, "voucher");
    let begins_ms = terms.begins_at.0;
    let in_redis: [(&str, String, String, &str, Kind); 10] = [
        ("stock", format!("HINCRBY {hash} stock 1"), format!("HINCRBY {hash} stock -1"), "stock", Kind::RedisVoucher),
        ("sold", format!("HINCRBY {hash} sold -1"), format!("HINCRBY {hash} sold 1"), "sold", Kind::RedisVoucher),
        (
            "reserved",
            format!("HINCRBY {hash} reserved 1"),
            format!("HINCRBY {hash} reserved -1"),
            "reserved",
            Kind::RedisReserved,
        ),
        ("a ghost", format!("HSET {held} ghost 1"), format!("HDEL {held} ghost"), "ghost", Kind::RedisHeld),
        ("title", format!("HSET {gone} title x"), format!("HSET {gone} title \"{}\"", terms.title), "title", Kind::RedisVoucher),
        ("price", format!("HSET {gone} price \"1 EUR\""), format!("HSET {gone} price \"1000 EUR\""), "price", Kind::RedisVoucher),
        (
            "window",
            format!("HSET {gone} begins_ms 1"),
            format!("HSET {gone} begins_ms {begins_ms}"),
            "begins_at",
            Kind::RedisVoucher,
        ),
        ("damage", format!("HSET {gone} stock x"), format!("HSET {gone} stock 5"), "damaged", Kind::RedisDamaged),
        (
            "a lost voucher",
            format!("RENAME {gone} elsewhere"),
            format!("RENAME elsewhere {gone}"),
            ended.as_str(),
            Kind::RedisMissing,
        ),
        (
            "a voucher from nowhere",
            format!("COPY {gone} {{v:alien}}:voucher"),
            "DEL {v:alien}:voucher".to_owned(),
            "alien",
            Kind::RedisUnknown,
        ),
    ];
    for (planted, plant, undo, named, kind) in in_redis {
        redis(&shop.world, &plant);
        assert_found(&shop, planted, named, &[(kind, 1)]);
        redis(&shop.world, &undo);
        shop.world.assert_audit();
    }
    stale_reservation(&shop, &voucher);
    in_the_log(&shop, &voucher, terms);

    shop.world.append(&shop.world.connections().topics.dead_letters, 0, b"", b"?");
    assert_found(&shop, "a dead letter from nowhere", "dead letter", &[(Kind::DeadLetter, 1)]);
    let (last, _) = shop.world.events(1).pop().unwrap();
    shop.world.append_event(1, &last);
    assert_found(&shop, "an event twice", "again", &[(Kind::DeadLetter, 1), (Kind::EventRepeated, 1), (Kind::VoucherSeqGap, 1)]);
}

/// A reservation that nobody took up when its time was over.
fn stale_reservation(shop: &Shop, voucher: &VoucherId) {
    let order = shop.world.order_id(voucher, "late", None);
    let key = |name: &str| format!("{{v:{voucher}}}:{name}");
    let reserve = |stamp: Timestamp| {
        let (at, reservations) = (stamp.0, key("reservations"));
        redis(&shop.world, &format!("HSET {reservations} {order} \"{at} {at} 1 - late\""));
    };
    let count = |by: i64| {
        redis(&shop.world, &format!("HINCRBY {} reserved {by}", key("voucher")));
        redis(&shop.world, &format!("HINCRBY {} stock {}", key("voucher"), -by));
        redis(&shop.world, &format!("HINCRBY {} late {by}", key("held")));
    };
    let now = shop.world.terms(1, 1, 0).begins_at.plus(60_000);
    count(1);
    reserve(now);
    assert_eq!(shop.world.assert_audit().in_flight, 1, "a young one is on its way");
    // Delivery time-out 10 s, margin 5 s, patience 0.5 s.
    reserve(now.plus(-20_000));
    assert_found(shop, "a dead sweeper", "stale reservation", &[(Kind::StaleReservation, 1)]);
    count(-1);
    redis(&shop.world, &format!("HDEL {} {order}", key("reservations")));
    shop.world.assert_audit();
}

/// Requests and answers that no lane wrote, with the lane's position behind them: none of them changes anything that can be counted.
fn in_the_log(shop: &Shop, voucher: &VoucherId, terms: domain::Terms) {
    let world = &shop.world;
    let answered = |partition: i32, body: RequestBody, of: &VoucherId, forge: &dyn Fn(&mut domain::Event)| {
        let request = voucher_request(of, body);
        let offset = world.append_request(partition, &request);
        let records = world.records(&world.connections().topics.requests, partition);
        let appended_at = records.iter().find(|record| record.offset == offset).unwrap().timestamp;
        let mut event =
            domain::decide(&State::default(), &LoggedRequest { partition, offset, appended_at, request: Some(request) });
        forge(&mut event);
        world.append_event(partition, &event);
        let position = (world.connections().topics.requests.clone(), offset + 1);
        on_database(world, async |client| {
            let moved = "UPDATE lane_positions SET next_offset = $3 WHERE topic = $1 AND partition = $2";
            client.execute(moved, &[&position.0, &partition, &position.1]).await
        });
    };
    let order = |user: &str| {
        let alien = world.voucher_id();
        let order = order_request(&alien, world.order_id(&alien, user, None), user, 1);
        (alien, order.body)
    };
    let published = |partition: i32| RequestBody::VoucherPublished(domain::Terms { partition, ..terms.clone() });

    let (alien, body) = order("honest");
    answered(0, body, &alien, &|_| ());
    answered(0, published(0), voucher, &|event| refuse(event, RefusalReason::AlreadyPublished));
    world.assert_audit();

    let (alien, body) = order("replaced");
    answered(0, body, &alien, &|event| event.request_id = uuid::Uuid::new_v4());
    assert_found(shop, "another request in its place", "there is request", &[(Kind::RequestReplaced, 1)]);
    let (alien, body) = order("misjudged");
    answered(0, body, &alien, &|event| refuse(event, RefusalReason::Closed));
    assert_found(shop, "another decision", "by the rules", &[(Kind::RequestReplaced, 1), (Kind::Decision, 1)]);
    answered(0, published(0), &world.voucher_id(), &|event| refuse(event, RefusalReason::AlreadyPublished));
    assert_found(shop, "a voucher refused as opened elsewhere", "opened nowhere", &[(Kind::VoucherPlace, 1)]);
    answered(0, published(0), voucher, &|_| ());
    assert_found(shop, "a voucher opened twice", "two partitions", &[(Kind::VoucherPlace, 2)]);
}

fn refuse(event: &mut domain::Event, why: RefusalReason) {
    (event.voucher_seq, event.remaining, event.held) = (0, 0, 0);
    match &mut event.body {
        EventBody::RequestRefused { reason, .. } => *reason = why,
        body => {
            let kind = domain::RequestKind::VoucherPublished;
            *body = EventBody::RequestRefused { kind, order_id: None, reason: why, due_back: None };
        }
    }
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

    delete_events(&shop.world, 1, 2);
    let audit = shop.world.audit();
    let Verdict::CannotTell { reasons } = &audit.verdict else { panic!("{:#?}", audit.verdict) };
    assert!(reasons.iter().any(|r| r.contains(events) && r.contains("0..2")), "{reasons:?}");
    let (code, text) = doorbuster(&shop.world, &["audit"]);
    assert!(code == 2 && text.contains("0..2"), "{code}: {text}");
}

/// Deletes the events of a partition before this offset.
pub(crate) fn delete_events(world: &World, partition: i32, before: i64) {
    let admin: AdminClient<DefaultClientContext> = infra::kafka::client_config(world.connections()).create().unwrap();
    let mut deleted = TopicPartitionList::new();
    deleted.add_partition_offset(&world.connections().topics.events, partition, Offset::Offset(before)).unwrap();
    block_on(async { admin.delete_records(&deleted, &AdminOptions::new()).await }).unwrap();
}

fn assert_found(shop: &Shop, planted: &str, named: &str, expected: &[(Kind, u64)]) {
    let audit = shop.world.audit_with(replay::AuditOptions { patience: Duration::from_millis(500), deep: true });
    let found = kinds(&audit.verdict);
    assert!(expected.iter().all(|kind| found.contains(kind)), "{planted}: {:#?}", audit.verdict);
    assert!(format!("{:?}", audit.verdict).contains(named), "{planted}: {:#?}", audit.verdict);
    let (code, text) = doorbuster(&shop.world, &["audit", "--deep", "--json", "--patience", "500ms"]);
    assert!(code == 1 && text.contains("\"verdict\": \"different\""), "{planted}: {code} {text}");
}

pub(crate) fn on_database<T>(
    world: &World,
    work: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, tokio_postgres::Error>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { work(&world.postgres().await).await }).unwrap()
}

/// One command in Redis' inline form.
pub(crate) fn redis(world: &World, command: &str) {
    let mut stream = TcpStream::connect(world.connections().redis.trim_start_matches("redis://")).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 1];
    stream.read_exact(&mut answer).unwrap();
    assert_ne!(&answer, b"-", "Redis refused {command}");
}
