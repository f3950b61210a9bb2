//! Redis: the keys of a voucher, the five scripts and what they answer. The scripts' contracts stand at the head of each file in `lua/`.
//!
//! Redis is fast and never trusted: a lost answer is an unknown outcome, a lost or damaged voucher is built anew from the log.

mod connection;
mod keys;
mod place;
mod scripts;
mod server;
mod store;

use domain::{OrderId, Timestamp, UserId, VoucherId, VoucherState};

pub use store::{Patience, Store};

/// Why Redis gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer in time, or the connection broke: the script may have run. Every call here can be repeated safely.
    #[error("Redis did not answer: {0}")]
    Unknown(String),
    /// Redis cannot be reached or answered that it cannot (loading, read-only replica, out of memory): this call changed nothing.
    #[error("Redis cannot serve: {0}")]
    Unavailable(String),
    /// A key of the voucher has a wrong type or content: this call changed nothing; the voucher needs a reset (`Store::raise_fence`).
    #[error("voucher {voucher} is damaged in Redis: {problem}")]
    Damaged { voucher: VoucherId, problem: String },
    /// The server is not fit for this job (too old, evicts keys).
    #[error("Redis at {url}: {problem}")]
    Unfit { url: String, problem: String },
}

/// Whether Redis may sell a voucher now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Gate {
    Ready,
    /// Being rebuilt.
    Warming,
    /// Found wrong; a reset makes it warming, and `doorbuster voucher thaw` asks for one.
    Frozen,
}

impl Gate {
    /// The word used in keys and JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What reserve.lua answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Units are taken; `held` is what the user held before.
    Reserved {
        requested_at: Timestamp,
        partition: i32,
        held: i64,
    },
    /// This order id is in flight already, with this quantity since this instant.
    Same {
        quantity: i64,
        requested_at: Timestamp,
        partition: i32,
    },
    /// This order id is in flight with another quantity; nothing was changed.
    OtherQuantity {
        quantity: i64,
    },
    UnknownVoucher,
    /// The gate is warming or frozen.
    NotReady {
        gate: Gate,
    },
    /// Refused; `held` is what the user holds (look his order up where it is above 0).
    Refused {
        refusal: Refusal,
        held: i64,
    },
}

/// Why the gate refuses a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NotStarted { begins_at: Timestamp, now: Timestamp },
    Ended,
    Paused,
    Closed,
    LimitReached,
    SoldOut,
}

/// What settle.lua answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    Applied,
    /// Applied before; `seq` is where Redis stands.
    Skip {
        seq: i64,
    },
    /// Events are missing between Redis' `seq` and this one.
    Gap {
        seq: i64,
    },
    UnknownVoucher,
}

/// One voucher's hash as Redis has it. With `seq` 0 nothing of the log is in it: its terms say nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoucherInRedis {
    pub state: VoucherState,
    pub gate: Gate,
    pub epoch: String,
    /// `rebuild redis` was asked for.
    pub rebuild: bool,
    pub title: String,
    pub total: i64,
    pub stock: i64,
    pub reserved: i64,
    pub sold: i64,
    pub per_user_limit: i64,
    pub begins_at: Timestamp,
    pub ends_at: Timestamp,
    pub price: domain::Money,
    pub partition: i32,
    /// Of the last settled event, 0: none.
    pub seq: i64,
    /// In `order-events`, of the last settled event; `None`: none.
    pub offset: Option<i64>,
}

/// One reservation in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub order_id: OrderId,
    pub user_id: UserId,
    pub quantity: i64,
    pub requested_at: Timestamp,
    pub stamp: Timestamp,
}
