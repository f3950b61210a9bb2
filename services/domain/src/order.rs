//! The order: one user's claim on some units of one voucher, with exactly one final fate.

use serde::{Deserialize, Serialize};
use strum::{EnumCount, EnumString, IntoStaticStr, VariantArray};

use crate::{OrderId, Timestamp, UserId, VoucherId};

/// Where an order stands. Everything but `Confirmed` is final, save that a paid order can still be cancelled by the seller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, EnumCount, VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OrderStatus {
    Confirmed,
    Rejected,
    Paid,
    Cancelled,
    Expired,
}

impl OrderStatus {
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.first_chunk().unwrap();

    /// Whether an order that stands here claims its units.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Confirmed | Self::Paid)
    }

    /// The word used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub fn parse(word: &str) -> Option<Self> {
        word.parse().ok()
    }
}

/// Why an order was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, EnumCount, VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RejectReason {
    /// The request makes no sense (a quantity below 1, a user id that cannot be stored).
    Invalid,
    /// Reserved outside the sale's window, or later than the log received it.
    NotOnSale,
    Closed,
    LimitReached,
    SoldOut,
}

impl RejectReason {
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.first_chunk().unwrap();

    /// The word used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub fn parse(word: &str) -> Option<Self> {
        word.parse().ok()
    }
}

/// An order as the log has made it: one row of the orders table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub id: OrderId,
    pub voucher_id: VoucherId,
    pub partition: i32,
    pub user_id: UserId,
    pub quantity: i64,
    pub status: OrderStatus,
    /// Set exactly where the status is `Rejected`.
    pub reason: Option<RejectReason>,
    /// When Redis reserved it, by Redis' clock.
    pub requested_at: Timestamp,
    /// When it was confirmed or rejected, by the broker's clock.
    pub decided_at: Timestamp,
    /// When its status last changed, by the broker's clock.
    pub changed_at: Timestamp,
    /// First instant at which a confirmed order may expire; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// The payment that paid it; unique within the voucher.
    pub payment_ref: Option<String>,
    /// `voucher_seq` of its last change.
    pub voucher_seq: i64,
    /// Offset in `order-requests` of the request that made it.
    pub request_offset: i64,
    /// Guards "one unit a user" in the database: 0 where the limit is 1, else the `voucher_seq` of the decision.
    pub slot: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_for_tables_are_read_as_they_are_written() {
        let words = ["confirmed", "rejected", "paid", "cancelled", "expired"];
        assert!(OrderStatus::ALL.iter().map(|status| status.as_str()).eq(words));
        assert!(words.into_iter().filter_map(OrderStatus::parse).eq(OrderStatus::ALL.iter().copied()));
        assert_eq!(["", "Paid", "unknown"].map(OrderStatus::parse), [None; 3]);
        let words = ["invalid", "not_on_sale", "closed", "limit_reached", "sold_out"];
        assert!(RejectReason::ALL.iter().map(|reason| reason.as_str()).eq(words));
        assert!(words.into_iter().filter_map(RejectReason::parse).eq(RejectReason::ALL.iter().copied()));
        assert_eq!(["", "soldout"].map(RejectReason::parse), [None; 2]);
    }

    #[test]
    fn only_confirmed_and_paid_orders_claim_their_units() {
        let live = OrderStatus::ALL.iter().copied().filter(|status| status.is_live());
        assert_eq!(live.collect::<Vec<_>>(), [OrderStatus::Confirmed, OrderStatus::Paid]);
    }
}
