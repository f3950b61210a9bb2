//! Looks at every voucher of a partition, again and again: is it there, has Redis come as far as it was seen to, do the units add up?
//!
//! Redis may have lost anything at any time, its own memory of what it lost included. So the warden compares it with what this process
//! saw settled, and, whenever there is no lag, with Postgres: it notes the lane's position and each `vouchers.seq`, and once the stream
//! has settled the answers up to that position, Redis must have come to those seqs. At the same seq both must agree on what is sold.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use anyhow::Context;
use domain::{Voucher, VoucherId};
use futures::{StreamExt, stream};
use infra::{
    kafka::PartitionReader,
    postgres,
    redis::{StoreError, VoucherInRedis},
};
use uuid::Uuid;

use crate::{
    inspect::{Finding, inspect, miscount, sum, units_unlike},
    partition::{Partition, Reason},
    settle::{Pause, decode},
};

/// Vouchers at rest whose reservations and held units are counted in one round at most.
const COUNTS_A_ROUND: usize = 4;
/// Vouchers asked for at once.
const ASKED_AT_ONCE: usize = 32;

/// What Postgres said at one moment.
struct Mark {
    next: i64,
    seqs: HashMap<VoucherId, i64>,
}

/// A sound voucher as it was in the last round.
struct AtRest {
    found: VoucherInRedis,
    counted: Option<Instant>,
    /// The last count was wrong.
    wrong: bool,
}

struct Warden {
    partition: Arc<Partition>,
    tail_asked: bool,
    mark: Option<Mark>,
    breaches: HashMap<VoucherId, Instant>,
    at_rest: HashMap<VoucherId, AtRest>,
    archived: HashSet<VoucherId>,
}

