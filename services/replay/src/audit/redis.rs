//! Redis at a moment, and its comparison with the log at the same `voucher_seq`.

use std::collections::HashMap;

use domain::{Timestamp, UserId, VoucherId};
use infra::redis::{Gate, Store, VoucherInRedis};

use super::log::AtRedis;
use crate::{
    ReplayError,
    verdict::{Findings, Kind},
};

/// Times a voucher is read again because it changed while it was read.
const TRIES: u32 = 20;

/// One voucher as Redis had it.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) voucher: VoucherInRedis,
    /// What is in flight and who holds what, read at the same moment as the voucher; `None`: it changed whenever it was read.
    pub(super) holders: Option<Holders>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    pub(super) in_flight: usize,
    /// Age of the oldest reservation since somebody last took it up, in milliseconds by Redis' clock.
    pub(super) oldest_ms: Option<i64>,
    reserved: i64,
    reserved_by: HashMap<UserId, i64>,
    /// Read in a deep audit only: it has an entry for each buyer.
    held: Option<HashMap<UserId, i64>>,
}

/// Reads a voucher; `None`: Redis does not have it.
pub(super) async fn view(store: &Store, id: &VoucherId, deep: bool) -> Result<Option<View>, ReplayError> {
    let Some(mut before) = store.voucher(id).await? else { return Ok(None) };
    for _ in 0..TRIES {
        let holders = holders(store, id, deep).await?;
        // Read in steps, so they belong to one moment only if nothing was reserved, released or settled meanwhile.
        let Some(after) = store.voucher(id).await? else { return Ok(None) };
        if before == after {
            return Ok(Some(View { voucher: after, holders: Some(holders) }));
        }
        before = after;
    }
    Ok(Some(View { voucher: before, holders: None }))
}

async fn holders(store: &Store, id: &VoucherId, deep: bool) -> Result<Holders, ReplayError> {
    // Seen twice where a hash was read while it grew.
    let reservations: HashMap<_, _> = store.reservations(id).await?.into_iter().map(|r| (r.order_id, r)).collect();
    let now = store.now().await?;
    let age = |stamp: Timestamp| now.0.saturating_sub(stamp.0);
    let oldest_ms = reservations.values().map(|r| age(r.stamp)).max();
    let mut holders = Holders { in_flight: reservations.len(), oldest_ms, ..Holders::default() };
    for reservation in reservations.into_values() {
        holders.reserved += reservation.quantity;
        *holders.reserved_by.entry(reservation.user_id).or_default() += reservation.quantity;
    }
    if deep {
        holders.held = Some(store.held(id).await?.into_iter().filter(|(_, units)| *units != 0).collect());
    }
    Ok(holders)
}

/// Compares what Redis had with what the log says at the same `voucher_seq`. Gives the units that it counts otherwise. Where a voucher changed
/// whenever it was read, only a deep audit could not tell.
pub(super) fn compare(id: &VoucherId, view: &View, at: Option<&AtRedis>, deep: bool, findings: &mut Findings) -> u64 {
    let found = &view.voucher;
    match found.gate {
        Gate::Ready => {}
        Gate::Warming => {
            findings.doubt(format!("voucher {id} is being rebuilt in Redis"));
            return 0;
        }
        Gate::Frozen => {
            findings.differs(Kind::RedisFrozen, format!("voucher {id} is frozen in Redis; `doorbuster voucher show {id}`"))
        }
    }
    let Some(at) = at else {
        let what = format!("voucher {id}: Redis is at voucher_seq {}, which Postgres and the log have not reached", found.seq);
        findings.differs(Kind::RedisVoucher, what);
        return 0;
    };
    let (live, terms) = (at.live, &at.voucher.terms);
    let stock = terms.total.saturating_sub(found.reserved).saturating_sub(live);
    let expected = [
        ("title", terms.title.clone(), found.title.clone()),
        ("price", terms.price.to_string(), found.price.to_string()),
        ("total", terms.total.to_string(), found.total.to_string()),
        ("sold", live.to_string(), found.sold.to_string()),
        ("stock", stock.to_string(), found.stock.to_string()),
        ("per_user_limit", terms.per_user_limit.to_string(), found.per_user_limit.to_string()),
        ("begins_at", terms.begins_at.0.to_string(), found.begins_at.0.to_string()),
        ("ends_at", terms.ends_at.0.to_string(), found.ends_at.0.to_string()),
        ("partition", terms.partition.to_string(), found.partition.to_string()),
        ("state", at.voucher.state.as_str().to_owned(), found.state.as_str().to_owned()),
    ];
    for (field, log, redis) in expected.into_iter().filter(|(_, log, redis)| log != redis) {
        let what = format!("voucher {id}: {field} is {redis} in Redis, {log} in the log at voucher_seq {}", found.seq);
        findings.differs(Kind::RedisVoucher, what);
    }
    match &view.holders {
        Some(holders) => compare_holders(id, found, holders, at, findings),
        None if deep => {
            findings.doubt(format!("voucher {id} changed whenever its holders were read in Redis: is the sale still going on?"));
        }
        None => {}
    }
    found.sold.abs_diff(live).max(found.stock.abs_diff(stock))
}

fn compare_holders(id: &VoucherId, found: &VoucherInRedis, holders: &Holders, at: &AtRedis, findings: &mut Findings) {
    if holders.reserved != found.reserved {
        let what = format!("voucher {id}: reserved is {}, but the reservations hold {}", found.reserved, holders.reserved);
        findings.differs(Kind::RedisReserved, what);
    }
    let Some(held) = &holders.held else { return };
    let mut expected = at.held.clone();
    for (user, units) in &holders.reserved_by {
        *expected.entry(user.clone()).or_default() += units;
    }
    for (user, units) in &expected {
        let redis = held.get(user).copied().unwrap_or(0);
        if redis != *units {
            findings.differs(
                Kind::RedisHeld,
                format!("voucher {id}: user {user} holds {redis} in Redis, {units} by log and reservations"),
            );
        }
    }
    for (user, units) in held.iter().filter(|(user, _)| !expected.contains_key(*user)) {
        findings
            .differs(Kind::RedisHeld, format!("voucher {id}: user {user} holds {units} in Redis, none by log and reservations"));
    }
}
