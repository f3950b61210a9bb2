use domain::{OrderStatus, RejectReason, Timestamp};
use infra::redis::VoucherInRedis;

use super::*;
use crate::{
    purchase::Purchases,
    scripted::{AT, Script, Scripted, in_redis, old_voucher, order, order_id, purchases, user, voucher, voucher_id},
};

async fn find_as(script: Script, user: &UserId, id: &OrderId) -> Found {
    let servers = Scripted(std::sync::Arc::new(parking_lot::Mutex::new(script)));
    let purchases = purchases(&servers);
    let Purchases { servers, vouchers, .. } = &*purchases;
    find(servers, vouchers, &voucher_id(), id, user).await
}

async fn find_in(script: Script) -> Found {
    find_as(script, &user(), &order_id()).await
}

fn reservation() -> Reservation {
    Reservation { order_id: order_id(), user_id: user(), quantity: 2, requested_at: AT, stamp: AT }
}

fn redis(gate: Gate) -> Option<Option<VoucherInRedis>> {
    Some(Some(in_redis(gate)))
}

/// Nothing is known of the order, and everything is decided.
fn nothing() -> Script {
    Script {
        reservation: Some(None),
        order: Some(None),
        in_redis: redis(Gate::Ready),
        next_offset: Some(7),
        ends: vec![99, 7],
        ..Script::default()
    }
}

#[tokio::test]
async fn an_order_is_pending_while_it_is_reserved() {
    let Found::Order(view) = find_in(Script { reservation: Some(Some(reservation())), ..nothing() }).await else {
        panic!("a reserved order is there");
    };
    let json = serde_json::to_value(&view).unwrap();
    let expected = serde_json::json!({"order_id": order_id(), "voucher_id": "v", "status": "pending", "quantity": 2,
        "requested_at": "2023-11-14T22:13:20.000Z"});
    assert_eq!(json, expected);
}

#[tokio::test]
async fn a_decided_order_says_what_became_of_it() {
    let row = Order { reason: Some(RejectReason::SoldOut), decided_at: Timestamp(0), ..order(1, OrderStatus::Rejected) };
    let Found::Order(view) = find_in(Script { order: Some(Some(row)), ..nothing() }).await else {
        panic!("a decided order is there");
    };
    let json = serde_json::to_value(&view).unwrap();
    assert_eq!((&json["status"], &json["reason"]), (&"rejected".into(), &"sold_out".into()));
    assert_eq!(json["decided_at"], "1970-01-01T00:00:00.000Z");
}

#[tokio::test]
async fn a_fate_stands_while_the_order_is_asked_for_again() {
    let again = || Script { reservation: Some(Some(reservation())), ..nothing() };
    let row = Some(Some(order(2, OrderStatus::Confirmed)));
    let found = find_in(Script { order: row, ..again() }).await;
    assert!(matches!(&found, Found::Order(view) if view.status == "confirmed"), "{found:?}");
    let away = find_in(Script { order: None, ..again() }).await;
    assert!(matches!(&away, Found::Order(view) if view.status == "pending"), "{away:?}");
}

#[tokio::test]
async fn a_decided_order_is_there_without_redis() {
    let script = Script { reservation: None, order: Some(Some(order(1, OrderStatus::Confirmed))), ..Script::default() };
    assert!(matches!(find_in(script).await, Found::Order(_)));
}

#[tokio::test]
async fn others_see_nothing() {
    let other = UserId::parse("other").unwrap();
    let reserved = Script { reservation: Some(Some(reservation())), ..Script::default() };
    assert_eq!(find_as(reserved, &other, &order_id()).await, Found::None);
    let decided = Script { order: Some(Some(order(1, OrderStatus::Confirmed))), ..nothing() };
    assert_eq!(find_as(decided, &other, &order_id()).await, Found::None);
    let elsewhere = OrderId::from_uuid(uuid::Uuid::new_v4());
    assert_eq!(find_as(Script::default(), &user(), &elsewhere).await, Found::None);
}

#[tokio::test]
async fn there_is_none_only_where_everything_up_to_the_logs_end_is_decided() {
    assert_eq!(find_in(nothing()).await, Found::None);
    assert_eq!(find_in(Script { next_offset: Some(6), ..nothing() }).await, Found::AskAgain);
    assert_eq!(find_in(Script { in_redis: redis(Gate::Warming), ..nothing() }).await, Found::AskAgain);
    assert_eq!(find_in(Script { in_redis: redis(Gate::Frozen), ..nothing() }).await, Found::AskAgain);
    assert_eq!(find_in(Script { ends: vec![99], ..nothing() }).await, Found::Away(Server::Kafka));
    assert_eq!(find_in(Script { ends: vec![], ..nothing() }).await, Found::Away(Server::Kafka));
}

#[tokio::test]
async fn a_fault_is_never_taken_for_absence() {
    assert_eq!(find_in(Script { reservation: None, ..nothing() }).await, Found::Away(Server::Redis));
    assert_eq!(find_in(Script { in_redis: None, ..nothing() }).await, Found::Away(Server::Redis));
    assert_eq!(find_in(Script { order: None, ..nothing() }).await, Found::Away(Server::Postgres));
    assert_eq!(find_in(Script { next_offset: None, ..nothing() }).await, Found::Away(Server::Postgres));
}

#[tokio::test]
async fn a_voucher_that_redis_lost_leaves_its_orders_open() {
    let lost = || Script { in_redis: Some(None), ..nothing() };
    assert_eq!(find_in(Script { voucher: Some(Some(voucher())), ..lost() }).await, Found::AskAgain);
    assert_eq!(find_in(Script { voucher: Some(None), ..lost() }).await, Found::None);
    assert_eq!(find_in(lost()).await, Found::Away(Server::Postgres));
}

#[tokio::test]
async fn a_voucher_that_redis_forgot_long_after_its_sale_has_no_open_orders() {
    let forgotten = || Script { in_redis: Some(None), voucher: Some(Some(old_voucher())), ..nothing() };
    assert_eq!(find_in(forgotten()).await, Found::None);
    assert_eq!(find_in(Script { next_offset: Some(6), ..forgotten() }).await, Found::AskAgain);
}

#[tokio::test]
async fn a_row_that_comes_between_the_looks_is_found() {
    let script = Script { order_later: Some(order(1, OrderStatus::Confirmed)), ..nothing() };
    assert!(matches!(find_in(script).await, Found::Order(_)));
}
