//! One order's story, a voucher as it was and its ledger: held against what a sale really did, and against its log.

use std::collections::BTreeMap;

use domain::{
    CancelledBy, Event, EventBody, LoggedRequest, Money, Order, OrderId, OrderStatus, Request, RequestBody, State, Timestamp,
    Voucher, VoucherId,
};
use infra::config::Connections;
use replay::{ExplainOptions, Explained, Point, StateAt, StateOptions, Verdict};
use serde_json::Value;
use testkit::{World, block_on, buy, doorbuster, order_request, voucher_request};

use crate::{
    Shop,
    audit_finds::{delete_events, on_database},
};

fn explained(world: &World, order: OrderId, look: i64) -> Explained {
    let options = ExplainOptions { look, deep: false, since: None };
    block_on(replay::explain(world.connections(), &world.codec(), order, &options)).unwrap()
}

/// The names of what was decided, request by request; `-`: nothing yet.
fn decided(told: &Explained) -> Vec<&'static str> {
    told.steps.iter().map(|step| step.answer.as_ref().map_or("-", |answer| answer.event.body.name())).collect()
}

fn state_at(world: &World, voucher: &VoucherId, at: Point) -> StateAt {
    let options = StateOptions { voucher: voucher.clone(), partition: None, at, orders: true };
    block_on(replay::state_at(world.connections(), &world.codec(), options)).unwrap()
}

fn voucher_row(world: &World, voucher: &VoucherId) -> Voucher {
    let pool = |world: &World| infra::postgres::pool(world.connections(), 1).unwrap();
    block_on(async { infra::postgres::voucher(&pool(world), voucher).await }).unwrap().unwrap()
}

/// A sale in which everything happens to somebody, in partition 1.
struct Told {
    shop: Shop,
    voucher: VoucherId,
    /// The row of the voucher behind some of its events.
    rows: Vec<(i64, Voucher)>,
}

impl Told {
    fn new() -> Self {
        let shop = Shop::new();
        let voucher = shop.open(3);
        let mut told = Self { shop, voucher, rows: Vec::new() };
        told.keep();
        for buyer in ["repeats", "gives-up", "pays"] {
            let answer = buy(&told.shop.url(), &told.voucher, buyer);
            assert!(answer.is_accepted(), "{answer:?}");
        }
        // Past the gate, which would refuse him.
        told.ask(order_request(&told.voucher, told.order("late"), "late", 1));
        told.keep();
        told.ask(order_request(&told.voucher, told.order("repeats"), "repeats", 1));
        let by = |by, name| RequestBody::CancellationRequested { order_id: told.order(name), by };
        let (gives_up, recalled) = (by(CancelledBy::Buyer, "gives-up"), by(CancelledBy::Seller, "pays"));
        let (payment_ref, amount, paid_at) = ("p1".to_owned(), Money::new(1_000, "EUR"), Timestamp(1));
        let paid = RequestBody::PaymentReceived { order_id: told.order("pays"), payment_ref, amount, paid_at };
        let stock = RequestBody::StockChanged { delta: 4, expected_terms_version: 1 };
        for body in [gives_up, paid, recalled] {
            told.ask(voucher_request(&told.voucher, body));
        }
        told.keep();
        let asked = voucher_request(&told.voucher, stock);
        told.ask(Request { actor: "warehouse".to_owned(), reason: Some("a box was found".to_owned()), ..asked });
        told.keep();
        told
    }

    fn order(&self, user: &str) -> OrderId {
        self.shop.world.order_id(&self.voucher, user, None)
    }

    fn ask(&self, request: Request) {
        let offset = self.shop.world.append_request(1, &request);
        self.shop.world.event_of(1, offset);
    }

    /// Notes how the voucher stands in Postgres.
    fn keep(&mut self) {
        self.shop.world.wait_settled(&[&self.voucher]);
        let (_, offset) = self.shop.world.events(1).pop().unwrap();
        self.rows.push((offset, voucher_row(&self.shop.world, &self.voucher)));
    }
}