/// Watches until the partition goes.
pub(crate) async fn run(partition: Arc<Partition>) {
    let stop = partition.stop.clone();
    let warden = Warden {
        partition,
        tail_asked: false,
        mark: None,
        breaches: HashMap::new(),
        at_rest: HashMap::new(),
        archived: HashSet::new(),
    };
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

    async fn round(&mut self) -> anyhow::Result<()> {
        let partition = self.partition.clone();
        let service = &partition.service;
        if let Some(settled) = partition.settled().filter(|_| !self.tail_asked && partition.tail().is_none()) {
            self.find_tail(settled).await?;
            self.tail_asked = true;
        }
        // Rows first: a position read later covers everything that is in them.
        let rows = postgres::vouchers(&service.pool, Some(&[partition.number])).await?;
        let topic = &service.config.connections.topics.requests;
        let next = postgres::next_offset(&service.pool, topic, partition.number).await?.unwrap_or(0);
        let rows = self.archive(rows).await?;
        // Redis is asked after everything it is compared with.
        let seen: Vec<i64> = rows.iter().map(|row| partition.seen(&row.id)).collect();
        let no_lag = self.mark.as_ref().is_some_and(|mark| partition.tail().is_some_and(|tail| tail >= mark.next));
        let repairs_ended = partition.repairs_ended();
        let ask = |id: VoucherId| {
            let store = service.store.clone();
            async move { store.voucher(&id).await }
        };
        let ids: Vec<VoucherId> = rows.iter().map(|row| row.id.clone()).collect();
        let answers: Vec<_> = stream::iter(ids).map(ask).buffered(ASKED_AT_ONCE).collect().await;
        let (mut reserved, mut frozen, mut behind, mut unlike, mut counts) = (Vec::new(), 0, 0, 0, 0);
        for ((row, seen), answer) in rows.iter().zip(seen).zip(answers) {
            let marked = self.mark.as_ref().filter(|_| no_lag).and_then(|mark| mark.seqs.get(&row.id).copied());
            let (found, finding) = match answer {
                Ok(found) => {
                    let finding = inspect(row, found.as_ref(), seen.max(marked.unwrap_or(0)));
                    (found, finding)
                }
                Err(StoreError::Damaged { .. }) if service.store.is_frozen(&row.id).await? => (None, Finding::Frozen),
                Err(StoreError::Damaged { problem, .. }) => (None, Finding::Damaged(problem)),
                Err(problem) => return Err(problem.into()),
            };
            frozen += i64::from(finding == Finding::Frozen);
            behind += (row.seq - found.as_ref().map_or(0, |found| found.seq)).max(0);
            unlike += found.as_ref().map_or(0, |found| units_unlike(row, found));
            if found.as_ref().is_some_and(|found| found.reserved != 0) {
                reserved.push(row.id.clone());
            }
            let finding = self.look_deeper(&row.id, found, finding, &mut counts).await?;
            // A gate that a repair has opened since it was looked at is no finding.
            let stale =
                matches!(finding, Finding::Repair(Reason::Warming | Reason::Asked)) && partition.repairs_ended() != repairs_ended;
            if !stale && !partition.in_repair(&row.id) {
                self.act(&row.id, finding).await?;
            }
        }
        service.metrics.looked(partition.number, behind, unlike, frozen);
        *partition.reserved.lock() = reserved;
        if no_lag || self.mark.is_none() {
            self.mark = Some(Mark { next, seqs: rows.iter().map(|row| (row.id.clone(), row.seq)).collect() });
        }
        Ok(())
    }

    /// Lets the keys of vouchers that ended long ago expire; gives the others.
    async fn archive(&mut self, rows: Vec<Voucher>) -> anyhow::Result<Vec<Voucher>> {
        let now = self.partition.service.store.now().await?;
        let (old, live): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| self.partition.is_archived(row, now));
        for row in old {
            if !self.archived.contains(&row.id) {
                self.partition.archive(&row.id).await?;
                self.at_rest.remove(&row.id);
                self.archived.insert(row.id);
            }
        }
        Ok(live)
    }

    /// How far the lane came, where its last event lies below `settled`, so that the stream has nothing to read that would tell.
    async fn find_tail(&self, settled: i64) -> anyhow::Result<()> {
        let partition = &self.partition;
        let (connections, number) = (partition.service.config.connections.clone(), partition.number);
        let last = move || PartitionReader::open(&connections, &connections.topics.events, number)?.last();
        let _beat = partition.watched("reading the end of the log");
        let last = tokio::task::spawn_blocking(last).await.context("reading the log was cut off")??;
        if let Some(record) = last.filter(|record| record.offset < settled) {
            let event = decode(&partition.service.codec, &record.payload, number, record.offset, &partition.stop).await?;
            partition.tail_to(event.request_offset + 1);
        }
        Ok(())
    }

    async fn act(&mut self, voucher: &VoucherId, finding: Finding) -> anyhow::Result<()> {
        let service = &self.partition.service;
        match finding {
            Finding::Sound | Finding::Frozen => {}
            Finding::Repair(reason) => {
                tracing::warn!(%voucher, reason = reason.as_str(), "a voucher in Redis needs repair");
                self.partition.ask_repair(voucher, reason);
            }
            Finding::Damaged(problem) => {
                tracing::error!(%voucher, problem, "a voucher is damaged in Redis: rebuilt from the log");
                service.metrics.alarm("damaged");
                self.partition.ask_repair(voucher, Reason::Damaged);
            }
            Finding::Breach(problem) => {
                service.metrics.alarm("breach");
                let epoch = Uuid::new_v4().to_string();
                let earlier = self.breaches.get(voucher);
                if earlier.is_some_and(|earlier| earlier.elapsed() < service.config.breach_window) {
                    tracing::error!(%voucher, problem, "conservation is broken again: frozen until `doorbuster voucher thaw`");
                    service.store.freeze(voucher, &epoch).await?;
                    service.metrics.alarm("frozen");
                    self.breaches.remove(voucher);
                } else {
                    tracing::error!(%voucher, problem, "conservation is broken: rebuilt from the log");
                    // Redis keeps the wish, so that the partition's next owner sees it, too.
                    service.store.ask_rebuild(voucher, &epoch).await?;
                    self.breaches.insert(voucher.clone(), Instant::now());
                    self.partition.ask_repair(voucher, Reason::Breach);
                }
            }
        }
        Ok(())
    }

    /// Counts the reservations and held units of a sound voucher that nothing has changed since the last round. Only a count that is
    /// wrong twice is a breach: one may have met a reservation that came and went.
    async fn look_deeper(
        &mut self,
        voucher: &VoucherId,
        found: Option<VoucherInRedis>,
        finding: Finding,
        counts: &mut usize,
    ) -> anyhow::Result<Finding> {
        let before = self.at_rest.remove(voucher);
        let Some(found) = found.filter(|_| finding == Finding::Sound) else { return Ok(finding) };
        let rests = before.as_ref().is_some_and(|before| before.found == found);
        let (mut counted, mut wrong) = before.map_or((None, false), |before| (before.counted, before.wrong && rests));
        let interval = self.partition.service.config.deep_check_interval;
        let due = wrong || counted.is_none_or(|at| at.elapsed() >= interval);
        let mut finding = finding;
        if rests && due && *counts < COUNTS_A_ROUND {
            *counts += 1;
            counted = Some(Instant::now());
            let problem = self.count(voucher, &found).await?;
            let was_wrong = std::mem::replace(&mut wrong, problem.is_some());
            if let Some(problem) = problem.filter(|_| was_wrong) {
                finding = Finding::Breach(problem);
            }
        }
        self.at_rest.insert(voucher.clone(), AtRest { found, counted, wrong });
        Ok(finding)
    }

    /// What the count of reservations and held units finds wrong; `None` also where the voucher changed meanwhile.
    async fn count(&self, voucher: &VoucherId, found: &VoucherInRedis) -> anyhow::Result<Option<String>> {
        let store = &self.partition.service.store;
        let counted = async {
            let reserved = sum(store.reservations(voucher).await?.iter().map(|r| r.quantity));
            let held: Vec<i64> = store.held(voucher).await?.into_iter().map(|(_, units)| units).collect();
            Ok((miscount(found, reserved, &held), store.voucher(voucher).await?))
        };
        match counted.await {
            Ok((problem, now)) => Ok(problem.filter(|_| now.as_ref() == Some(found))),
            Err(StoreError::Damaged { problem, .. }) => Ok(Some(problem)),
            Err(problem) => Err(problem.into()),
        }
    }
}
