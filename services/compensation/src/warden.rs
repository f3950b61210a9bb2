//! Looks at every voucher of a partition, again and again: is it there, has Redis come as far as it was seen to, do the units add up?
//!
//! Redis may have lost anything at any time, its own memory of what it lost included. So the warden compares it with what this process
//! saw settled, and, whenever there is no lag, with Postgres: it notes the lane's position and each `vouchers.seq`, and once the stream
//! has settled the answers up to that position, Redis must have come to those seqs. At the same seq both must agree on what is sold.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{Timestamp, Voucher, VoucherId};
use infra::{
    kafka::{LogError, PartitionReader},
    postgres::{self, DatabaseError},
    redis::{Gate, StoreError, VoucherInRedis},
};
use uuid::Uuid;

use crate::{
    partition::{Partition, Reason},
    repair::is_balanced,
    settle::{Halt, Pause, decode},
};

/// Vouchers at rest whose reservations and held units are counted in one round at most.
const DEEP_CHECKS_A_ROUND: usize = 4;
/// A voucher is archived this long before its keys may expire, so that it is never taken for lost.
const ARCHIVE_SLACK: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
enum WardenError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Halt(#[from] Halt),
    #[error("the reading of the log panicked")]
    Panicked,
}

/// What the warden thinks of one voucher.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    Sound,
    Repair(Reason),
    /// Conservation does not hold.
    Breach(String),
    /// Waits for `doorbuster voucher thaw`.
    Frozen,
}

/// What Postgres said at one moment.
struct Mark {
    next: i64,
    seqs: HashMap<VoucherId, i64>,
}

struct Warden {
    partition: Arc<Partition>,
    /// Where the stream began to read; `None`: not known.
    start: Option<i64>,
    mark: Option<Mark>,
    breaches: HashMap<VoucherId, Instant>,
    /// Vouchers at rest: as they were in the last round, when they were last counted, and whether the count was wrong.
    at_rest: HashMap<VoucherId, AtRest>,
}

struct AtRest {
    found: VoucherInRedis,
    counted: Option<Instant>,
    wrong: bool,
}

/// Watches until the partition goes. `start`: the offset at which the stream begins to read.
pub(crate) async fn run(partition: Arc<Partition>, start: Option<i64>) {
    let stop = partition.stop.clone();
    let warden = Warden { partition, start, mark: None, breaches: HashMap::new(), at_rest: HashMap::new() };
    stop.run_until_cancelled(warden.run()).await;
}

impl Warden {
    async fn run(mut self) {
        let partition = self.partition.clone();
        let mut failures = Pause::new();
        loop {
            match self.round().await {
                Ok(()) => failures.reset(),
                Err(problem) => {
                    failures.complain("vouchers cannot be watched", &problem);
                    if failures.wait(&partition.stop).await.is_err() {
                        return;
                    }
                }
            }
            tokio::time::sleep(partition.service.config.warden_interval).await;
        }
    }

    async fn round(&mut self) -> Result<(), WardenError> {
        let partition = self.partition.clone();
        let service = &partition.service;
        if partition.tail().is_none() {
            self.find_tail().await?;
        }
        // Rows first: a position read later covers everything that is in them.
        let rows = postgres::vouchers(&service.pool, Some(&[partition.number])).await?;
        let topic = &service.config.connections.topics.requests;
        let next = postgres::next_offset(&service.pool, topic, partition.number).await?.unwrap_or(0);
        let now = service.store.now().await?;
        let rows: Vec<Voucher> = rows.into_iter().filter(|row| !self.is_archived(row, now)).collect();
        // What is compared below must have been true before Redis is asked.
        let seen: HashMap<VoucherId, i64> = rows.iter().map(|row| (row.id.clone(), partition.seen(&row.id))).collect();
        let no_lag = self.mark.as_ref().is_some_and(|mark| partition.tail().is_some_and(|tail| tail >= mark.next));
        let repairs_ended = partition.repairs_ended();
        let (mut reserved, mut behind, mut unlike) = (Vec::new(), 0, 0);
        for row in &rows {
            let (finding, found) = match service.store.voucher(&row.id).await {
                Ok(found) => {
                    let marked = self.mark.as_ref().filter(|_| no_lag).and_then(|mark| mark.seqs.get(&row.id).copied());
                    let seen = seen.get(&row.id).copied().unwrap_or(0);
                    (inspect(row, found.as_ref(), seen, marked.unwrap_or(0)), found)
                }
                Err(StoreError::Damaged { problem, .. }) => {
                    tracing::error!(voucher = %row.id, problem, "a voucher is damaged in Redis");
                    service.metrics.alarm("damaged");
                    (Finding::Repair(Reason::Damaged), None)
                }
                Err(problem) => return Err(problem.into()),
            };
            behind += (row.seq - found.as_ref().map_or(0, |f| f.seq)).max(0);
            unlike += found.as_ref().map_or(0, |found| units_unlike(row, found));
            if found.as_ref().is_some_and(|found| found.reserved != 0) {
                reserved.push(row.id.clone());
            }
            let finding = self.look_deeper(row, found, finding).await?;
            let stale = finding == Finding::Repair(Reason::Warming) && partition.repairs_ended() != repairs_ended;
            if !stale && !partition.in_repair(&row.id) {
                self.act(&row.id, finding).await?;
            }
        }
        service.metrics.drift(partition.number, behind, unlike);
        *partition.reserved.lock() = reserved;
        if no_lag || self.mark.is_none() {
            self.mark = Some(Mark { next, seqs: rows.iter().map(|row| (row.id.clone(), row.seq)).collect() });
        }
        self.at_rest.retain(|voucher, _| rows.iter().any(|row| row.id == *voucher));
        Ok(())
    }