#[test]
fn a_sale_is_told_order_by_order_moment_by_moment_and_unit_by_unit() {
    let told = Told::new();
    orders(&told);
    in_flight(&told);
    not_there(&told);
    states(&told);
    ledger(&told);
    deleted(&told);
}

fn orders(told: &Told) {
    let (world, explain) = (&told.shop.world, |user: &str| explained(&told.shop.world, told.order(user), 1_000));
    let repeats = explain("repeats");
    assert_eq!(decided(&repeats), ["OrderConfirmed", "RequestRepeated"]);
    assert_eq!(repeats.row.as_ref().map(|row| row.status), Some(OrderStatus::Confirmed));
    for step in &repeats.steps {
        let answer = step.answer.as_ref().unwrap();
        let event = &answer.event;
        assert_eq!((answer.settled, event.request_offset, event.decided_at), (Some(true), step.offset, step.appended_at));
        assert!(world.events(1).contains(&(event.clone(), answer.offset)), "{answer:?}");
    }
    assert_eq!((repeats.steps[0].request.actor.as_str(), repeats.steps[1].request.actor.as_str()), ("purchase", "test"));

    let late = explain("late");
    assert_eq!(decided(&late), ["OrderRejected"]);
    assert_eq!(
        late.steps[0].answer.as_ref().and_then(|answer| answer.why.as_deref()),
        Some("it asks for 1 units, and 0 were left")
    );
    assert_eq!(decided(&explain("gives-up")), ["OrderConfirmed", "OrderCancelled"]);
    let pays = explain("pays");
    assert_eq!(decided(&pays), ["OrderConfirmed", "OrderPaid", "OrderCancelled"]);
    for told in [&repeats, &late, &pays] {
        assert_eq!((&told.notes, &told.wrong, &told.unknown), (&Vec::new(), &Vec::new(), &Vec::new()));
    }
    // The payment lies behind the one request that is looked at from each place, and the row knows of it.
    let pays = explained(world, told.order("pays"), 1);
    assert_eq!(decided(&pays), ["OrderConfirmed", "OrderCancelled"]);
    assert!(pays.notes[0].contains("paid with reference \"p1\"") && pays.unknown.is_empty(), "{pays:#?}");

    let command = |user: &str| doorbuster(world, &["explain", &told.order(user).to_string()]);
    let (code, text) = command("late");
    assert!(code == 0 && text.contains("OrderRejected sold_out; after it 0 left"), "{code}: {text}");
    assert!(text.contains("because it asks for 1 units, and 0 were left") && text.contains("settled in Redis"), "{text}");
    let (code, text) = command("pays");
    assert!(code == 0 && text.contains("1000 minor units of EUR due back") && text.contains("for the seller"), "{code}: {text}");
    assert!(text.contains("cancelled, 1 for pays, payment \"p1\"; last changed by event"), "{text}");
    let away = Connections { redis: "redis://127.0.0.1:1".to_owned(), ..world.connections().clone() };
    let options = ExplainOptions { look: 1_000, deep: true, since: None };
    let late_without = block_on(replay::explain(&away, &world.codec(), told.order("late"), &options)).unwrap();
    assert_eq!((decided(&late_without), late_without.redis.is_none()), (vec!["OrderRejected"], true));
    assert!(late_without.unknown[0].starts_with("Redis cannot be asked"), "{late_without:#?}");
    // A row that tells another story than the log.
    let set_seq = |seq: i64| {
        let sql = "UPDATE orders SET voucher_seq = $1 WHERE user_id = 'late'";
        on_database(world, async |client| client.execute(sql, &[&seq]).await);
    };
    set_seq(100);
    let (code, text) = command("late");
    assert!(code == 1 && text.contains("event 100 of the voucher changed it"), "{code}: {text}");
    set_seq(late.row.unwrap().voucher_seq);
}

