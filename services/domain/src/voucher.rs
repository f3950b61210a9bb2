//! The voucher: what is on sale, how much of it, to whom and when.

use std::fmt;

use serde::{Deserialize, Serialize};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VoucherState {
    Open,
    Paused,
    /// For good.
    Closed,
}

impl VoucherState {
    /// The word used in tables, keys and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Paused => "paused",
            Self::Closed => "closed",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        [Self::Open, Self::Paused, Self::Closed].into_iter().find(|s| s.as_str() == word)
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
