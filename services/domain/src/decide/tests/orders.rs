//! Orders: asked for, repeated, cancelled, expired.

use super::{confirmed, rejected, repeated};
use crate::testing::{
    BEGINS, ENDS, Given, a_voucher, order, order_at, order_id, order_id_of, payment, sale, terms, terms_with_payment_window,
    user, voucher_id,
};
use crate::{
    ALLOWED_SKEW_MS, CancelledBy, EventBody, Money, OrderStatus, RefusalReason, RejectReason, RequestBody, RequestKind, Terms,
    Timestamp,
};

fn cancel(name: &str, by: CancelledBy) -> RequestBody {
    RequestBody::CancellationRequested { order_id: order_id(name), by }
}

fn elapsed(name: &str) -> RequestBody {
    RequestBody::PaymentWindowElapsed { order_id: order_id(name) }
}

fn second_order(name: &str, quantity: i64) -> RequestBody {
    let order_id = order_id_of(&voucher_id(), name, "2");
    RequestBody::OrderRequested { order_id, user_id: user(name), quantity, requested_at: BEGINS }
}

fn cancelled(name: &str, quantity: i64, by: CancelledBy, due_back: Option<Money>) -> EventBody {
    EventBody::OrderCancelled { order_id: order_id(name), user_id: user(name), quantity, by, due_back }
}

fn expired(name: &str, quantity: i64) -> EventBody {
    EventBody::OrderExpired { order_id: order_id(name), user_id: user(name), quantity }
}

fn close(log: Given) -> Given {
    log.given(RequestBody::VoucherClosed { expected_terms_version: 1 })
}

#[test]
fn an_order_takes_its_units() {
    let decided = sale(terms()).when(order("ann", 2)).then(confirmed("ann", 2, 2)).with_seq(2).leaves(8, 2);
    let stored = &decided.state().orders[&order_id("ann")];
    assert_eq!((stored.status, stored.reason, stored.quantity), (OrderStatus::Confirmed, None, 2));
    assert_eq!((stored.voucher_seq, stored.request_offset, stored.slot), (2, 1, 2));
    assert_eq!((stored.requested_at, stored.decided_at, stored.changed_at), (BEGINS, BEGINS.plus(1), BEGINS.plus(1)));
}

#[test]
fn the_slot_is_zero_where_one_unit_a_user_is_allowed() {
    let one_each = Terms { per_user_limit: 1, ..terms() };
    let decided = sale(one_each).given(order("ann", 1)).when(order("ben", 1)).then(confirmed("ben", 1, 0)).leaves(8, 1);
    assert_eq!(decided.state().orders[&order_id("ben")].slot, 0);
}

#[test]
fn a_confirmed_order_expires_after_the_payment_window() {
    let decided = sale(terms_with_payment_window()).at(Timestamp(1_500_000)).when(order("ann", 1));
    let EventBody::OrderConfirmed { expires_at, .. } = decided.event().body else { panic!("{:?}", decided.event()) };
    assert_eq!(expires_at, Some(Timestamp(1_560_000)));
    assert_eq!(decided.state().orders[&order_id("ann")].expires_at, expires_at);
}

#[test]
fn a_repeated_order_says_where_it_stands_and_takes_nothing() {
    let sold = || sale(terms()).given(order("ann", 2));
    sold().when(order("ann", 2)).then(repeated("ann", OrderStatus::Confirmed)).with_seq(3).leaves(8, 2);
    let other_quantity = sold().when(order("ann", 1));
    other_quantity.then(repeated("ann", OrderStatus::Confirmed)).leaves(8, 2);
    let paid = sold().given(payment("ann", "p1", 3_998));
    paid.when(order("ann", 2)).then(repeated("ann", OrderStatus::Paid)).leaves(8, 2);
    let cancelled = sold().given(cancel("ann", CancelledBy::Buyer));
    cancelled.when(order("ann", 2)).then(repeated("ann", OrderStatus::Cancelled)).leaves(10, 0);
    let rejected = sale(terms()).given(order("ann", 3));
    rejected.when(order("ann", 2)).then(repeated("ann", OrderStatus::Rejected)).leaves(10, 0);
}

#[test]
fn a_repeat_is_answered_before_anything_else_is_looked_at() {
    let closed = close(sale(terms()).given(order("ann", 2))).at(ENDS.plus(100_000));
    closed.when(order_at("ann", -1, ENDS)).then(repeated("ann", OrderStatus::Confirmed)).leaves(8, 2);
}