fn in_flight(told: &Told) {
    let Told { shop, voucher, .. } = told;
    shop.orders.process.pause().unwrap();
    assert!(buy(&shop.url(), voucher, "waits").is_accepted());
    let waits = explained(&shop.world, told.order("waits"), 1_000);
    assert!(waits.reservation().is_some_and(|held| held.quantity == 1 && held.user_id.as_str() == "waits"), "{waits:#?}");
    assert_eq!((decided(&waits), waits.row.is_none(), &waits.unknown), (vec!["-"], true, &Vec::new()));
    let (code, text) = doorbuster(&shop.world, &["explain", &told.order("waits").to_string()]);
    assert!(code == 0 && text.contains("not decided") && text.contains("1 reserved for waits since"), "{code}: {text}");
    shop.orders.process.resume().unwrap();
    shop.world.wait_settled(&[voucher]);
    let waits = explained(&shop.world, told.order("waits"), 1_000);
    assert_eq!((decided(&waits), waits.reservation().is_none()), (vec!["OrderConfirmed"], true));
}

/// Orders of which no store knows anything.
fn not_there(told: &Told) {
    let world = &told.shop.world;
    let (code, text) = doorbuster(world, &["explain", &told.order("nobody").to_string()]);
    assert!(code == 2 && text.contains("give --since TIME") && text.contains(told.voucher.as_str()), "{code}: {text}");
    let foreign = world.order_id(&world.voucher_id(), "lost", None);
    told.ask(order_request(&told.voucher, foreign, "lost", 1));
    let (code, text) = doorbuster(world, &["explain", &foreign.to_string()]);
    assert!(code == 2 && text.contains("no voucher of Postgres has orders whose ids begin so"), "{code}: {text}");
    let (code, text) = doorbuster(world, &["explain", &foreign.to_string(), "--since", "-1h", "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    let event = &json["steps"][0]["answer"]["event"]["body"]["RequestRefused"];
    assert!(code == 0 && event["reason"] == "invalid", "{code}: {text}");
}

/// Statuses and what they count, from a plain fold.
fn tallies(state: &State) -> BTreeMap<&'static str, (u64, i64)> {
    let mut tallies = BTreeMap::new();
    for order in state.orders.values() {
        let tally: &mut (u64, i64) = tallies.entry(order.status.as_str()).or_default();
        *tally = (tally.0 + 1, tally.1 + order.quantity);
    }
    tallies
}

fn states(told: &Told) {
    let (world, voucher) = (&told.shop.world, &told.voucher);
    for (offset, row) in &told.rows {
        assert_eq!(state_at(world, voucher, Point::Offset(*offset)).voucher.as_ref(), Some(row), "as of {offset}");
    }
    let events = world.events(1);
    let appended = world.records(&world.connections().topics.events, 1);
    for at in [0, 4, events.len() / 2, events.len() - 1] {
        let (offset, instant) = (appended[at].offset, appended[at].timestamp);
        for point in [Point::Offset(offset), Point::Time(instant)] {
            let counts = |record: &infra::kafka::Record| match point {
                Point::Offset(offset) => record.offset <= offset,
                Point::Time(instant) => record.timestamp <= instant,
            };
            let mut state = State::default();
            let some = events.iter().zip(&appended).filter(|(_, record)| counts(record));
            some.for_each(|((event, _), _)| state.evolve(event));
            let told = state_at(world, voucher, point);
            let found: BTreeMap<_, _> = told.orders.iter().map(|(status, t)| (*status, (t.orders, t.units))).collect();
            assert_eq!((told.voucher.as_ref(), found), (state.vouchers.get(voucher), tallies(&state)), "{point:?}");
            let mut orders: Vec<Order> = state.orders.into_values().collect();
            orders.sort_by_key(|order| order.request_offset);
            assert_eq!((told.listed, told.verdict), (Some(orders), Verdict::Equal), "{point:?}");
        }
    }
    let state = |args: &[&str]| doorbuster(world, &[&["state", voucher.as_str(), "--at"], args].concat());
    let (code, text) = state(&["+1h", "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert!(code == 0 && json["is_at_end"] == true && json["orders"]["cancelled"]["orders"] == 2, "{code}: {text}");
    let (code, text) = state(&["now"]);
    assert!(code == 0 && text.contains("sold       2") && text.contains("events read in"), "{code}: {text}");
    let (code, text) = state(&["1970-01-02T00:00:00Z"]);
    assert!(code == 1 && text.contains("was not opened by then in partition 1"), "{code}: {text}");
    let (code, text) = state(&["100000"]);
    assert!(code == 2 && text.contains("but 100000 is needed"), "{code}: {text}");
    let (code, text) = state(&["0", "--partition", "2"]);
    assert!(code == 2 && text.contains("has 2 partitions, and none of number 2"), "{code}: {text}");
    let (code, text) = doorbuster(world, &["state", "nothing", "--at", "0"]);
    assert!(code == 2 && text.contains("Postgres has no voucher nothing"), "{code}: {text}");
}

fn ledger(told: &Told) {
    let (world, voucher) = (&told.shop.world, &told.voucher);
    let entries = |args: &[&str]| -> Vec<Value> {
        let (code, text) = doorbuster(world, &[&["voucher", "ledger", voucher.as_str(), "--json"], args].concat());
        assert_eq!(code, 0, "{text}");
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON document")).collect()
    };
    let number = |entry: &Value, field: &str| entry[field].as_i64().unwrap();
    let (all, row) = (entries(&[]), voucher_row(world, voucher));
    let kinds: Vec<&str> = all.iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    let expected = [
        "VoucherOpened",
        "OrderConfirmed",
        "OrderConfirmed",
        "OrderConfirmed",
        "OrderCancelled",
        "OrderCancelled",
        "VoucherChanged",
        "OrderConfirmed",
    ];
    assert_eq!(kinds, expected);
    for (what, end) in [("remaining", row.remaining), ("total", row.terms.total)] {
        let (from, to) = (format!("{what}_from"), format!("{what}_to"));
        let sum: i64 = all.iter().map(|entry| number(entry, &to) - number(entry, &from)).sum();
        assert_eq!((sum, number(all.last().unwrap(), &to)), (end, end), "{what}");
        assert!(all.windows(2).all(|pair| number(&pair[0], &to) == number(&pair[1], &from)), "{what}: {all:#?}");
    }
    let changed = &all[6];
    assert_eq!((changed["actor"].as_str(), changed["reason"].as_str()), (Some("warehouse"), Some("a box was found")));
    assert_eq!((number(changed, "total_from"), number(changed, "total_to")), (3, 7));
    assert_eq!((all[1]["user_id"].as_str(), all[1]["actor"].as_str()), (Some("repeats"), Some("purchase")));
    assert_eq!((all[4]["by"].as_str(), all[5]["by"].as_str()), (Some("buyer"), Some("seller")));
    let [from, to] = [5, 6].map(|n: usize| number(&all[n], "offset").to_string());
    assert_eq!(entries(&["--from", &from, "--to", &to]), all[5..7]);
    let (code, text) = doorbuster(world, &["voucher", "ledger", voucher.as_str(), "--from", "-1h"]);
    assert!(
        code == 0 && text.contains("3 -> 7") && text.contains("warehouse: a box was found") && text.contains("8 changes"),
        "{code}: {text}"
    );
    let (code, text) = doorbuster(world, &["voucher", "ledger", voucher.as_str(), "--partition", "0"]);
    assert!(code == 1 && text.contains("its partition has no voucher"), "{code}: {text}");
    for (args, why) in [
        (["--from", &to, "--to", &from], "but --to ends before"),
        (["--from", "1", "--to", "0"], "is at offset 1 (--from), but --to ends before offset 1"),
        (["--from", &to, "--to", "100000"], "100000 is needed"),
    ] {
        let (code, text) = doorbuster(world, &[&["voucher", "ledger", voucher.as_str()], &args[..]].concat());
        assert!(code == 2 && text.contains(why) && !text.contains("WHO AND WHY"), "{code}: {text}");
    }
}

/// Nothing is made up for what is gone; what is still there is told.
fn deleted(told: &Told) {
    let (world, voucher) = (&told.shop.world, told.voucher.as_str());
    let of = |user: &str| told.order(user).to_string();
    let behind = world.events(1).into_iter().find(|(event, _)| matches!(event.body, EventBody::OrderRejected { .. })).unwrap().1;
    delete_events(world, 1, behind);
    let gone = format!("offsets 0..{behind} were deleted");
    for command in [&["explain", &of("repeats")][..], &["state", voucher, "--at", "now"], &["voucher", "ledger", voucher]] {
        let (code, text) = doorbuster(world, command);
        assert!(code == 2 && text.contains(&gone) && text.contains("partition 1"), "{command:?}: {code}: {text}");
    }
    let repeats = explained(world, told.order("repeats"), 1_000);
    assert_eq!((decided(&repeats), repeats.steps[0].is_answer_deleted), (vec!["-", "RequestRepeated"], true));
    let (code, text) = doorbuster(world, &["explain", &of("late")]);
    assert!(code == 0 && text.contains("sold_out"), "{code}: {text}");
}

/// A log without services: so many orders, each confirmed, and their rows.
fn written(world: &World, partition: i32, orders: usize) -> Vec<OrderId> {
    let (codec, topics) = (world.codec(), &world.connections().topics);
    let voucher = world.voucher_id();
    let ids: Vec<OrderId> = (0..orders).map(|n| world.order_id(&voucher, &n.to_string(), None)).collect();
    let mut requests = vec![voucher_request(&voucher, RequestBody::VoucherPublished(world.terms(100_000, 1, partition)))];
    requests.extend(ids.iter().enumerate().map(|(n, id)| order_request(&voucher, *id, &n.to_string(), 1)));
    let bytes: Vec<Vec<u8>> = requests.iter().map(|request| codec.encode_request(request).unwrap()).collect();
    world.append_all(&topics.requests, partition, voucher.as_str().as_bytes(), &bytes);
    let mut state = State::default();
    let records = world.records(&topics.requests, partition);
    let events: Vec<Event> = requests
        .into_iter()
        .zip(&records)
        .map(|(request, record)| {
            let (offset, appended_at) = (record.offset, record.timestamp);
            let event = domain::decide(&state, &LoggedRequest { partition, offset, appended_at, request: Some(request) });
            state.evolve(&event);
            event
        })
        .collect();
    let bytes: Vec<Vec<u8>> = events.iter().map(|event| codec.encode_event(event).unwrap()).collect();
    world.append_all(&topics.events, partition, voucher.as_str().as_bytes(), &bytes);
    let (rows, vouchers): (Vec<_>, Vec<_>) = (state.orders.into_values().collect(), state.vouchers.into_values().collect());
    on_database(world, async |client| {
        infra::postgres::rows::copy_orders(client, "orders", &rows).await.unwrap();
        infra::postgres::rows::copy_vouchers(client, "vouchers", &vouchers).await.unwrap();
        Ok(())
    });
    ids
}

#[test]
fn what_explain_reads_does_not_grow_with_the_log() {
    const LOOK: i64 = 50;
    let world = World::new();
    let read = [(0, 300), (1, 6_000)].map(|(partition, orders)| {
        let ids = written(&world, partition, orders);
        [10, orders / 2, orders - 1].map(|n| {
            let told = explained(&world, ids[n], LOOK);
            assert_eq!((decided(&told), &told.wrong, &told.unknown), (vec!["OrderConfirmed"], &Vec::new(), &Vec::new()));
            told.records_read
        })
    });
    println!("records read: {read:?}");
    // What is looked through, and some probes for the event.
    assert!(read.iter().flatten().all(|read| *read <= LOOK as u64 + 20), "{read:?}");
}
