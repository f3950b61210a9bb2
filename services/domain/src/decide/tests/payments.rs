//! Payments: what buys, and what is due back.

use super::repeated;
use crate::testing::{
    BEGINS, Decided, ENDS, Given, a_voucher, order, order_id, order_id_of, payment, sale, terms, terms_with_payment_window, user,
    voucher_id,
};
use crate::{CancelledBy, EventBody, Money, OrderStatus, RefusalReason, RequestBody, RequestKind, Terms, Timestamp};

/// Ann has two units, not yet paid: 39.98 EUR.
fn sold() -> Given {
    sale(terms()).given(order("ann", 2))
}

fn cancel(by: CancelledBy) -> RequestBody {
    RequestBody::CancellationRequested { order_id: order_id("ann"), by }
}

fn paid(payment_ref: &str) -> EventBody {
    EventBody::OrderPaid {
        order_id: order_id("ann"),
        user_id: user("ann"),
        quantity: 2,
        payment_ref: payment_ref.into(),
        amount: Money::new(3_998, "EUR"),
        paid_at: BEGINS.plus(5),
    }
}

/// The payment buys nothing, so all of it is due back.
#[track_caller]
fn refused(decided: Decided, name: &str, reason: RefusalReason, minor: i64) -> Decided {
    let due_back = Some(Money::new(minor, "EUR"));
    let (kind, order_id) = (RequestKind::PaymentReceived, Some(order_id(name)));
    decided.then(EventBody::RequestRefused { kind, order_id, reason, due_back })
}

#[test]
fn a_payment_of_the_amount_pays_the_order() {
    let decided = sold().at(ENDS.plus(7)).when(payment("ann", "p1", 3_998)).then(paid("p1")).with_seq(3).leaves(8, 2);
    let order = &decided.state().orders[&order_id("ann")];
    assert_eq!((order.status, order.payment_ref.as_deref()), (OrderStatus::Paid, Some("p1")));
    assert_eq!((order.changed_at, order.voucher_seq), (ENDS.plus(7), 3));
}

#[test]
fn a_repeated_payment_buys_nothing_and_owes_nothing() {
    let once = || sold().given(payment("ann", "p1", 3_998));
    once().when(payment("ann", "p1", 3_998)).then(repeated("ann", OrderStatus::Paid)).with_seq(4).leaves(8, 2);
    once().when(payment("ann", "p1", 1)).then(repeated("ann", OrderStatus::Paid));
    let for_another_order = once().given(order("ben", 2)).when(payment("ben", "p1", 3_998));
    for_another_order.then(repeated("ann", OrderStatus::Paid)).leaves(6, 2);
    let for_no_order = once().when(payment("ben", "p1", 3_998));
    for_no_order.then(repeated("ann", OrderStatus::Paid)).leaves(8, 2);
}

#[test]
fn a_payment_is_remembered_when_its_order_is_cancelled() {
    let log = sold().given(payment("ann", "p1", 3_998)).given(cancel(CancelledBy::Seller));
    log.when(payment("ann", "p1", 3_998)).then(repeated("ann", OrderStatus::Cancelled)).leaves(10, 0);
}

#[test]
fn a_reference_is_unique_within_its_voucher_only() {
    let other = sold().given(payment("ann", "p1", 3_998)).about("winter").given(RequestBody::VoucherPublished(terms()));
    let order_id = order_id_of(&a_voucher("winter"), "ann", "1");
    let ordered = RequestBody::OrderRequested { order_id, user_id: user("ann"), quantity: 1, requested_at: BEGINS };
    let amount = Money::new(1_999, "EUR");
    let pay = RequestBody::PaymentReceived { order_id, payment_ref: "p1".into(), amount, paid_at: BEGINS };
    let decided = other.given(ordered).when(pay).leaves(9, 1);
    assert!(matches!(decided.event().body, EventBody::OrderPaid { .. }));
}

#[test]
fn a_refused_payment_does_not_use_its_reference_up() {
    let log = sold().given(payment("ann", "p1", 3_997));
    log.when(payment("ann", "p1", 3_998)).then(paid("p1"));
}

#[test]
fn a_payment_for_no_order_is_due_back() {
    refused(sold().when(payment("ben", "p1", 1_999)), "ben", RefusalReason::UnknownOrder, 1_999).with_seq(3).leaves(8, 0);
}

#[test]
fn another_amount_is_due_back() {
    for minor in [3_997, 3_999, 1_999, 0, -3_998, i64::MAX, i64::MIN] {
        refused(sold().when(payment("ann", "p1", minor)), "ann", RefusalReason::WrongAmount, minor).leaves(8, 2);
    }
}

