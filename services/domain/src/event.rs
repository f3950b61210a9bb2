//! Events: what was decided. Facts, never taken back.

use serde::{Deserialize, Serialize};
use strum::{EnumCount, IntoStaticStr, VariantArray};

use crate::{
    CancelledBy, Money, OrderId, OrderStatus, RejectReason, RequestId, RequestKind, Terms, Timestamp, UserId, VoucherId,
    VoucherState,
};

/// One record of `order-events`: the answer to exactly one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// `None` only where the request could not be read.
    pub voucher_id: Option<VoucherId>,
    /// 1, 2, 3, ... per voucher without gaps; 0 where no lane may sequence the request.
    pub voucher_seq: i64,
    /// Partition of both topics.
    pub partition: i32,
    /// Offset in `order-requests` of the request this answers.
    pub request_offset: i64,
    /// Nil where the request could not be read.
    pub request_id: RequestId,
    /// The request's LogAppendTime.
    pub decided_at: Timestamp,
    /// Version of the rules that decided.
    pub rules_version: i32,
    /// Units that no live order claims, after this event; 0 with seq 0.
    pub remaining: i64,
    /// Units the buyer in question holds after this event; 0 where the event is about no buyer.
    pub held: i64,
    pub body: EventBody,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
pub enum EventBody {
    VoucherOpened(Terms),
    VoucherChanged {
        state: VoucherState,
        total: i64,
        terms_version: i64,
    },
    OrderConfirmed {
        order_id: OrderId,
        user_id: UserId,
        quantity: i64,
        requested_at: Timestamp,
        /// Decided_at plus the voucher's payment window.
        expires_at: Option<Timestamp>,
        slot: i64,
    },
    OrderRejected {
        order_id: OrderId,
        user_id: UserId,
        quantity: i64,
        requested_at: Timestamp,
        reason: RejectReason,
    },
    OrderPaid {
        order_id: OrderId,
        user_id: UserId,
        quantity: i64,
        payment_ref: String,
        amount: Money,
        paid_at: Timestamp,
    },
    OrderCancelled {
        order_id: OrderId,
        user_id: UserId,
        quantity: i64,
        by: CancelledBy,
        /// What the seller owes the buyer: the whole amount where the order was paid.
        due_back: Option<Money>,
    },
    OrderExpired {
        order_id: OrderId,
        user_id: UserId,
        quantity: i64,
    },
    /// The order (or the payment) of this request was decided before.
    RequestRepeated {
        order_id: OrderId,
        user_id: UserId,
        status: OrderStatus,
    },
    RequestRefused {
        kind: RequestKind,
        order_id: Option<OrderId>,
        reason: RefusalReason,
        /// Set where money arrived that buys nothing.
        due_back: Option<Money>,
    },
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, EnumCount, VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RefusalReason {
    Unreadable,
    UnknownVoucher,
    AlreadyPublished,
    InvalidTerms,
    StaleTerms,
    Closed,
    NoChange,
    BelowSold,
    Invalid,
    UnknownOrder,
    Final,
    WrongAmount,
    AlreadyPaid,
    PaymentTooLate,
    TooEarly,
}

impl RefusalReason {
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.first_chunk().unwrap();

    /// The word used in JSON and metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl EventBody {
    /// The name used in metrics and in the record's `kind`.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// The order this event is about, where there is one.
    pub fn order_id(&self) -> Option<OrderId> {
        match self {
            Self::OrderConfirmed { order_id, .. }
            | Self::OrderRejected { order_id, .. }
            | Self::OrderPaid { order_id, .. }
            | Self::OrderCancelled { order_id, .. }
            | Self::OrderExpired { order_id, .. }
            | Self::RequestRepeated { order_id, .. } => Some(*order_id),
            Self::RequestRefused { order_id, .. } => *order_id,
            Self::VoucherOpened(_) | Self::VoucherChanged { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestBody;
    use crate::testing::{order, order_id, payment, sale, terms};

    /// The name is also the symbol of the record's `kind`, and begins how the event is printed.
    #[test]
    fn an_event_has_the_name_of_its_variant_and_the_order_it_is_about() {
        let elapsed = RequestBody::PaymentWindowElapsed { order_id: order_id("ann") };
        let cancel = RequestBody::CancellationRequested { order_id: order_id("ann"), by: CancelledBy::Seller };
        let paused = RequestBody::VoucherPaused { expected_terms_version: 1 };
        let sold = || sale(terms()).given(order("ann", 1));
        let at_once = || sale(Terms { payment_window_ms: Some(1), ..terms() }).given(order("ann", 1));
        let (ann, ben) = (Some(order_id("ann")), Some(order_id("ben")));
        let decided = [
            (crate::testing::nothing().when(RequestBody::VoucherPublished(terms())), "VoucherOpened", None),
            (sold().when(paused), "VoucherChanged", None),
            (sold().when(order("ben", 1)), "OrderConfirmed", ben),
            (sold().when(order("ben", 3)), "OrderRejected", ben),
            (sold().when(payment("ann", "p1", 1_999)), "OrderPaid", ann),
            (sold().when(cancel), "OrderCancelled", ann),
            (at_once().at(Timestamp(i64::MAX)).when(elapsed.clone()), "OrderExpired", ann),
            (sold().when(order("ann", 1)), "RequestRepeated", ann),
            (sold().when(elapsed), "RequestRefused", ann),
            (sold().when_unreadable(), "RequestRefused", None),
        ];
        for (decided, name, order) in decided {
            let body = &decided.event().body;
            assert_eq!((body.name(), body.order_id()), (name, order));
            assert!(format!("{body:?}").starts_with(name), "{body:?}");
        }
    }
}
