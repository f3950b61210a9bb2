//! The voucher: what is on sale, how much of it, to whom and when.

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

use crate::VoucherId;

/// An instant in milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z and 9999-12-31T23:59:59.999Z: between them lies every instant that all stores and readers can write.
    pub const CALENDAR: std::ops::RangeInclusive<Self> = Self(0)..=Self(253_402_300_799_999);

    /// The instant `millis` later (earlier where negative); stays at the ends of the range.
    pub fn plus(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// This instant, or the end of the calendar that is nearest to it.
    pub fn within_calendar(self) -> Self {
        self.clamp(*Self::CALENDAR.start(), *Self::CALENDAR.end())
    }
}

/// An amount in the currency's minor units (cents), never a fraction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Money {
    pub minor: i64,
    /// ISO 4217, three capital letters.
    pub currency: String,
}

impl Money {
    pub fn new(minor: i64, currency: &str) -> Self {
        Self { minor, currency: currency.to_owned() }
    }

    /// `quantity` times this amount, or `None` where it does not fit 64 bits.
    pub fn times(&self, quantity: i64) -> Option<Self> {
        Some(Self { minor: self.minor.checked_mul(quantity)?, currency: self.currency.clone() })
    }

    pub(crate) fn has_valid_currency(&self) -> bool {
        self.currency.len() == 3 && self.currency.bytes().all(|b| b.is_ascii_uppercase())
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} minor units of {}", self.minor, self.currency)
    }
}

/// What a voucher is published with. The pin (its partition) is part of it and never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    pub title: String,
    /// Units in all, 1..=[`crate::MAX_TOTAL`].
    pub total: i64,
    /// Units one user may hold, 1..=total.
    pub per_user_limit: i64,
    /// First instant of the sale.
    pub begins_at: Timestamp,
    /// First instant after the sale.
    pub ends_at: Timestamp,
    /// Of one unit.
    pub price: Money,
    /// Milliseconds a confirmed order may stay unpaid; `None`: for ever.
    pub payment_window_ms: Option<i64>,
    /// The partition of both topics in which this voucher lives.
    pub partition: i32,
}

/// Whether the log lets a voucher be sold. Apart from Redis' gate, which says whether Redis may sell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum VoucherState {
    Open,
    Paused,
    /// For good.
    Closed,
}

impl VoucherState {
    /// The word used in tables, keys and JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub fn parse(word: &str) -> Option<Self> {
        word.parse().ok()
    }
}

/// A voucher as the log has made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voucher {
    pub id: VoucherId,
    /// As published, but `total` follows later changes.
    pub terms: Terms,
    /// Units that no live order claims, 0..=total.
    pub remaining: i64,
    pub state: VoucherState,
    /// 1 at the opening, one more with each change of terms.
    pub terms_version: i64,
    /// `voucher_seq` of its last event.
    pub seq: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_for_tables_are_read_as_they_are_written() {
        let states = [VoucherState::Open, VoucherState::Paused, VoucherState::Closed];
        assert_eq!(states.map(VoucherState::as_str), ["open", "paused", "closed"]);
        assert_eq!(states.map(|state| VoucherState::parse(state.as_str())), states.map(Some));
        assert_eq!(["", "OPEN"].map(VoucherState::parse), [None; 2]);
    }

    #[test]
    fn sums_that_do_not_fit_are_none_or_stay_at_the_end() {
        let price = Money::new(i64::MAX / 2, "EUR");
        assert_eq!(price.times(2), Some(Money::new(i64::MAX - 1, "EUR")));
        assert_eq!(price.times(3), None);
        assert_eq!((Timestamp(5).plus(-7), Timestamp(5).plus(i64::MAX)), (Timestamp(-2), Timestamp(i64::MAX)));
        assert_eq!(Money::new(1_999, "EUR").to_string(), "1999 minor units of EUR");
    }
}
