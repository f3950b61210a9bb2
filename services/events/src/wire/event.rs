//! `OrderEvent`, the record of `order-events`.

use domain::{Event, EventBody, Money, OrderId, Terms, Timestamp, UserId};

use super::{Misfit, record, request_id, symbols, voucher_id};

symbols! { VoucherState in "SCREAMING_SNAKE_CASE": Open, Paused, Closed }
symbols! { OrderStatus in "SCREAMING_SNAKE_CASE": Confirmed, Rejected, Paid, Cancelled, Expired }
symbols! { RejectReason in "SCREAMING_SNAKE_CASE": Invalid, NotOnSale, Closed, LimitReached, SoldOut }
symbols! {
    RefusalReason in "SCREAMING_SNAKE_CASE":
    Unreadable, UnknownVoucher, AlreadyPublished, InvalidTerms, StaleTerms, Closed, NoChange, BelowSold,
    Invalid, UnknownOrder, Final, WrongAmount, AlreadyPaid, PaymentTooLate, TooEarly,
}
symbols! {
    RequestKind in "PascalCase":
    VoucherPublished, StockChanged, VoucherPaused, VoucherResumed, VoucherClosed,
    OrderRequested, CancellationRequested, PaymentReceived, PaymentWindowElapsed, Unreadable,
}

record! {
    "OrderEvent" = WireEvent {
        voucher_id: String,
        voucher_seq: i64,
        request_offset: i64,
        request_id: String,
        decided_at: Timestamp,
        rules_version: i32,
        remaining: i64,
        held: i64,
    }
    EventBody {
        voucher_opened: VoucherOpened(Terms) {
            title: String,
            total: i64,
            per_user_limit: i64,
            begins_at: Timestamp,
            ends_at: Timestamp,
            price: Money,
            payment_window_ms: Option<i64>,
            partition: i32,
        }
        voucher_changed: VoucherChanged { state: domain::VoucherState, total: i64, terms_version: i64 }
        order_confirmed: OrderConfirmed {
            order_id: OrderId,
            user_id: UserId,
            quantity: i64,
            requested_at: Timestamp,
            expires_at: Option<Timestamp>,
            slot: i64,
        }
        order_rejected: OrderRejected {
            order_id: OrderId,
            user_id: UserId,
            quantity: i64,
            requested_at: Timestamp,
            reason: domain::RejectReason,
        }
        order_paid: OrderPaid {
            order_id: OrderId,
            user_id: UserId,
            quantity: i64,
            payment_ref: String,
            amount: Money,
            paid_at: Timestamp,
        }
        order_cancelled: OrderCancelled {
            order_id: OrderId,
            user_id: UserId,
            quantity: i64,
            by: domain::CancelledBy,
            due_back: Option<Money>,
        }
        order_expired: OrderExpired { order_id: OrderId, user_id: UserId, quantity: i64 }
        request_repeated: RequestRepeated { order_id: OrderId, user_id: UserId, status: domain::OrderStatus }
        request_refused: RequestRefused {
            #[serde(rename = "request_kind")]
            kind: domain::RequestKind,
            order_id: Option<OrderId>,
            reason: domain::RefusalReason,
            due_back: Option<Money>,
        }
    }
}

impl From<&Event> for WireEvent {
    fn from(event: &Event) -> Self {
        let common = Self {
            voucher_id: event.voucher_id.as_ref().map_or(String::new(), |id| id.as_str().to_owned()),
            voucher_seq: event.voucher_seq,
            request_offset: event.request_offset,
            request_id: event.request_id.to_string(),
            decided_at: event.decided_at,
            rules_version: event.rules_version,
            remaining: event.remaining,
            held: event.held,
            ..Self::default()
        };
        common.with_body(&event.body)
    }
}

impl WireEvent {
    /// The event, which was found in `partition`.
    pub(crate) fn into_event(self, partition: i32) -> Result<Event, Misfit> {
        Ok(Event {
            voucher_id: if self.voucher_id.is_empty() { None } else { Some(voucher_id(&self.voucher_id)?) },
            voucher_seq: self.voucher_seq,
            partition,
            request_offset: self.request_offset,
            request_id: request_id(&self.request_id)?,
            decided_at: self.decided_at,
            rules_version: self.rules_version,
            remaining: self.remaining,
            held: self.held,
            body: self.into_body()?,
        })
    }
}
