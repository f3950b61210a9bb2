//! What is planted, each in one place only, and how it must be told.

use std::{
    collections::HashSet,
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use chaos::{
    check::{Promise, Subject, Violation, check},
    ledger::{Book, Call, Change, Deed, Done, Ledger, Outcome, What},
};
use domain::{Event, EventBody, OrderId, OrderStatus, RULES_VERSION, RequestBody, VoucherId};
use testkit::{order_request, voucher_request};

use crate::{Shop, told};

/// What the checker says now. Nobody works any more, so it need not wait.
fn violations(shop: &Shop, ledger: &Ledger) -> Vec<Violation> {
    check(&shop.world, ledger, Duration::ZERO).err().unwrap_or_default()
}

fn assert_undone(shop: &Shop, ledger: &Ledger) {
    let found = violations(shop, ledger);
    assert!(found.is_empty(), "all is undone, but\n{}", told(&found));
}

/// Panics unless a violation of this promise by this subject says `word`, with a timeline in which `line` stands.
fn assert_found(found: &[Violation], promise: Promise, subject: Subject, word: &str, line: &str) {
    let fits = |v: &Violation| {
        v.promise == promise && v.subject == subject && v.what.contains(word) && v.timeline.iter().any(|l| l.contains(line))
    };
    assert!(found.iter().any(fits), "{promise}, {subject:?}, {word:?}, {line:?} is not in\n{}", told(found));
}

/// Accepted purchases whose orders were confirmed, with these, one for each user.
fn confirmed(shop: &Shop, book: &Book) -> Vec<(Arc<Call>, OrderId)> {
    let orders = shop.world.fold().orders;
    let mut users = HashSet::new();
    let one = |call: &Arc<Call>| {
        let (What::Purchase { .. }, Outcome::Accepted { order_id, .. }) = (&call.what, &call.outcome) else { return None };
        let is_confirmed = orders.get(order_id).is_some_and(|order| order.status == OrderStatus::Confirmed);
        (is_confirmed && users.insert(call.user.clone())).then(|| (Arc::clone(call), *order_id))
    };
    book.calls.iter().filter_map(one).collect()
}

pub(crate) fn in_the_ledger(shop: &Shop, ledger: &Ledger, small: &VoucherId) {
    let mut book = ledger.book();
    let bought = confirmed(shop, &book);
    let (forgotten, unasked) = &bought[0];
    book.calls.retain(|call| call.user != forgotten.user);
    let ledger = Ledger::of(book.clone());

    let now = Instant::now();
    let at = |ms: u64| now + Duration::from_millis(ms);
    let accepted = |order_id, status| Outcome::Accepted { order_id, status };
    let unknown = || Outcome::Refused { code: "unknown_order".to_owned() };
    let (confirmed, rejected) = (Some(OrderStatus::Confirmed), Some(OrderStatus::Rejected));
    // The owner of the order looks after it.
    let look = |(call, order): &(Arc<Call>, OrderId), from: u64, outcome| {
        let (begun, ended, what) = (at(from), at(from + 1), What::Status(*order));
        ledger.call(Call { begun, ended, what, outcome, ..(**call).clone() });
    };
    let nowhere = |user: &str| shop.world.order_id(small, user, None);
    let stranger = |user: &str, what| {
        let (user, voucher, outcome) = (user.to_owned(), small.clone(), accepted(nowhere(user), None));
        ledger.call(Call { begun: now, ended: now, user, voucher, what, outcome, ..(**forgotten).clone() });
    };

    stranger("ghost", What::Purchase { quantity: 1, key: None });
    stranger("fool", What::Nonsense("no units"));
    ledger.call(Call { outcome: accepted(nowhere("other"), None), ..(*bought[1].0).clone() });
    look(&bought[2], 0, accepted(bought[2].1, confirmed));
    look(&bought[2], 2, accepted(bought[2].1, None));
    look(&bought[3], 0, accepted(bought[3].1, rejected));
    look(&bought[4], 0, unknown());
    // Asked before there was an answer: nothing was promised.
    let early = &bought[5].0;
    let what = What::Status(bought[5].1);
    ledger.call(Call { what, outcome: unknown(), ..(**early).clone() });
    let voucher = book.deeds.iter().find(|deed| deed.done == Done::Yes).map(|deed| deed.voucher.clone()).unwrap();
    let change = Change::Stock { delta: 7 };
    ledger.deed(Deed { begun: now, ended: now, voucher: voucher.clone(), change, done: Done::Yes });

    let found = violations(shop, &ledger);
    let of = |order: OrderId| Subject::Order(order);
    let answers = Promise::Answers;
    assert_found(&found, Promise::Replay, of(*unasked), "no buyer asked for it", "OrderRequested");
    assert_found(&found, Promise::NoLimbo, of(nowhere("ghost")), "neither the log nor Postgres", "ghost asks purchase");
    assert_found(&found, answers, of(nowhere("fool")), "makes no sense", "Redis: no reservation");
    assert_found(&found, answers, of(bought[1].1), "was told", "is answered");
    assert_found(&found, answers, of(bought[2].1), "pending, having been told to be confirmed", "Postgres: Order");
    assert_found(&found, answers, of(bought[3].1), "was told to be rejected", "accepted, rejected");
    assert_found(&found, answers, of(bought[4].1), "unknown, having been accepted", "refused, unknown_order");
    assert_found(&found, answers, Subject::Voucher(voucher), "published and changed makes", "VoucherOpened");
    assert!(!found.iter().any(|v| v.subject == of(bought[5].1)), "{}", told(&found));
}

pub(crate) fn in_postgres(shop: &Shop, ledger: &Ledger) {
    let bought = confirmed(shop, &ledger.book());
    let plants = [
        "DELETE FROM orders WHERE order_id = $1",
        "UPDATE orders SET user_id = 'thief' WHERE order_id = $1",
        "UPDATE orders SET quantity = quantity + 5 WHERE order_id = $1",
        "UPDATE orders SET quantity = quantity + 2000000 WHERE order_id = $1",
    ];
    on_database(shop, async |client| {
        client.batch_execute("CREATE TABLE o AS TABLE orders").await?;
        for (planted, (_, order)) in plants.iter().zip(&bought) {
            client.execute(*planted, &[&order.as_uuid()]).await?;
        }
        Ok(())
    });
    let found = violations(shop, ledger);
    let (order, voucher) = (|at: usize| Subject::Order(bought[at].1), |at: usize| Subject::Voucher(bought[at].0.voucher.clone()));
    assert_found(&found, Promise::NoLimbo, order(0), "no row", "OrderConfirmed");
    assert_found(&found, Promise::Conservation, voucher(0), "in live orders", "VoucherOpened");
    assert_found(&found, Promise::Answers, order(1), "of thief", "OrderConfirmed");
    assert_found(&found, Promise::Replay, order(1), "user_id", "OrderConfirmed");
    assert_found(&found, Promise::Limit, voucher(2), &bought[2].0.user, "VoucherOpened");
    assert_found(&found, Promise::Bounds, voucher(3), "in live orders of", "VoucherOpened");
    on_database(shop, async |client| client.batch_execute("TRUNCATE orders; INSERT INTO orders TABLE o").await);
    assert_undone(shop, ledger);
}

pub(crate) fn in_redis(shop: &Shop, ledger: &Ledger, small: &VoucherId) {
    let published = |deed: &Deed| matches!(deed.change, Change::Publish { .. }) && deed.done == Done::Yes;
    let others: Vec<VoucherId> = ledger.book().deeds.into_iter().filter(published).map(|deed| deed.voucher).collect();
    let key = |voucher: &VoucherId, name: &str| format!("{{v:{voucher}}}:{name}");
    let count = |voucher: &VoucherId, field: &str, by: i64| {
        redis(shop, &format!("HINCRBY {} {field} {by}", key(voucher, "voucher")));
    };
    let late = shop.world.order_id(small, "late", None);
    let at = shop.world.terms(1, 1, 0).begins_at.plus(60_000).0;
    let plant = |sign: i64| {
        count(&others[0], "stock", sign);
        count(&others[1], "stock", -2_000_000 * sign);
        count(&others[1], "sold", 2_000_000 * sign);
        // In limbo: reserved by the rules, and nobody has asked the log.
        count(small, "reserved", sign);
        count(small, "stock", -sign);
    };
    let (holders, reservations, gate) = (key(small, "held"), key(small, "reservations"), key(&others[2], "voucher"));
    plant(1);
    redis(shop, &format!("HSET {holders} greedy 2 late 1"));
    redis(shop, &format!("HSET {reservations} {late} \"{at} {at} 1 - late\""));
    redis(shop, &format!("HSET {gate} gate warming"));

    let found = violations(shop, ledger);
    let of = |voucher: &VoucherId| Subject::Voucher(voucher.clone());
    assert_found(&found, Promise::Conservation, of(&others[0]), "sold by the log", "VoucherOpened");
    assert_found(&found, Promise::Bounds, of(&others[1]), "units in stock of", "VoucherOpened");
    assert_found(&found, Promise::Limit, of(small), "greedy holds 2", "VoucherOpened");
    assert_found(&found, Promise::NoLimbo, Subject::Order(late), "reserved", "Redis: Reservation");
    assert_found(&found, Promise::Recovery, of(&others[2]), "warming", "VoucherOpened");

    plant(-1);
    redis(shop, &format!("HDEL {holders} greedy late"));
    redis(shop, &format!("HDEL {reservations} {late}"));
    redis(shop, &format!("HSET {gate} gate ready"));
    assert_undone(shop, ledger);
}

/// Not undone: nothing leaves the log.
pub(crate) fn in_the_log(shop: &Shop, ledger: &Ledger, small: &VoucherId) {
    let orders = shop.world.fold().orders;
    let owner = orders.values().find(|order| order.voucher_id == *small && order.status.is_live()).unwrap();
    let oversold = confirm(shop, small, "greedy", None);
    let second = confirm(shop, small, owner.user_id.as_str(), Some("second"));
    let twice = shop.world.events(0).into_iter().map(|(event, _)| event).rfind(is_confirmation);
    let twice = twice.expect("both partitions sold something");
    shop.world.append_event(0, &twice);
    let pause = voucher_request(small, RequestBody::VoucherPaused { expected_terms_version: 1 });
    shop.world.append_request(1, &pause);

    let (found, line) = (violations(shop, ledger), "OrderConfirmed");
    let (oversold, second) = (Subject::Order(oversold), Subject::Order(second));
    let twice = Subject::Order(twice.body.order_id().unwrap());
    assert_found(&found, Promise::Conservation, oversold.clone(), "makes 6 units sold", line);
    assert_found(&found, Promise::Replay, oversold, "no buyer asked for it", line);
    assert_found(&found, Promise::Limit, second, "gives user", line);
    assert_found(&found, Promise::Replay, twice.clone(), "a second time", line);
    assert_found(&found, Promise::NoLimbo, twice, "decides order", line);
    let undecided = found.iter().find(|v| v.promise == Promise::Recovery && v.what.contains("3 requests undecided"));
    assert!(undecided.is_some(), "{}", told(&found));
}

fn is_confirmation(event: &Event) -> bool {
    matches!(event.body, EventBody::OrderConfirmed { .. })
}

/// Appends a request and an event that confirms it, against all rules.
fn confirm(shop: &Shop, voucher: &VoucherId, user: &str, key: Option<&str>) -> OrderId {
    let partition = 1;
    let order_id = shop.world.order_id(voucher, user, key);
    let request = order_request(voucher, order_id, user, 1);
    let request_offset = shop.world.append_request(partition, &request);
    let mut events = shop.world.events(partition).into_iter().map(|(event, _)| event);
    let before = events.rfind(|event| event.voucher_id.as_ref() == Some(voucher)).unwrap();
    let RequestBody::OrderRequested { user_id, quantity, requested_at, .. } = request.body else { unreachable!() };
    let slot = before.voucher_seq + 1;
    let event = Event {
        voucher_seq: slot,
        request_offset,
        request_id: request.id,
        rules_version: RULES_VERSION,
        body: EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at: None, slot },
        ..before
    };
    shop.world.append_event(partition, &event);
    order_id
}

fn on_database(shop: &Shop, work: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<(), tokio_postgres::Error>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { work(&shop.world.postgres().await).await }).unwrap();
}

/// One command in Redis' inline form.
fn redis(shop: &Shop, command: &str) {
    let mut stream = TcpStream::connect(shop.world.connections().redis.trim_start_matches("redis://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 1];
    stream.read_exact(&mut answer).unwrap();
    assert_ne!(&answer, b"-", "Redis refused {command}");
}
