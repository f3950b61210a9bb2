//! Every line of the decide table, and the bounds of each.

mod orders;
mod payments;
mod properties;
mod vouchers;

use crate::testing::{PARTITION, nothing, order, order_id, sale, terms, user};
use crate::{EventBody, OrderStatus, RULES_VERSION, RefusalReason, RejectReason, RequestKind, Timestamp};

fn confirmed(name: &str, quantity: i64, slot: i64) -> EventBody {
    let (order_id, user_id, requested_at) = (order_id(name), user(name), crate::testing::BEGINS);
    EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at: None, slot }
}

fn rejected(name: &str, quantity: i64, reason: RejectReason) -> EventBody {
    let (order_id, user_id, requested_at) = (order_id(name), user(name), crate::testing::BEGINS);
    EventBody::OrderRejected { order_id, user_id, quantity, requested_at, reason }
}

fn repeated(name: &str, status: OrderStatus) -> EventBody {
    EventBody::RequestRepeated { order_id: order_id(name), user_id: user(name), status }
}

#[test]
fn an_unreadable_record_is_refused_outside_every_sequence() {
    let decided = sale(terms()).at(Timestamp(1_500_000)).when_unreadable().outside_the_sequence();
    let decided = decided.then_refused(RequestKind::Unreadable, None, RefusalReason::Unreadable);
    let event = decided.event();
    assert_eq!((event.voucher_id.as_ref(), event.request_id.is_nil()), (None, true));
}

#[test]
fn an_event_says_which_request_it_answers_and_when_the_log_received_it() {
    let decided = sale(terms()).at(Timestamp(1_234_567)).when(order("ann", 1));
    let event = decided.event();
    assert_eq!((event.partition, event.request_offset, event.request_id.as_u128()), (PARTITION, 1, 2));
    assert_eq!((event.decided_at, event.rules_version), (Timestamp(1_234_567), RULES_VERSION));
}

#[test]
fn what_is_not_in_the_log_is_no_fact() {
    nothing().when(order("ann", 1)).outside_the_sequence().then_refused(
        RequestKind::OrderRequested,
        Some(order_id("ann")),
        RefusalReason::UnknownVoucher,
    );
}
