//! Requests: what somebody asked for. Nothing is decided yet.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::{Money, OrderId, RequestId, Terms, Timestamp, UserId, VoucherId};

/// One record of `order-requests`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub id: RequestId,
    pub voucher_id: VoucherId,
    /// Who asked: a service or a person, for the audit trail.
    pub actor: String,
    /// Why, in the words of whoever asked.
    pub reason: Option<String>,
    pub body: RequestBody,
}

/// What is asked for. A change of terms names the `terms_version` it was made against, so that a repeat of it is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestBody {
    VoucherPublished(Terms),
    /// `delta` units more (or fewer, where negative).
    StockChanged {
        delta: i64,
        expected_terms_version: i64,
    },
    VoucherPaused {
        expected_terms_version: i64,
    },
    VoucherResumed {
        expected_terms_version: i64,
    },
    VoucherClosed {
        expected_terms_version: i64,
    },
    OrderRequested {
        order_id: OrderId,
        user_id: UserId,
        quantity: i64,
        requested_at: Timestamp,
    },
    CancellationRequested {
        order_id: OrderId,
        by: CancelledBy,
    },
    PaymentReceived {
        order_id: OrderId,
        payment_ref: String,
        amount: Money,
        paid_at: Timestamp,
    },
    PaymentWindowElapsed {
        order_id: OrderId,
    },
}

/// The name of a request's body, and of what a refusal refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RequestKind {
    /// Could not be read.
    Unreadable,
    VoucherPublished,
    StockChanged,
    VoucherPaused,
    VoucherResumed,
    VoucherClosed,
    OrderRequested,
    CancellationRequested,
    PaymentReceived,
    PaymentWindowElapsed,
}

/// Who gives an order up. Only the seller can cancel a paid one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CancelledBy {
    Buyer,
    Seller,
}

impl CancelledBy {
    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl RequestBody {
    pub fn kind(&self) -> RequestKind {
        match self {
            Self::VoucherPublished(_) => RequestKind::VoucherPublished,
            Self::StockChanged { .. } => RequestKind::StockChanged,
            Self::VoucherPaused { .. } => RequestKind::VoucherPaused,
            Self::VoucherResumed { .. } => RequestKind::VoucherResumed,
            Self::VoucherClosed { .. } => RequestKind::VoucherClosed,
            Self::OrderRequested { .. } => RequestKind::OrderRequested,
            Self::CancellationRequested { .. } => RequestKind::CancellationRequested,
            Self::PaymentReceived { .. } => RequestKind::PaymentReceived,
            Self::PaymentWindowElapsed { .. } => RequestKind::PaymentWindowElapsed,
        }
    }

    /// The order this request is about, where there is one.
    pub fn order_id(&self) -> Option<OrderId> {
        match self {
            Self::OrderRequested { order_id, .. }
            | Self::CancellationRequested { order_id, .. }
            | Self::PaymentReceived { order_id, .. }
            | Self::PaymentWindowElapsed { order_id } => Some(*order_id),
            _ => None,
        }
    }
}

/// A record of `order-requests` with where and when the log received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    pub partition: i32,
    pub offset: i64,
    /// The record's LogAppendTime, by the broker's clock.
    pub appended_at: Timestamp,
    /// `None`: the bytes could not be read as a request.
    pub request: Option<Request>,
}
