//! `OrderEvent`, the record of `order-events`.

use domain::{Event, EventBody, UserId};
use serde::{Deserialize, Serialize};

use super::{
    CancelledBy, Misfit, RequestKind, WireMoney, body, instant, one_body, order_id, request_id, symbols, terms, voucher_id,
};

/// Names the body of an event; the domain has no such enum of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    #[serde(rename = "UNKNOWN")]
    Unknown,
    VoucherOpened,
    VoucherChanged,
    OrderConfirmed,
    OrderRejected,
    OrderPaid,
    OrderCancelled,
    OrderExpired,
    RequestRepeated,
    RequestRefused,
}

symbols! {
    VoucherState for domain::VoucherState { "OPEN" = Open, "PAUSED" = Paused, "CLOSED" = Closed }
}

symbols! {
    OrderStatus for domain::OrderStatus {
        "CONFIRMED" = Confirmed,
        "REJECTED" = Rejected,
        "PAID" = Paid,
        "CANCELLED" = Cancelled,
        "EXPIRED" = Expired,
    }
}

symbols! {
    RejectReason for domain::RejectReason {
        "INVALID" = Invalid,
        "NOT_ON_SALE" = NotOnSale,
        "CLOSED" = Closed,
        "LIMIT_REACHED" = LimitReached,
        "SOLD_OUT" = SoldOut,
    }
}

symbols! {
    RefusalReason for domain::RefusalReason {
        "UNREADABLE" = Unreadable,
        "UNKNOWN_VOUCHER" = UnknownVoucher,
        "ALREADY_PUBLISHED" = AlreadyPublished,
        "INVALID_TERMS" = InvalidTerms,
        "STALE_TERMS" = StaleTerms,
        "CLOSED" = Closed,
        "NO_CHANGE" = NoChange,
        "BELOW_SOLD" = BelowSold,
        "INVALID" = Invalid,
        "UNKNOWN_ORDER" = UnknownOrder,
        "FINAL" = Final,
        "WRONG_AMOUNT" = WrongAmount,
        "ALREADY_PAID" = AlreadyPaid,
        "PAYMENT_TOO_LATE" = PaymentTooLate,
        "TOO_EARLY" = TooEarly,
    }
}

