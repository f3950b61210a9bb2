//! `OrderRequest`, the record of `order-requests`.

use domain::{Money, OrderId, Request, RequestBody, Terms, Timestamp, UserId};

use super::{Misfit, record, request_id, voucher_id};

record! {
    "OrderRequest" = WireRequest {
        request_id: String,
        voucher_id: String,
        actor: String,
        reason: Option<String>,
    }
    RequestBody {
        voucher_published: VoucherPublished(Terms) {
            title: String,
            total: i64,
            per_user_limit: i64,
            begins_at: Timestamp,
            ends_at: Timestamp,
            price: Money,
            payment_window_ms: Option<i64>,
            partition: i32,
        }
        stock_changed: StockChanged { delta: i64, expected_terms_version: i64 }
        voucher_paused: VoucherPaused { expected_terms_version: i64 }
        voucher_resumed: VoucherResumed { expected_terms_version: i64 }
        voucher_closed: VoucherClosed { expected_terms_version: i64 }
        order_requested: OrderRequested { order_id: OrderId, user_id: UserId, quantity: i64, requested_at: Timestamp }
        cancellation_requested: CancellationRequested { order_id: OrderId, by: domain::CancelledBy }
        payment_received: PaymentReceived { order_id: OrderId, payment_ref: String, amount: Money, paid_at: Timestamp }
        payment_window_elapsed: PaymentWindowElapsed { order_id: OrderId }
    }
}

impl From<&Request> for WireRequest {
    fn from(request: &Request) -> Self {
        let common = Self {
            request_id: request.id.to_string(),
            voucher_id: request.voucher_id.as_str().to_owned(),
            actor: request.actor.clone(),
            reason: request.reason.clone(),
            ..Self::default()
        };
        common.with_body(&request.body)
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
