//! Arbitrary requests and events: every text, number and instant that the domain's types can hold, sensible or not.

use domain::{
    CancelledBy, Event, EventBody, Money, OrderId, OrderStatus, RefusalReason, RejectReason, Request, RequestBody, RequestKind,
    Terms, Timestamp, UserId, VoucherId, VoucherState,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use uuid::Uuid;

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..40).prop_map(|chars| chars.into_iter().collect())
}

fn voucher_id() -> impl Strategy<Value = VoucherId> {
    "[A-Za-z0-9._:-]{1,64}".prop_filter_map("dots alone", |id| VoucherId::parse(&id).ok())
}

fn order_id() -> impl Strategy<Value = OrderId> {
    any::<u128>().prop_map(|bits| OrderId::from_uuid(Uuid::from_u128(bits)))
}

fn user_id() -> impl Strategy<Value = UserId> {
    text().prop_map(UserId::from_log)
}

fn instant() -> impl Strategy<Value = Timestamp> {
    any::<i64>().prop_map(Timestamp)
}

fn money() -> impl Strategy<Value = Money> {
    (any::<i64>(), text()).prop_map(|(minor, currency)| Money { minor, currency })
}

fn cancelled_by() -> impl Strategy<Value = CancelledBy> {
    select(vec![CancelledBy::Buyer, CancelledBy::Seller])
}

fn terms() -> impl Strategy<Value = Terms> {
    let numbers = (any::<i64>(), any::<i64>(), option::of(any::<i64>()), any::<i32>());
    (text(), instant(), instant(), money(), numbers).prop_map(|(title, begins_at, ends_at, price, numbers)| {
        let (total, per_user_limit, payment_window_ms, partition) = numbers;
        Terms { title, total, per_user_limit, begins_at, ends_at, price, payment_window_ms, partition }
    })
}

fn request_body() -> impl Strategy<Value = RequestBody> {
    let version = any::<i64>;
    prop_oneof![
        terms().prop_map(RequestBody::VoucherPublished),
        (any::<i64>(), version())
            .prop_map(|(delta, expected_terms_version)| RequestBody::StockChanged { delta, expected_terms_version }),
        version().prop_map(|expected_terms_version| RequestBody::VoucherPaused { expected_terms_version }),
        version().prop_map(|expected_terms_version| RequestBody::VoucherResumed { expected_terms_version }),
        version().prop_map(|expected_terms_version| RequestBody::VoucherClosed { expected_terms_version }),
        (order_id(), user_id(), any::<i64>(), instant()).prop_map(|(order_id, user_id, quantity, requested_at)| {
            RequestBody::OrderRequested { order_id, user_id, quantity, requested_at }
        }),
        (order_id(), cancelled_by()).prop_map(|(order_id, by)| RequestBody::CancellationRequested { order_id, by }),
        (order_id(), text(), money(), instant()).prop_map(|(order_id, payment_ref, amount, paid_at)| {
            RequestBody::PaymentReceived { order_id, payment_ref, amount, paid_at }
        }),
        order_id().prop_map(|order_id| RequestBody::PaymentWindowElapsed { order_id }),
    ]
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    (any::<u128>(), voucher_id(), text(), option::of(text()), request_body())
        .prop_map(|(id, voucher_id, actor, reason, body)| Request { id: Uuid::from_u128(id), voucher_id, actor, reason, body })
}

fn request_kind() -> impl Strategy<Value = RequestKind> {
    prop_oneof![Just(RequestKind::Unreadable), request_body().prop_map(|body| body.kind())]
}

fn event_body() -> impl Strategy<Value = EventBody> {
    let order = || (order_id(), user_id(), any::<i64>());
    let state = select(vec![VoucherState::Open, VoucherState::Paused, VoucherState::Closed]);
    prop_oneof![
        terms().prop_map(EventBody::VoucherOpened),
        (state, any::<i64>(), any::<i64>()).prop_map(|(state, total, terms_version)| EventBody::VoucherChanged {
            state,
            total,
            terms_version
        }),
        (order(), instant(), option::of(instant()), any::<i64>()).prop_map(|(order, requested_at, expires_at, slot)| {
            let (order_id, user_id, quantity) = order;
            EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at, slot }
        }),
        (order(), instant(), select(&RejectReason::ALL[..])).prop_map(|(order, requested_at, reason)| {
            let (order_id, user_id, quantity) = order;
            EventBody::OrderRejected { order_id, user_id, quantity, requested_at, reason }
        }),
        (order(), text(), money(), instant()).prop_map(|((order_id, user_id, quantity), payment_ref, amount, paid_at)| {
            EventBody::OrderPaid { order_id, user_id, quantity, payment_ref, amount, paid_at }
        }),
        (order(), cancelled_by(), option::of(money())).prop_map(|((order_id, user_id, quantity), by, due_back)| {
            EventBody::OrderCancelled { order_id, user_id, quantity, by, due_back }
        }),
        order().prop_map(|(order_id, user_id, quantity)| EventBody::OrderExpired { order_id, user_id, quantity }),
        (order_id(), user_id(), select(&OrderStatus::ALL[..]))
            .prop_map(|(order_id, user_id, status)| EventBody::RequestRepeated { order_id, user_id, status }),
        (request_kind(), option::of(order_id()), select(&RefusalReason::ALL[..]), option::of(money()))
            .prop_map(|(kind, order_id, reason, due_back)| EventBody::RequestRefused { kind, order_id, reason, due_back }),
    ]
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let numbers = (any::<i64>(), any::<i32>(), any::<i64>(), any::<i32>(), any::<i64>(), any::<i64>());
    (option::of(voucher_id()), any::<u128>(), instant(), numbers, event_body()).prop_map(
        |(voucher_id, id, decided_at, numbers, body)| {
            let (voucher_seq, partition, request_offset, rules_version, remaining, held) = numbers;
            let request_id = Uuid::from_u128(id);
            Event {
                voucher_id,
                voucher_seq,
                partition,
                request_offset,
                request_id,
                decided_at,
                rules_version,
                remaining,
                held,
                body,
            }
        },
    )
}