#[test]
fn a_repeat_names_the_user_who_has_the_order_and_not_the_one_who_asks() {
    let (order_id, user_id) = (order_id("ann"), user("eve"));
    let body = RequestBody::OrderRequested { order_id, user_id, quantity: 1, requested_at: BEGINS };
    sale(terms()).given(order("ann", 2)).when(body).then(repeated("ann", OrderStatus::Confirmed)).leaves(8, 2);
}

#[test]
fn an_id_of_another_voucher_makes_no_order() {
    let id = order_id_of(&a_voucher("winter"), "ann", "1");
    let body = RequestBody::OrderRequested { order_id: id, user_id: user("ann"), quantity: 1, requested_at: BEGINS };
    let decided = sale(terms()).when(body).then_refused(RequestKind::OrderRequested, Some(id), RefusalReason::Invalid);
    assert!(decided.with_seq(2).leaves(10, 0).state().orders.is_empty());
}

#[test]
fn quantities_that_make_no_sense_are_rejected() {
    for quantity in [0, -1, i64::MIN, i64::MIN + 1] {
        let decided = sale(terms()).when(order("ann", quantity));
        decided.then(rejected("ann", quantity, RejectReason::Invalid)).with_seq(2).leaves(10, 0);
    }
}

#[test]
fn a_rejected_order_is_kept_with_its_reason() {
    let decided = sale(terms()).given(order("ann", 1)).when(second_order("ann", i64::MAX)).leaves(9, 1);
    let stored = &decided.state().orders[&order_id_of(&voucher_id(), "ann", "2")];
    assert_eq!((stored.status, stored.reason), (OrderStatus::Rejected, Some(RejectReason::LimitReached)));
    assert_eq!((stored.expires_at, &stored.payment_ref, stored.slot, stored.voucher_seq), (None, &None, 3, 3));
}

#[test]
fn a_user_that_no_store_can_hold_is_rejected_and_stripped() {
    let long = "u".repeat(129);
    for (name, stripped) in [("a\0b", "ab"), ("\u{7f}", ""), ("", ""), (&long, &long[..128])] {
        let (order_id, user_id, reason) = (order_id(name), user(stripped), RejectReason::Invalid);
        let body = EventBody::OrderRejected { order_id, user_id, quantity: 1, requested_at: BEGINS, reason };
        sale(terms()).when(order(name, 1)).then(body).with_seq(2).leaves(10, 0);
    }
}

#[test]
fn the_window_is_open_from_its_first_instant_to_the_one_before_its_end() {
    let bounds = [(BEGINS.plus(-1), false), (BEGINS, true), (ENDS.plus(-1), true), (ENDS, false), (ENDS.plus(1), false)];
    for (requested_at, open) in bounds {
        let decided = sale(terms()).at(ENDS.plus(60_000)).when(order_at("ann", 1, requested_at));
        let order = &decided.state().orders[&order_id("ann")];
        let reason = (!open).then_some(RejectReason::NotOnSale);
        assert_eq!((order.requested_at, order.reason), (requested_at, reason));
    }
}

#[test]
fn an_order_from_the_future_is_rejected_beyond_the_allowed_skew() {
    let received = Timestamp(1_500_000);
    for (ahead, reason) in [(ALLOWED_SKEW_MS, None), (ALLOWED_SKEW_MS + 1, Some(RejectReason::NotOnSale))] {
        let decided = sale(terms()).at(received).when(order_at("ann", 1, received.plus(ahead)));
        assert_eq!(decided.state().orders[&order_id("ann")].reason, reason);
    }
}

/// Such an instant would stop the lane at this record for ever if it were passed on: no timestamp column can hold it.
#[test]
fn an_instant_outside_the_calendar_is_brought_back_to_its_end() {
    let (first, last) = Timestamp::CALENDAR.into_inner();
    for (said, stored) in [(i64::MIN, first), (-1, first), (0, first), (last.0, last), (last.0 + 1, last), (i64::MAX, last)] {
        let decided = sale(terms()).when(order_at("ann", 1, Timestamp(said))).leaves(10, 0);
        let order = &decided.state().orders[&order_id("ann")];
        assert_eq!((order.requested_at, order.reason), (stored, Some(RejectReason::NotOnSale)));
    }
}

