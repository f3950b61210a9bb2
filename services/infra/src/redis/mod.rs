//! Redis: the keys of a voucher, the five scripts and what they answer. The scripts' contracts stand at the head of each file in `lua/`.

use domain::{Event, OrderId, Timestamp, UserId, VoucherId, VoucherState};

/// Why Redis gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer in time, or the connection broke: the script may have run. Every call here can be repeated safely.
    #[error("Redis did not answer: {0}")]
    Unknown(String),
    /// Redis answered that it cannot (loading, read-only replica, out of memory): nothing was changed.
    #[error("Redis cannot serve: {0}")]
    Unavailable(String),
    /// A key of the voucher has a wrong type or content: nothing was changed; the voucher needs a rebuild.
    #[error("voucher {voucher} is damaged in Redis: {problem}")]
    Damaged { voucher: VoucherId, problem: String },
    /// The server is not fit for this job (too old, evicts keys).
    #[error("Redis at {url}: {problem}")]
    Unfit { url: String, problem: String },
}

/// Whether Redis may sell a voucher now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Ready,
    /// Being rebuilt.
    Warming,
    /// Found wrong twice; `doorbuster voucher thaw` opens it again.
    Frozen,
}

/// What reserve.lua answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Units are taken; `held` is what the user held before.
    Reserved { requested_at: Timestamp, partition: i32, held: i64 },
    /// This order id is in flight already, with this quantity since this instant.
    Same { quantity: i64, requested_at: Timestamp, partition: i32 },
    /// This order id is in flight with another quantity; nothing was changed.
    OtherQuantity { quantity: i64 },
    UnknownVoucher,
    /// The gate is warming or frozen.
    NotReady { gate: Gate },
    /// Refused; `held` is what the user holds (look his order up where it is above 0).
    Refused { refusal: Refusal, held: i64 },
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
    Skip { seq: i64 },
    /// Events are missing between Redis' `seq` and this one.
    Gap { seq: i64 },
    UnknownVoucher,
}

/// One voucher's hash as Redis has it.
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

/// A connection to Redis with the scripts. Cheap to clone; clones share the connections.
#[derive(Clone)]
pub struct Store {}

impl Store {
    /// Connects, and checks that the server is 7.0 or newer and evicts nothing.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let _ = url;
        todo!()
    }

    /// Asks for a sign of life.
    pub async fn ping(&self) -> Result<(), StoreError> {
        todo!()
    }

    /// reserve.lua. `token` is this try's random release token.
    pub async fn reserve(
        &self,
        voucher: &VoucherId,
        order: &OrderId,
        user: &UserId,
        quantity: i64,
        token: &str,
    ) -> Result<Reserve, StoreError> {
        let _ = (voucher, order, user, quantity, token);
        todo!()
    }

    /// release.lua: gives the reservation back if its token is still this one. Says whether it did.
    pub async fn release(&self, voucher: &VoucherId, order: &OrderId, token: &str) -> Result<bool, StoreError> {
        let _ = (voucher, order, token);
        todo!()
    }

    /// settle.lua for each event (with its offset in `order-events`), pipelined, answered in order. Events with seq 0 are answered `Skip` without a call.
    pub async fn settle(&self, events: &[(Event, i64)]) -> Result<Vec<Settle>, StoreError> {
        let _ = events;
        todo!()
    }

    /// sweep.lua: takes a reservation that nobody published, if it still has this `stamp`: renews the stamp, clears the token. `None`: it is gone or was renewed.
    pub async fn sweep(
        &self,
        voucher: &VoucherId,
        order: &OrderId,
        stamp: Timestamp,
    ) -> Result<Option<Reservation>, StoreError> {
        let _ = (voucher, order, stamp);
        todo!()
    }

    /// gate.lua raise: gate warming with a new random epoch, creating the voucher's hash where Redis has none; with `reset` also back to seq 0
    /// with the reservations in flight kept. Gives the voucher as it then is.
    pub async fn raise_fence(
        &self,
        voucher: &VoucherId,
        partition: i32,
        epoch: &str,
        reset: bool,
    ) -> Result<VoucherInRedis, StoreError> {
        let _ = (voucher, partition, epoch, reset);
        todo!()
    }

    /// gate.lua open: gate ready, only if the epoch is still `epoch` and Redis' seq is at least `needed_seq`. Says whether it did.
    pub async fn open_gate(&self, voucher: &VoucherId, epoch: &str, needed_seq: i64) -> Result<bool, StoreError> {
        let _ = (voucher, epoch, needed_seq);
        todo!()
    }

    /// gate.lua freeze: gate frozen with a new epoch, until thawed.
    pub async fn freeze(&self, voucher: &VoucherId, epoch: &str) -> Result<(), StoreError> {
        let _ = (voucher, epoch);
        todo!()
    }

    /// gate.lua rebuild: what `rebuild redis` and `voucher thaw` set: gate warming, a new epoch, the field `rebuild`. Says whether the voucher is there.
    pub async fn ask_rebuild(&self, voucher: &VoucherId, epoch: &str) -> Result<bool, StoreError> {
        let _ = (voucher, epoch);
        todo!()
    }

    /// The voucher's hash; `None`: Redis does not have it.
    pub async fn voucher(&self, voucher: &VoucherId) -> Result<Option<VoucherInRedis>, StoreError> {
        let _ = voucher;
        todo!()
    }

    /// The reservation of one order.
    pub async fn reservation(&self, voucher: &VoucherId, order: &OrderId) -> Result<Option<Reservation>, StoreError> {
        let _ = (voucher, order);
        todo!()
    }

    /// All reservations in flight of one voucher, read in steps (an order may be missed or seen twice if it comes or goes meanwhile).
    pub async fn reservations(&self, voucher: &VoucherId) -> Result<Vec<Reservation>, StoreError> {
        let _ = voucher;
        todo!()
    }

    /// Units held by each user (reserved or sold) of one voucher, read in steps.
    pub async fn held(&self, voucher: &VoucherId) -> Result<Vec<(UserId, i64)>, StoreError> {
        let _ = voucher;
        todo!()
    }

    /// Redis' clock.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        todo!()
    }
}
