//! Samples with fixed values: what the golden bytes of every published version must decode to, for as long as the project lives.
//! Never change one; add others beside it.

use domain::{
    CancelledBy, Event, EventBody, Money, OrderId, OrderStatus, RefusalReason, RejectReason, Request, RequestBody, RequestKind,
    Terms, Timestamp, UserId, VoucherId, VoucherState,
};
use uuid::Uuid;

/// The partition in which the samples live.
pub(crate) const PARTITION: i32 = 5;

const REQUEST_ID: Uuid = Uuid::from_u128(0x0198_a2b4_5c6d_4e7f_9123_4567_89ab_cdef);
const ORDER_ID: Uuid = Uuid::from_u128(0x4a5b_6c7d_8e9f_8012_a345_6789_abcd_ef01);
const NOON: Timestamp = Timestamp(1_781_776_800_000);

fn order_id() -> OrderId {
    OrderId::from_uuid(ORDER_ID)
}

fn user_id() -> UserId {
    UserId::from_log("Zoë-9007199254740993".into())
}

fn price() -> Money {
    Money::new(1_999, "EUR")
}

fn terms(payment_window_ms: Option<i64>) -> Terms {
    Terms {
        title: "Dinner for two — 50 % off".into(),
        total: 5_000,
        per_user_limit: 2,
        begins_at: NOON,
        ends_at: NOON.plus(3_600_000),
        price: price(),
        payment_window_ms,
        partition: PARTITION,
    }
}

/// Every kind of request, by the name of its line in the golden files.
pub(crate) fn requests() -> Vec<(&'static str, Request)> {
    let request = |reason: Option<&str>, body| Request {
        id: REQUEST_ID,
        voucher_id: VoucherId::parse("dinner:2026_v1.0-A").unwrap(),
        actor: "purchase".into(),
        reason: reason.map(Into::into),
        body,
    };
    let (order_id, user_id) = (order_id(), user_id());
    let expected_terms_version = 7;
    vec![
        ("VoucherPublished", request(Some("summer"), RequestBody::VoucherPublished(terms(Some(900_000))))),
        ("VoucherPublished/no_payment_window", request(None, RequestBody::VoucherPublished(terms(None)))),
        ("StockChanged", request(Some("fewer"), RequestBody::StockChanged { delta: -250, expected_terms_version })),
        ("VoucherPaused", request(None, RequestBody::VoucherPaused { expected_terms_version })),
        ("VoucherResumed", request(None, RequestBody::VoucherResumed { expected_terms_version })),
        ("VoucherClosed", request(None, RequestBody::VoucherClosed { expected_terms_version })),
        ("OrderRequested", request(None, RequestBody::OrderRequested { order_id, user_id, quantity: 2, requested_at: NOON })),
        ("OrderRequested/nonsense", {
            let user_id = UserId::from_log("a\0b".into());
            request(
                None,
                RequestBody::OrderRequested { order_id, user_id, quantity: i64::MIN, requested_at: Timestamp(i64::MAX) },
            )
        }),
        ("CancellationRequested", request(None, RequestBody::CancellationRequested { order_id, by: CancelledBy::Buyer })),
        ("CancellationRequested/seller", {
            request(Some("rain"), RequestBody::CancellationRequested { order_id, by: CancelledBy::Seller })
        }),
        ("PaymentReceived", {
            let (payment_ref, amount) = ("pay_1".into(), Money::new(3_998, "EUR"));
            request(None, RequestBody::PaymentReceived { order_id, payment_ref, amount, paid_at: NOON.plus(1) })
        }),
        ("PaymentWindowElapsed", request(None, RequestBody::PaymentWindowElapsed { order_id })),
    ]
}

/// Every kind of event, by the name of its line in the golden files.
pub(crate) fn events() -> Vec<(&'static str, Event)> {
    let event = |voucher_seq, held, body| Event {
        voucher_id: Some(VoucherId::parse("dinner:2026_v1.0-A").unwrap()),
        voucher_seq,
        partition: PARTITION,
        request_offset: 9_007_199_254_740_993,
        request_id: REQUEST_ID,
        decided_at: NOON.plus(12),
        rules_version: 1,
        remaining: 4_998,
        held,
        body,
    };
    let (order_id, user_id, quantity, requested_at) = (order_id(), user_id(), 2, NOON);
    let status = OrderStatus::Paid;
    let due_back = Some(Money::new(3_998, "EUR"));
    let refused =
        |order_id, reason, due_back| EventBody::RequestRefused { kind: RequestKind::PaymentReceived, order_id, reason, due_back };
    let mut samples = vec![
        ("VoucherOpened", event(1, 0, EventBody::VoucherOpened(terms(Some(900_000))))),
        ("VoucherChanged", {
            event(2, 0, EventBody::VoucherChanged { state: VoucherState::Paused, total: 4_750, terms_version: 8 })
        }),
        ("OrderConfirmed", {
            let (user_id, expires_at) = (user_id.clone(), Some(NOON.plus(900_012)));
            event(3, 2, EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at, slot: 3 })
        }),
        ("OrderConfirmed/never_expires", {
            let user_id = user_id.clone();
            event(3, 2, EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at: None, slot: 0 })
        }),
        ("OrderPaid", {
            let (user_id, payment_ref, amount) = (user_id.clone(), "pay_1".into(), Money::new(3_998, "EUR"));
            event(5, 2, EventBody::OrderPaid { order_id, user_id, quantity, payment_ref, amount, paid_at: NOON.plus(1) })
        }),
        ("OrderCancelled", {
            let (user_id, by) = (user_id.clone(), CancelledBy::Seller);
            event(6, 0, EventBody::OrderCancelled { order_id, user_id, quantity, by, due_back: due_back.clone() })
        }),
        ("OrderExpired", event(7, 0, EventBody::OrderExpired { order_id, user_id: user_id.clone(), quantity })),
        ("RequestRepeated", event(8, 2, EventBody::RequestRepeated { order_id, user_id: user_id.clone(), status })),
        ("RequestRefused/due_back", event(9, 2, refused(Some(order_id), RefusalReason::WrongAmount, due_back))),
        ("RequestRefused/unreadable", {
            let (kind, reason) = (RequestKind::Unreadable, RefusalReason::Unreadable);
            let body = EventBody::RequestRefused { kind, order_id: None, reason, due_back: None };
            Event { voucher_id: None, request_id: Uuid::nil(), remaining: 0, ..event(0, 0, body) }
        }),
    ];
    for (name, reason) in [
        ("OrderRejected/invalid", RejectReason::Invalid),
        ("OrderRejected/not_on_sale", RejectReason::NotOnSale),
        ("OrderRejected/closed", RejectReason::Closed),
        ("OrderRejected/limit_reached", RejectReason::LimitReached),
        ("OrderRejected/sold_out", RejectReason::SoldOut),
    ] {
        let body = EventBody::OrderRejected { order_id, user_id: user_id.clone(), quantity, requested_at, reason };
        samples.push((name, event(4, 0, body)));
    }
    samples
}