terms!(VoucherOpened);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct VoucherChanged {
    state: VoucherState,
    total: i64,
    terms_version: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OrderConfirmed {
    order_id: String,
    user_id: String,
    quantity: i64,
    requested_at: i64,
    expires_at: Option<i64>,
    slot: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OrderRejected {
    order_id: String,
    user_id: String,
    quantity: i64,
    requested_at: i64,
    reason: RejectReason,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OrderPaid {
    order_id: String,
    user_id: String,
    quantity: i64,
    payment_ref: String,
    amount: WireMoney,
    paid_at: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OrderCancelled {
    order_id: String,
    user_id: String,
    quantity: i64,
    by: CancelledBy,
    due_back: Option<WireMoney>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OrderExpired {
    order_id: String,
    user_id: String,
    quantity: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RequestRepeated {
    order_id: String,
    user_id: String,
    status: OrderStatus,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RequestRefused {
    request_kind: RequestKind,
    order_id: Option<String>,
    reason: RefusalReason,
    due_back: Option<WireMoney>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename = "OrderEvent")]
pub(crate) struct WireEvent {
    voucher_id: String,
    voucher_seq: i64,
    request_offset: i64,
    request_id: String,
    decided_at: i64,
    rules_version: i32,
    remaining: i64,
    held: i64,
    kind: Kind,
    voucher_opened: Option<VoucherOpened>,
    voucher_changed: Option<VoucherChanged>,
    order_confirmed: Option<OrderConfirmed>,
    order_rejected: Option<OrderRejected>,
    order_paid: Option<OrderPaid>,
    order_cancelled: Option<OrderCancelled>,
    order_expired: Option<OrderExpired>,
    request_repeated: Option<RequestRepeated>,
    request_refused: Option<RequestRefused>,
}

impl From<&Event> for WireEvent {
    fn from(event: &Event) -> Self {
        let mut wire = Self {
            voucher_id: event.voucher_id.as_ref().map_or(String::new(), |id| id.as_str().to_owned()),
            voucher_seq: event.voucher_seq,
            request_offset: event.request_offset,
            request_id: event.request_id.to_string(),
            decided_at: event.decided_at.0,
            rules_version: event.rules_version,
            remaining: event.remaining,
            held: event.held,
            kind: Kind::Unknown,
            voucher_opened: None,
            voucher_changed: None,
            order_confirmed: None,
            order_rejected: None,
            order_paid: None,
            order_cancelled: None,
            order_expired: None,
            request_repeated: None,
            request_refused: None,
        };
        wire.set_body(&event.body);
        wire
    }
}

impl WireEvent {
    fn set_body(&mut self, body: &EventBody) {
        let text = |user: &UserId| user.as_str().to_owned();
        self.kind = match body {
            EventBody::VoucherOpened(terms) => {
                self.voucher_opened = Some(terms.into());
                Kind::VoucherOpened
            }
            &EventBody::VoucherChanged { state, total, terms_version } => {
                self.voucher_changed = Some(VoucherChanged { state: state.into(), total, terms_version });
                Kind::VoucherChanged
            }
            EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at, slot } => {
                self.order_confirmed = Some(OrderConfirmed {
                    order_id: order_id.to_string(),
                    user_id: text(user_id),
                    quantity: *quantity,
                    requested_at: requested_at.0,
                    expires_at: expires_at.map(|at| at.0),
                    slot: *slot,
                });
                Kind::OrderConfirmed
            }
            EventBody::OrderRejected { order_id, user_id, quantity, requested_at, reason } => {
                self.order_rejected = Some(OrderRejected {
                    order_id: order_id.to_string(),
                    user_id: text(user_id),
                    quantity: *quantity,
                    requested_at: requested_at.0,
                    reason: (*reason).into(),
                });
                Kind::OrderRejected
            }
            EventBody::OrderPaid { order_id, user_id, quantity, payment_ref, amount, paid_at } => {
                self.order_paid = Some(OrderPaid {
                    order_id: order_id.to_string(),
                    user_id: text(user_id),
                    quantity: *quantity,
                    payment_ref: payment_ref.clone(),
                    amount: amount.into(),
                    paid_at: paid_at.0,
                });
                Kind::OrderPaid
            }
            EventBody::OrderCancelled { order_id, user_id, quantity, by, due_back } => {
                self.order_cancelled = Some(OrderCancelled {
                    order_id: order_id.to_string(),
                    user_id: text(user_id),
                    quantity: *quantity,
                    by: (*by).into(),
                    due_back: due_back.as_ref().map(Into::into),
                });
                Kind::OrderCancelled
            }
            EventBody::OrderExpired { order_id, user_id, quantity } => {
                self.order_expired =
                    Some(OrderExpired { order_id: order_id.to_string(), user_id: text(user_id), quantity: *quantity });
                Kind::OrderExpired
            }
            EventBody::RequestRepeated { order_id, user_id, status } => {
                self.request_repeated =
                    Some(RequestRepeated { order_id: order_id.to_string(), user_id: text(user_id), status: (*status).into() });
                Kind::RequestRepeated
            }
            EventBody::RequestRefused { kind, order_id, reason, due_back } => {
                self.request_refused = Some(RequestRefused {
                    request_kind: (*kind).into(),
                    order_id: order_id.as_ref().map(ToString::to_string),
                    reason: (*reason).into(),
                    due_back: due_back.as_ref().map(Into::into),
                });
                Kind::RequestRefused
            }
        };
    }

    /// The event, which was found in `partition`.
    pub(crate) fn into_event(self, partition: i32) -> Result<Event, Misfit> {
        Ok(Event {
            voucher_id: if self.voucher_id.is_empty() { None } else { Some(voucher_id(&self.voucher_id)?) },
            voucher_seq: self.voucher_seq,
            partition,
            request_offset: self.request_offset,
            request_id: request_id(&self.request_id)?,
            decided_at: instant(self.decided_at),
            rules_version: self.rules_version,
            remaining: self.remaining,
            held: self.held,
            body: self.into_body()?,
        })
    }

    fn bodies(&self) -> usize {
        [
            self.voucher_opened.is_some(),
            self.voucher_changed.is_some(),
            self.order_confirmed.is_some(),
            self.order_rejected.is_some(),
            self.order_paid.is_some(),
            self.order_cancelled.is_some(),
            self.order_expired.is_some(),
            self.request_repeated.is_some(),
            self.request_refused.is_some(),
        ]
        .into_iter()
        .filter(|set| *set)
        .count()
    }

    fn into_body(self) -> Result<EventBody, Misfit> {
        // Before the bodies are counted: a newer kind comes with a body that this version does not see.
        if self.kind == Kind::Unknown {
            return Err(Misfit::UnknownSymbol("kind"));
        }
        one_body(self.bodies())?;
        Ok(match self.kind {
            Kind::Unknown => return Err(Misfit::UnknownSymbol("kind")),
            Kind::VoucherOpened => EventBody::VoucherOpened(body(self.voucher_opened, "VoucherOpened")?.into()),
            Kind::VoucherChanged => {
                let VoucherChanged { state, total, terms_version } = body(self.voucher_changed, "VoucherChanged")?;
                EventBody::VoucherChanged { state: state.try_into()?, total, terms_version }
            }
            Kind::OrderConfirmed => {
                let b = body(self.order_confirmed, "OrderConfirmed")?;
                EventBody::OrderConfirmed {
                    order_id: order_id(&b.order_id)?,
                    user_id: UserId::from_log(b.user_id),
                    quantity: b.quantity,
                    requested_at: instant(b.requested_at),
                    expires_at: b.expires_at.map(instant),
                    slot: b.slot,
                }
            }
            Kind::OrderRejected => {
                let b = body(self.order_rejected, "OrderRejected")?;
                EventBody::OrderRejected {
                    order_id: order_id(&b.order_id)?,
                    user_id: UserId::from_log(b.user_id),
                    quantity: b.quantity,
                    requested_at: instant(b.requested_at),
                    reason: b.reason.try_into()?,
                }
            }
            Kind::OrderPaid => {
                let b = body(self.order_paid, "OrderPaid")?;
                EventBody::OrderPaid {
                    order_id: order_id(&b.order_id)?,
                    user_id: UserId::from_log(b.user_id),
                    quantity: b.quantity,
                    payment_ref: b.payment_ref,
                    amount: b.amount.into(),
                    paid_at: instant(b.paid_at),
                }
            }
            Kind::OrderCancelled => {
                let b = body(self.order_cancelled, "OrderCancelled")?;
                EventBody::OrderCancelled {
                    order_id: order_id(&b.order_id)?,
                    user_id: UserId::from_log(b.user_id),
                    quantity: b.quantity,
                    by: b.by.try_into()?,
                    due_back: b.due_back.map(Into::into),
                }
            }
            Kind::OrderExpired => {
                let b = body(self.order_expired, "OrderExpired")?;
                EventBody::OrderExpired {
                    order_id: order_id(&b.order_id)?,
                    user_id: UserId::from_log(b.user_id),
                    quantity: b.quantity,
                }
            }
            Kind::RequestRepeated => {
                let b = body(self.request_repeated, "RequestRepeated")?;
                EventBody::RequestRepeated {
                    order_id: order_id(&b.order_id)?,
                    user_id: UserId::from_log(b.user_id),
                    status: b.status.try_into()?,
                }
            }
            Kind::RequestRefused => {
                let b = body(self.request_refused, "RequestRefused")?;
                EventBody::RequestRefused {
                    kind: b.request_kind.try_into()?,
                    order_id: b.order_id.as_deref().map(order_id).transpose()?,
                    reason: b.reason.try_into()?,
                    due_back: b.due_back.map(Into::into),
                }
            }
        })
    }
}