    fn is_archived(&self, row: &Voucher, now: Timestamp) -> bool {
        let slack = i64::try_from(ARCHIVE_SLACK.as_millis()).unwrap_or(0);
        row.terms.ends_at.plus(self.partition.service.config.archive_after_ms()).plus(-slack) <= now
    }

    /// How far the lane came, where the stream has nothing to read that would tell.
    async fn find_tail(&self) -> Result<(), WardenError> {
        let partition = &self.partition;
        let (connections, number) = (partition.service.config.connections.clone(), partition.number);
        let last = move || PartitionReader::open(&connections, &connections.topics.events, number)?.last();
        let last = tokio::task::spawn_blocking(last).await.map_err(|_| WardenError::Panicked)??;
        let Some(record) = last else {
            partition.tail_to(0);
            return Ok(());
        };
        if self.start.is_some_and(|start| record.offset < start) {
            let event = decode(&partition.service.codec, &record.payload, number, record.offset, &partition.stop).await?;
            partition.tail_to(event.request_offset + 1);
        }
        Ok(())
    }

    async fn act(&mut self, voucher: &VoucherId, finding: Finding) -> Result<(), WardenError> {
        let service = &self.partition.service;
        match finding {
            Finding::Sound | Finding::Frozen => {}
            Finding::Repair(reason) => {
                tracing::warn!(%voucher, reason = reason.as_str(), "a voucher in Redis needs repair");
                if reason == Reason::Asked {
                    self.breaches.remove(voucher);
                }
                self.partition.ask_repair(voucher, reason);
            }
            Finding::Breach(problem) => {
                service.metrics.alarm("breach");
                service.store.freeze(voucher, &Uuid::new_v4().to_string()).await?;
                let window = service.config.breach_window;
                match self.breaches.insert(voucher.clone(), Instant::now()) {
                    Some(earlier) if earlier.elapsed() < window => {
                        tracing::error!(%voucher, problem, "conservation is broken again: frozen until `doorbuster voucher thaw`");
                        service.metrics.alarm("frozen");
                    }
                    _ => {
                        tracing::error!(%voucher, problem, "conservation is broken: frozen, and rebuilt from the log");
                        self.partition.ask_repair(voucher, Reason::Breach);
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts the reservations and held units of a voucher that nothing has changed since the last round. Twice wrong is a breach: one
    /// count may have met a reservation that came and went.
    async fn look_deeper(
        &mut self,
        row: &Voucher,
        found: Option<VoucherInRedis>,
        finding: Finding,
    ) -> Result<Finding, WardenError> {
        let Some(found) = found.filter(|_| finding == Finding::Sound) else {
            self.at_rest.remove(&row.id);
            return Ok(finding);
        };
        let interval = self.partition.service.config.deep_check_interval;
        let counting = self.at_rest.values().filter(|a| a.counted.is_some_and(|at| at.elapsed() < interval / 20)).count();
        let before = self.at_rest.remove(&row.id);
        let (mut counted, mut wrong) = before.as_ref().map_or((None, false), |b| (b.counted, b.wrong));
        let rests = before.is_some_and(|b| b.found == found);
        let due = wrong || counted.is_none_or(|at| at.elapsed() >= interval);
        let mut finding = finding;
        if rests && due && (wrong || counting < DEEP_CHECKS_A_ROUND) {
            counted = Some(Instant::now());
            if let Some(problem) = self.count(&row.id, &found).await? {
                finding = if wrong { Finding::Breach(problem) } else { Finding::Sound };
                wrong = !wrong;
            } else {
                wrong = false;
            }
        }
        self.at_rest.insert(row.id.clone(), AtRest { found, counted, wrong });
        Ok(finding)
    }

    async fn count(&self, voucher: &VoucherId, found: &VoucherInRedis) -> Result<Option<String>, WardenError> {
        let store = &self.partition.service.store;
        let counted = async {
            let reserved: i64 = store.reservations(voucher).await?.iter().map(|r| r.quantity).sum();
            let held = store.held(voucher).await?;
            Ok::<_, StoreError>((reserved, held))
        };
        let (reserved, held) = match counted.await {
            Ok(counted) => counted,
            Err(StoreError::Damaged { problem, .. }) => return Ok(Some(problem)),
            Err(problem) => return Err(problem.into()),
        };
        if store.voucher(voucher).await?.as_ref() != Some(found) {
            return Ok(None);
        }
        Ok(miscount(found, reserved, held.iter().map(|(_, units)| *units)))
    }
}

/// What is wrong with a voucher whose keys are readable. `seen`: the highest seq this process saw settled; `marked`: the seq that
/// Postgres had at a moment up to which everything is settled, 0 where there is lag.
fn inspect(row: &Voucher, found: Option<&VoucherInRedis>, seen: i64, marked: i64) -> Finding {
    let Some(found) = found else {
        return if seen.max(marked) > 0 { Finding::Repair(Reason::Missing) } else { Finding::Sound };
    };
    if found.rebuild {
        return Finding::Repair(Reason::Asked);
    }
    if found.gate == Gate::Frozen {
        return Finding::Frozen;
    }
    if let Some(problem) = breach(row, found) {
        return Finding::Breach(problem);
    }
    if found.seq < seen.max(marked) {
        return Finding::Repair(Reason::Behind);
    }
    if found.gate == Gate::Warming {
        return Finding::Repair(Reason::Warming);
    }
    Finding::Sound
}

fn breach(row: &Voucher, found: &VoucherInRedis) -> Option<String> {
    if !is_balanced(found) {
        let VoucherInRedis { total, stock, reserved, sold, .. } = found;
        return Some(format!("total {total} is not stock {stock} + reserved {reserved} + sold {sold}"));
    }
    let units = units_unlike(row, found);
    if units != 0 {
        let (total, sold) = (row.terms.total, row.terms.total - row.remaining);
        let seq = row.seq;
        return Some(format!("at seq {seq} Redis has sold {} of {}, Postgres {sold} of {total}", found.sold, found.total));
    }
    (row.seq == found.seq && row.state != found.state).then(|| {
        let (ours, theirs) = (found.state.as_str(), row.state.as_str());
        format!("at seq {} the voucher is {ours} in Redis and {theirs} in Postgres", row.seq)
    })
}

/// Units that Redis and Postgres count differently at the same seq; 0 at different ones.
fn units_unlike(row: &Voucher, found: &VoucherInRedis) -> i64 {
    if row.seq != found.seq {
        return 0;
    }
    (found.total - row.terms.total).abs() + (found.sold - (row.terms.total - row.remaining)).abs()
}

fn miscount(found: &VoucherInRedis, reserved: i64, held: impl Iterator<Item = i64>) -> Option<String> {
    if reserved != found.reserved {
        return Some(format!("reserved is {}, but the reservations are of {reserved} units", found.reserved));
    }
    let (mut sum, mut negative) = (0_i64, false);
    for units in held {
        sum += units;
        negative |= units < 0;
    }
    if negative || sum != found.reserved + found.sold {
        let claimed = found.reserved + found.sold;
        return Some(format!(
            "buyers hold {sum} units{}, but {claimed} are reserved or sold",
            if negative { ", some below 0" } else { "" }
        ));
    }
    None
}