#[test]
fn another_currency_is_due_back_and_one_that_is_none_is_not_repeated() {
    let pay = |currency: &str| {
        let (amount, payment_ref) = (Money::new(3_998, currency), "p1".into());
        sold().when(RequestBody::PaymentReceived { order_id: order_id("ann"), payment_ref, amount, paid_at: BEGINS })
    };
    let refused = |due_back| EventBody::RequestRefused {
        kind: RequestKind::PaymentReceived,
        order_id: Some(order_id("ann")),
        reason: RefusalReason::WrongAmount,
        due_back,
    };
    pay("USD").then(refused(Some(Money::new(3_998, "USD"))));
    for none in ["", "eur", "E\0R", "EURO"] {
        pay(none).then(refused(None));
    }
}

/// A rejected order's quantity may be anything, and its price need not fit 64 bits.
#[test]
fn a_payment_of_a_rejected_order_is_due_back() {
    for quantity in [3, -1, i64::MAX, i64::MIN] {
        let decided = sale(terms()).given(order("ann", quantity)).when(payment("ann", "p1", 5_997));
        let reason = if quantity == 3 { RefusalReason::PaymentTooLate } else { RefusalReason::WrongAmount };
        refused(decided, "ann", reason, 5_997).leaves(10, 0);
    }
}

#[test]
fn a_second_payment_is_due_back() {
    let log = sold().given(payment("ann", "p1", 3_998));
    refused(log.when(payment("ann", "p2", 3_998)), "ann", RefusalReason::AlreadyPaid, 3_998).leaves(8, 2);
}

#[test]
fn a_payment_after_the_orders_end_is_due_back() {
    let cancelled = sold().given(cancel(CancelledBy::Buyer));
    refused(cancelled.when(payment("ann", "p1", 3_998)), "ann", RefusalReason::PaymentTooLate, 3_998).leaves(10, 0);
    let paid_and_cancelled = sold().given(payment("ann", "p1", 3_998)).given(cancel(CancelledBy::Seller));
    let again = paid_and_cancelled.when(payment("ann", "p2", 3_998));
    refused(again, "ann", RefusalReason::PaymentTooLate, 3_998).leaves(10, 0);
    let elapsed = RequestBody::PaymentWindowElapsed { order_id: order_id("ann") };
    let expired = sale(terms_with_payment_window()).given(order("ann", 2)).at(ENDS).given(elapsed);
    refused(expired.when(payment("ann", "p1", 3_998)), "ann", RefusalReason::PaymentTooLate, 3_998).leaves(10, 0);
}

#[test]
fn a_late_payment_wins_over_a_timer_that_is_not_in_the_log() {
    let log = sale(terms_with_payment_window()).given(order("ann", 2)).at(Timestamp(9_000_000));
    log.when(payment("ann", "p1", 3_998)).then(paid("p1")).leaves(8, 2);
}

#[test]
fn a_reference_that_no_store_can_hold_is_refused() {
    let long = "p".repeat(257);
    for payment_ref in ["", "a\0b", "a\nb", &long] {
        refused(sold().when(payment("ann", payment_ref, 3_998)), "ann", RefusalReason::Invalid, 3_998).leaves(8, 2);
        let for_no_order = sold().when(payment("ben", payment_ref, 3_998));
        refused(for_no_order, "ben", RefusalReason::Invalid, 3_998).leaves(8, 0);
    }
    sold().when(payment("ann", &long[..256], 3_998)).then(paid(&long[..256]));
}

#[test]
fn an_absurd_clock_of_the_provider_refuses_no_money() {
    let (first, last) = Timestamp::CALENDAR.into_inner();
    for (said, stored) in [(i64::MIN, first), (i64::MAX, last)] {
        let amount = Money::new(3_998, "EUR");
        let (order_id, paid_at) = (order_id("ann"), Timestamp(said));
        let decided = sold().when(RequestBody::PaymentReceived { order_id, payment_ref: "p".into(), amount, paid_at });
        let EventBody::OrderPaid { paid_at, .. } = decided.event().body else { panic!("{:?}", decided.event()) };
        assert_eq!(paid_at, stored);
    }
}

#[test]
fn a_free_voucher_is_paid_with_nothing() {
    let free = Terms { price: Money::new(0, "EUR"), ..terms() };
    let decided = sale(free).given(order("ann", 2)).when(payment("ann", "p1", 0)).leaves(8, 2);
    assert!(matches!(decided.event().body, EventBody::OrderPaid { .. }));
    assert_eq!(decided.state().payments[&(voucher_id(), "p1".to_owned())], order_id("ann"));
}