#[test]
fn a_closed_voucher_sells_nothing_and_a_paused_one_what_was_reserved() {
    close(sale(terms())).when(order("ann", 1)).then(rejected("ann", 1, RejectReason::Closed)).leaves(10, 0);
    let paused = sale(terms()).given(RequestBody::VoucherPaused { expected_terms_version: 1 });
    paused.when(order("ann", 1)).then(confirmed("ann", 1, 3)).leaves(9, 1);
}

#[test]
fn reasons_speak_in_the_order_of_the_table() {
    let few = Terms { total: 2, per_user_limit: 2, ..terms() };
    let sold_out = || sale(few.clone()).given(order("ann", 2));
    let reason = |log: Given, body| log.when(body).state().orders[&order_id("ben")].reason;
    let closed = || close(sold_out());
    assert_eq!(reason(closed(), order_at("ben", 0, ENDS)), Some(RejectReason::Invalid));
    assert_eq!(reason(closed(), order_at("ben", 3, ENDS)), Some(RejectReason::NotOnSale));
    assert_eq!(reason(closed(), order("ben", 3)), Some(RejectReason::Closed));
    assert_eq!(reason(sold_out(), order("ben", 3)), Some(RejectReason::LimitReached));
    assert_eq!(reason(sold_out(), order("ben", 2)), Some(RejectReason::SoldOut));
}

#[test]
fn a_user_holds_no_more_than_the_limit() {
    for quantity in [3, i64::MAX] {
        sale(terms()).when(order("ann", quantity)).then(rejected("ann", quantity, RejectReason::LimitReached)).leaves(10, 0);
    }
    let holding = |units| sale(terms()).given(order("ann", units));
    holding(1).when(second_order("ann", 2)).leaves(9, 1);
    holding(2).when(second_order("ann", 1)).leaves(8, 2);
    let decided = holding(1).when(second_order("ann", 1)).leaves(8, 2);
    assert!(matches!(decided.event().body, EventBody::OrderConfirmed { slot: 3, .. }));
}

#[test]
fn units_that_came_back_may_be_bought_again() {
    let log = sale(terms()).given(order("ann", 2)).given(cancel("ann", CancelledBy::Buyer));
    let decided = log.when(second_order("ann", 2)).leaves(8, 2);
    assert!(matches!(decided.event().body, EventBody::OrderConfirmed { .. }));
}

#[test]
fn the_last_unit_is_sold_and_not_one_more() {
    let few = Terms { total: 3, ..terms() };
    let one_left = sale(few).given(order("ann", 2));
    one_left.clone().when(order("ben", 2)).then(rejected("ben", 2, RejectReason::SoldOut)).leaves(1, 0);
    one_left.when(order("ben", 1)).then(confirmed("ben", 1, 3)).leaves(0, 1);
}

#[test]
fn a_confirmed_order_is_cancelled_by_either_side() {
    for by in [CancelledBy::Buyer, CancelledBy::Seller] {
        let decided = sale(terms()).given(order("ann", 2)).at(ENDS.plus(9)).when(cancel("ann", by));
        let decided = decided.then(cancelled("ann", 2, by, None)).with_seq(3).leaves(10, 0);
        let order = &decided.state().orders[&order_id("ann")];
        assert_eq!((order.status, order.changed_at, order.voucher_seq), (OrderStatus::Cancelled, ENDS.plus(9), 3));
        assert_eq!(order.decided_at, BEGINS.plus(1));
    }
}

#[test]
fn a_cancelled_order_leaves_what_the_user_holds_otherwise() {
    let log = sale(terms()).given(order("ann", 1)).given(second_order("ann", 1));
    log.when(cancel("ann", CancelledBy::Buyer)).then(cancelled("ann", 1, CancelledBy::Buyer, None)).leaves(9, 1);
}

#[test]
fn a_paid_order_is_cancelled_only_by_the_seller_who_then_owes_the_amount() {
    let paid = || sale(terms()).given(order("ann", 2)).given(payment("ann", "p1", 3_998));
    let due_back = Some(Money::new(3_998, "EUR"));
    paid().when(cancel("ann", CancelledBy::Seller)).then(cancelled("ann", 2, CancelledBy::Seller, due_back)).leaves(10, 0);
    let by_buyer = paid().when(cancel("ann", CancelledBy::Buyer)).leaves(8, 2);
    by_buyer.then_refused(RequestKind::CancellationRequested, Some(order_id("ann")), RefusalReason::Final);
}

