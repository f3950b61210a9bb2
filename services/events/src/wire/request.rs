//! `OrderRequest`, the record of `order-requests`.

use domain::{Request, RequestBody, UserId};
use serde::{Deserialize, Serialize};

use super::{CancelledBy, Misfit, RequestKind, WireMoney, body, instant, one_body, order_id, request_id, terms, voucher_id};

terms!(VoucherPublished);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StockChanged {
    delta: i64,
    expected_terms_version: i64,
}

/// A change of terms that says nothing but what it was made against; three records have this form.
macro_rules! guarded {
    ($($record:ident),+) => {
        $(
            #[derive(Clone, Debug, Serialize, Deserialize)]
            struct $record {
                expected_terms_version: i64,
            }
        )+
    };
}
guarded!(VoucherPaused, VoucherResumed, VoucherClosed);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OrderRequested {
    order_id: String,
    user_id: String,
    quantity: i64,
    requested_at: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct CancellationRequested {
    order_id: String,
    by: CancelledBy,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PaymentReceived {
    order_id: String,
    payment_ref: String,
    amount: WireMoney,
    paid_at: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PaymentWindowElapsed {
    order_id: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename = "OrderRequest")]
pub(crate) struct WireRequest {
    request_id: String,
    voucher_id: String,
    kind: RequestKind,
    actor: String,
    reason: Option<String>,
    voucher_published: Option<VoucherPublished>,
    stock_changed: Option<StockChanged>,
    voucher_paused: Option<VoucherPaused>,
    voucher_resumed: Option<VoucherResumed>,
    voucher_closed: Option<VoucherClosed>,
    order_requested: Option<OrderRequested>,
    cancellation_requested: Option<CancellationRequested>,
    payment_received: Option<PaymentReceived>,
    payment_window_elapsed: Option<PaymentWindowElapsed>,
}

impl From<&Request> for WireRequest {
    fn from(request: &Request) -> Self {
        let mut wire = Self {
            request_id: request.id.to_string(),
            voucher_id: request.voucher_id.as_str().to_owned(),
            kind: request.body.kind().into(),
            actor: request.actor.clone(),
            reason: request.reason.clone(),
            voucher_published: None,
            stock_changed: None,
            voucher_paused: None,
            voucher_resumed: None,
            voucher_closed: None,
            order_requested: None,
            cancellation_requested: None,
            payment_received: None,
            payment_window_elapsed: None,
        };
        match &request.body {
            RequestBody::VoucherPublished(terms) => wire.voucher_published = Some(terms.into()),
            RequestBody::StockChanged { delta, expected_terms_version } => {
                wire.stock_changed = Some(StockChanged { delta: *delta, expected_terms_version: *expected_terms_version });
            }
            RequestBody::VoucherPaused { expected_terms_version } => {
                wire.voucher_paused = Some(VoucherPaused { expected_terms_version: *expected_terms_version });
            }
            RequestBody::VoucherResumed { expected_terms_version } => {
                wire.voucher_resumed = Some(VoucherResumed { expected_terms_version: *expected_terms_version });
            }
            RequestBody::VoucherClosed { expected_terms_version } => {
                wire.voucher_closed = Some(VoucherClosed { expected_terms_version: *expected_terms_version });
            }
            RequestBody::OrderRequested { order_id, user_id, quantity, requested_at } => {
                wire.order_requested = Some(OrderRequested {
                    order_id: order_id.to_string(),
                    user_id: user_id.as_str().to_owned(),
                    quantity: *quantity,
                    requested_at: requested_at.0,
                });
            }
            RequestBody::CancellationRequested { order_id, by } => {
                wire.cancellation_requested = Some(CancellationRequested { order_id: order_id.to_string(), by: (*by).into() });
            }
            RequestBody::PaymentReceived { order_id, payment_ref, amount, paid_at } => {
                wire.payment_received = Some(PaymentReceived {
                    order_id: order_id.to_string(),
                    payment_ref: payment_ref.clone(),
                    amount: amount.into(),
                    paid_at: paid_at.0,
                });
            }
            RequestBody::PaymentWindowElapsed { order_id } => {
                wire.payment_window_elapsed = Some(PaymentWindowElapsed { order_id: order_id.to_string() });
            }
        }
        wire
    }
}

impl TryFrom<WireRequest> for Request {
    type Error = Misfit;

    fn try_from(wire: WireRequest) -> Result<Self, Misfit> {
        Ok(Self {
            id: request_id(&wire.request_id)?,
            voucher_id: voucher_id(&wire.voucher_id)?,
            actor: wire.actor.clone(),
            reason: wire.reason.clone(),
            body: wire.into_body()?,
        })
    }
}

impl WireRequest {
    fn bodies(&self) -> usize {
        [
            self.voucher_published.is_some(),
            self.stock_changed.is_some(),
            self.voucher_paused.is_some(),
            self.voucher_resumed.is_some(),
            self.voucher_closed.is_some(),
            self.order_requested.is_some(),
            self.cancellation_requested.is_some(),
            self.payment_received.is_some(),
            self.payment_window_elapsed.is_some(),
        ]
        .into_iter()
        .filter(|set| *set)
        .count()
    }

    fn into_body(self) -> Result<RequestBody, Misfit> {
        // Before the bodies are counted: a newer kind comes with a body that this version does not see.
        let kind = domain::RequestKind::try_from(self.kind)?;
        one_body(self.bodies())?;
        Ok(match kind {
            domain::RequestKind::Unreadable => {
                return Err(Misfit::Invalid("kind is Unreadable, which nobody can ask for".into()));
            }
            domain::RequestKind::VoucherPublished => {
                RequestBody::VoucherPublished(body(self.voucher_published, "VoucherPublished")?.into())
            }
            domain::RequestKind::StockChanged => {
                let StockChanged { delta, expected_terms_version } = body(self.stock_changed, "StockChanged")?;
                RequestBody::StockChanged { delta, expected_terms_version }
            }
            domain::RequestKind::VoucherPaused => {
                let VoucherPaused { expected_terms_version } = body(self.voucher_paused, "VoucherPaused")?;
                RequestBody::VoucherPaused { expected_terms_version }
            }
            domain::RequestKind::VoucherResumed => {
                let VoucherResumed { expected_terms_version } = body(self.voucher_resumed, "VoucherResumed")?;
                RequestBody::VoucherResumed { expected_terms_version }
            }
            domain::RequestKind::VoucherClosed => {
                let VoucherClosed { expected_terms_version } = body(self.voucher_closed, "VoucherClosed")?;
                RequestBody::VoucherClosed { expected_terms_version }
            }
            domain::RequestKind::OrderRequested => {
                let b = body(self.order_requested, "OrderRequested")?;
                RequestBody::OrderRequested {
                    order_id: order_id(&b.order_id)?,
                    user_id: UserId::from_log(b.user_id),
                    quantity: b.quantity,
                    requested_at: instant(b.requested_at),
                }
            }
            domain::RequestKind::CancellationRequested => {
                let b = body(self.cancellation_requested, "CancellationRequested")?;
                RequestBody::CancellationRequested { order_id: order_id(&b.order_id)?, by: b.by.try_into()? }
            }
            domain::RequestKind::PaymentReceived => {
                let b = body(self.payment_received, "PaymentReceived")?;
                RequestBody::PaymentReceived {
                    order_id: order_id(&b.order_id)?,
                    payment_ref: b.payment_ref,
                    amount: b.amount.into(),
                    paid_at: instant(b.paid_at),
                }
            }
            domain::RequestKind::PaymentWindowElapsed => {
                let b = body(self.payment_window_elapsed, "PaymentWindowElapsed")?;
                RequestBody::PaymentWindowElapsed { order_id: order_id(&b.order_id)? }
            }
        })
    }
}
