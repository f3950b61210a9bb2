//! What is known of a voucher beyond what Redis says: whether there is one, and what a buyer may see of it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use domain::{Timestamp, Voucher, VoucherId, VoucherState};
use infra::{
    postgres::DatabaseError,
    redis::{StoreError, VoucherInRedis},
};
use parking_lot::Mutex;
use serde::Serialize;

use crate::{generations::Generations, instants::rfc3339, servers::Servers};

/// Vouchers remembered, at least: a few MB.
const REMEMBERED: usize = 10_000;

/// How long "there is no such voucher" is believed, so that a flood of wrong ids costs Postgres little.
const ABSENCE_HOLDS: Duration = Duration::from_secs(1);

/// How long after its window a voucher that Redis does not have counts as over: Redis forgets vouchers on purpose, but not before this
/// (the shortest `DOORBUSTER_COMPENSATION_ARCHIVE_HOURS`). Far beyond any difference between clocks.
const OVER_AFTER_MS: i64 = 3_600_000;

/// What is known of a voucher that Redis does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// There never was one.
    None,
    /// Redis should have it.
    Lost,
    /// Its sale ended so long ago that Redis may have forgotten it for good.
    Over { partition: i32 },
}

/// The vouchers this process has met.
pub(crate) struct Vouchers {
    /// Those that exist, with the end of the window and the partition where Postgres was asked.
    known: Mutex<Generations<VoucherId, Option<(Timestamp, i32)>>>,
    absent: Mutex<Generations<VoucherId, Instant>>,
}

impl Vouchers {
    pub(crate) fn new() -> Self {
        Self { known: Mutex::new(Generations::new(REMEMBERED)), absent: Mutex::new(Generations::new(REMEMBERED)) }
    }

    /// Redis has it, so it exists, whatever happens to Redis later.
    pub(crate) fn met(&self, voucher: &VoucherId) {
        let mut known = self.known.lock();
        if known.get(voucher).is_none() {
            known.insert(voucher.clone(), None);
        }
    }

    /// What a voucher is that Redis does not have: from memory, else from Postgres.
    pub(crate) async fn standing(&self, servers: &impl Servers, voucher: &VoucherId) -> Result<Standing, DatabaseError> {
        let known = self.known.lock().get(voucher).copied();
        if let Some(Some(known)) = known {
            return Ok(standing(known));
        }
        if self.absent.lock().get(voucher).is_some_and(|since| since.elapsed() < ABSENCE_HOLDS) {
            return Ok(Standing::None);
        }
        match servers.voucher_row(voucher).await {
            Ok(Some(row)) => {
                let found = (row.terms.ends_at, row.terms.partition);
                self.known.lock().insert(voucher.clone(), Some(found));
                Ok(standing(found))
            }
            Ok(None) | Err(_) if known.is_some() => Ok(Standing::Lost),
            Ok(None) => {
                self.absent.lock().insert(voucher.clone(), Instant::now());
                Ok(Standing::None)
            }
            Err(error) => Err(error),
        }
    }
}

fn standing((ends_at, partition): (Timestamp, i32)) -> Standing {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    if ends_at.plus(OVER_AFTER_MS).0 <= now { Standing::Over { partition } } else { Standing::Lost }
}

/// A voucher as buyers see it.
#[derive(Debug, Serialize)]
pub(crate) struct VoucherView {
    voucher_id: VoucherId,
    title: String,
    state: VoucherState,
    /// Whether it can be bought at this moment, apart from its state and window: `ready`, `warming` or `frozen`.
    gate: &'static str,
    begins_at: String,
    ends_at: String,
    price: Price,
    total: i64,
    /// Units that nobody holds.
    stock: i64,
    per_user_limit: i64,
}

#[derive(Debug, Serialize)]
struct Price {
    /// In the currency's minor units (cents).
    minor: i64,
    currency: String,
}

/// Why a voucher cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    #[error("Redis: {0}; Postgres: {1}")]
    Away(StoreError, DatabaseError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The voucher from Redis; from Postgres where Redis does not have it whole. `None`: there is no such voucher.
pub(crate) async fn view(servers: &impl Servers, id: &VoucherId) -> Result<Option<VoucherView>, ViewError> {
    let redis = servers.voucher_in_redis(id).await;
    match redis {
        Ok(Some(voucher)) if voucher.seq > 0 => Ok(Some(from_redis(id, voucher))),
        Ok(_) => Ok(servers.voucher_row(id).await?.map(from_row)),
        Err(redis) => match servers.voucher_row(id).await {
            Ok(row) => Ok(row.map(from_row)),
            Err(postgres) => Err(ViewError::Away(redis, postgres)),
        },
    }
}

fn from_redis(id: &VoucherId, voucher: VoucherInRedis) -> VoucherView {
    VoucherView {
        voucher_id: id.clone(),
        title: voucher.title,
        state: voucher.state,
        gate: voucher.gate.as_str(),
        begins_at: rfc3339(voucher.begins_at),
        ends_at: rfc3339(voucher.ends_at),
        price: Price { minor: voucher.price.minor, currency: voucher.price.currency },
        total: voucher.total,
        // For a moment after a loss in Redis it can be below zero; a buyer need not know.
        stock: voucher.stock.max(0),
        per_user_limit: voucher.per_user_limit,
    }
}

fn from_row(voucher: Voucher) -> VoucherView {
    VoucherView {
        voucher_id: voucher.id,
        title: voucher.terms.title,
        state: voucher.state,
        gate: "warming",
        begins_at: rfc3339(voucher.terms.begins_at),
        ends_at: rfc3339(voucher.terms.ends_at),
        price: Price { minor: voucher.terms.price.minor, currency: voucher.terms.price.currency },
        total: voucher.terms.total,
        stock: voucher.remaining.max(0),
        per_user_limit: voucher.terms.per_user_limit,
    }
}