#[test]
fn a_final_order_is_not_cancelled() {
    let rejected = sale(terms()).given(order("ann", 3));
    let cancelled = sale(terms()).given(order("ann", 1)).given(cancel("ann", CancelledBy::Buyer));
    let expired = sale(terms_with_payment_window()).given(order("ann", 1)).at(ENDS).given(elapsed("ann"));
    for log in [rejected, cancelled, expired] {
        for by in [CancelledBy::Buyer, CancelledBy::Seller] {
            let decided = log.clone().when(cancel("ann", by)).leaves(10, 0);
            decided.then_refused(RequestKind::CancellationRequested, Some(order_id("ann")), RefusalReason::Final);
        }
    }
}

#[test]
fn an_order_that_is_none_is_neither_cancelled_nor_expired() {
    for (kind, body) in [
        (RequestKind::CancellationRequested, cancel("ben", CancelledBy::Seller)),
        (RequestKind::PaymentWindowElapsed, elapsed("ben")),
    ] {
        let decided = sale(terms()).given(order("ann", 1)).when(body).with_seq(3).leaves(9, 0);
        decided.then_refused(kind, Some(order_id("ben")), RefusalReason::UnknownOrder);
    }
}

#[test]
fn another_vouchers_order_is_none_here() {
    let log = sale(terms()).given(order("ann", 1)).about("winter").given(RequestBody::VoucherPublished(terms()));
    for (kind, body) in [
        (RequestKind::CancellationRequested, cancel("ann", CancelledBy::Seller)),
        (RequestKind::PaymentWindowElapsed, elapsed("ann")),
        (RequestKind::PaymentReceived, payment("ann", "p1", 1_999)),
    ] {
        let decided = log.clone().when(body).with_seq(2).leaves(10, 0);
        let due_back = (kind == RequestKind::PaymentReceived).then(|| Money::new(1_999, "EUR"));
        let (order_id, reason) = (Some(order_id("ann")), RefusalReason::UnknownOrder);
        decided.then(EventBody::RequestRefused { kind, order_id, reason, due_back });
    }
    let ordered = log.when(order("ann", 1)).with_seq(2).leaves(10, 0);
    ordered.then_refused(RequestKind::OrderRequested, Some(order_id("ann")), RefusalReason::Invalid);
}

#[test]
fn an_order_expires_from_the_exact_instant_on() {
    let received = Timestamp(1_500_000);
    let log = || sale(terms_with_payment_window()).at(received).given(order("ann", 2));
    let early = log().at(received.plus(59_999)).when(elapsed("ann")).leaves(8, 2);
    early.then_refused(RequestKind::PaymentWindowElapsed, Some(order_id("ann")), RefusalReason::TooEarly);
    for at in [received.plus(60_000), received.plus(60_001)] {
        let decided = log().at(at).when(elapsed("ann")).then(expired("ann", 2)).with_seq(3).leaves(10, 0);
        let order = &decided.state().orders[&order_id("ann")];
        assert_eq!((order.status, order.changed_at), (OrderStatus::Expired, at));
    }
}

#[test]
fn an_order_without_a_payment_window_never_expires() {
    let decided = sale(terms()).given(order("ann", 2)).at(Timestamp(i64::MAX)).when(elapsed("ann")).leaves(8, 2);
    decided.then_refused(RequestKind::PaymentWindowElapsed, Some(order_id("ann")), RefusalReason::TooEarly);
}

#[test]
fn a_final_order_does_not_expire() {
    let log = || sale(terms_with_payment_window());
    let sold = || log().given(order("ann", 2));
    let finals = [
        (log().given(order("ann", 3)), 10, 0),
        (sold().given(payment("ann", "p1", 3_998)), 8, 2),
        (sold().given(cancel("ann", CancelledBy::Buyer)), 10, 0),
        (sold().at(ENDS).given(elapsed("ann")), 10, 0),
    ];
    for (log, remaining, held) in finals {
        let decided = log.at(ENDS.plus(100_000)).when(elapsed("ann")).leaves(remaining, held);
        decided.then_refused(RequestKind::PaymentWindowElapsed, Some(order_id("ann")), RefusalReason::Final);
    }
}
