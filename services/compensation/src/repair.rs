//! Rebuilds vouchers in Redis from the log, behind the gate `warming`. One task a partition does all its vouchers together, so that a
//! Redis that lost everything costs one reading of the log and not one a voucher.
//!
//! A repair raises the **fence** (gate warming, a new random epoch; where Redis is wrong at its own seq also a reset to seq 0), reads the
//! partition's events from behind the offset Redis still has, and opens the gate once Redis has come to the `vouchers.seq` read before,
//! if the epoch is still its own. It also waits, but not for long, for what was in flight at the fence: requests Redis may have lost its
//! reservations of. That wait only limits what is offered too much; the lanes reject it.
//!
//! The stream goes on meanwhile: settling is idempotent and in order, so both may apply the same events. What the stream could not apply
//! it notes, and the gate opens no sooner than beyond that.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use domain::{Event, Voucher, VoucherId};
use infra::{
    crash,
    kafka::{LogError, PartitionReader, Probe, Record},
    postgres,
    redis::{Settle, StoreError, VoucherInRedis},
};
use uuid::Uuid;

use crate::{
    inspect::is_balanced,
    partition::{Partition, Reason},
    settle::{Answer, Pause, decode, settle_all},
};

/// Events of vouchers under repair that are settled, and records read for them at most, before new repairs are looked at. Low: a reader
/// that is assigned anew fetches far more than it reads; high: a gate that may open waits for longer.
const CHUNK: usize = 10_000;
const SCAN: usize = 50_000;
/// Between looks at what a repair waits for: the first, and the longest while nothing happens.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(320));
/// Longest pause before a repair that failed for one voucher begins again, and the try from which on it is an alarm.
const LONGEST_PARKING: Duration = Duration::from_secs(10);
const ALARM_TRIES: u32 = 4;

/// One voucher under repair.
struct Work {
    reason: Reason,
    reset: bool,
    fence: Option<Fence>,
    tries: u32,
    not_before: Instant,
}

/// What a raised fence knows.
struct Fence {
    epoch: String,
    /// Next offset of `order-events` to read for this voucher.
    from: i64,
    /// Where Redis was last seen.
    seq: i64,
    /// Requests below this offset were in the log when the fence was up.
    in_flight: i64,
    /// Until when to wait for them.
    until: Instant,
    /// Whether Redis needs events from the log.
    behind: bool,
}

impl Work {
    fn new(reason: Reason) -> Self {
        Self { reason, reset: reason.resets(), fence: None, tries: 0, not_before: Instant::now() }
    }

    /// Begins again with a new fence: at once the first time, then later and later.
    fn again(&mut self, partition: &Partition, voucher: &VoucherId, why: &str) {
        self.fence = None;
        self.tries += 1;
        let pause = Duration::from_millis(100) * 2_u32.saturating_pow(self.tries.min(10));
        self.not_before = Instant::now() + if self.tries == 1 { Duration::ZERO } else { pause.min(LONGEST_PARKING) };
        if self.tries >= ALARM_TRIES {
            tracing::error!(%voucher, why, tries = self.tries, "a voucher cannot be repaired; it stays closed and is tried again");
            partition.service.metrics.alarm("parked");
        } else {
            tracing::info!(%voucher, why, "a repair begins again");
        }
    }

    fn due(&self) -> bool {
        self.fence.is_none() && self.not_before <= Instant::now()
    }
}

struct Repairs {
    partition: Arc<Partition>,
    works: HashMap<VoucherId, Work>,
    reader: Option<PartitionReader>,
}

/// Repairs what is asked for until the partition goes.
pub(crate) async fn run(partition: Arc<Partition>) {
    let stop = partition.stop.clone();
    let repairs = Repairs { partition, works: HashMap::new(), reader: None };
    stop.run_until_cancelled(repairs.run()).await;
}

impl Repairs {
    async fn run(mut self) {
        let partition = self.partition.clone();
        let mut failures = Pause::new();
        let mut look = LOOKS.0;
        loop {
            match self.step().await {
                Ok(true) => {
                    look = LOOKS.0;
                    continue;
                }
                Ok(false) => failures.reset(),
                Err(problem) => {
                    self.reader = None;
                    failures.complain("repairs cannot go on", &problem);
                    if failures.wait(&partition.stop).await.is_err() {
                        return;
                    }
                    continue;
                }
            }
            // A wish is told only once: after each that was heard a step must follow.
            let woken = if self.works.is_empty() {
                self.reader = None;
                partition.wanted.notified().await;
                true
            } else {
                tokio::time::timeout(look, partition.wanted.notified()).await.is_ok()
            };
            look = if woken { LOOKS.0 } else { (look * 2).min(LOOKS.1) };
        }
    }

    /// Takes everything one step on; says whether there is more to do at once.
    async fn step(&mut self) -> anyhow::Result<bool> {
        for (voucher, reason) in self.partition.take_waiting() {
            self.partition.service.metrics.repair(reason.as_str());
            let work = self.works.entry(voucher).or_insert_with(|| Work::new(reason));
            if reason.resets() {
                (work.reason, work.reset, work.fence) = (reason, true, None);
            }
        }
        if self.works.values().any(Work::due) {
            self.raise_fences().await?;
        }
        if self.works.values().any(|work| work.fence.is_some()) {
            self.open_gates().await?;
        }
        self.read_on().await
    }

    async fn rows(&self) -> anyhow::Result<HashMap<VoucherId, Voucher>> {
        let rows = postgres::vouchers(&self.partition.service.pool, Some(&[self.partition.number])).await?;
        Ok(rows.into_iter().map(|row| (row.id.clone(), row)).collect())
    }

    async fn raise_fences(&mut self) -> anyhow::Result<()> {
        let rows = self.rows().await?;
        let now = self.partition.service.store.now().await?;
        let due: Vec<VoucherId> = self.works.iter().filter(|(_, work)| work.due()).map(|(voucher, _)| voucher.clone()).collect();
        let mut raised = Vec::with_capacity(due.len());
        for voucher in due {
            // Without a row nothing says how far Redis must come; the warden looks again once there is one.
            let Some(row) = rows.get(&voucher) else {
                self.end(&voucher, None);
                continue;
            };
            if self.partition.is_archived(row, now) {
                // A fresh group has settled its opening again.
                self.partition.archive(&voucher).await?;
                self.end(&voucher, None);
                continue;
            }
            if let Some(fenced) = self.raise_fence(&voucher, row).await? {
                raised.push((voucher, row.seq, fenced));
            }
        }
        if raised.is_empty() {
            return Ok(());
        }
        // Read after the fences: these ends must cover all that Redis has settled and all that was reserved before.
        let number = self.partition.number;
        let ends = move |probe: &Probe| {
            crash::point("compensation.fenced");
            Ok((probe.stable_events(number)?, probe.requests(number)?.1))
        };
        let (events, requests) = self.partition.probe(ends).await?;
        for (voucher, row_seq, fenced) in raised {
            self.begin(&voucher, row_seq, fenced, events, requests);
        }
        Ok(())
    }

    /// Raises the fence of one voucher; `None`: it is not to be repaired, or not now.
    async fn raise_fence(&mut self, voucher: &VoucherId, row: &Voucher) -> anyhow::Result<Option<VoucherInRedis>> {
        let partition = self.partition.clone();
        let store = &partition.service.store;
        let Some(work) = self.works.get_mut(voucher) else { return Ok(None) };
        if store.is_frozen(voucher).await? {
            self.end(voucher, None);
            return Ok(None);
        }
        match store.voucher(voucher).await {
            Ok(Some(found)) => work.reset |= found.rebuild || !is_balanced(&found),
            Ok(None) => {}
            Err(StoreError::Damaged { .. }) => work.reset = true,
            Err(problem) => return Err(problem.into()),
        }
        crash::point("compensation.fence");
        match store.raise_fence(voucher, row.terms.partition, &Uuid::new_v4().to_string(), work.reset).await {
            Ok(fenced) => Ok(Some(fenced)),
            Err(StoreError::Damaged { problem, .. }) => {
                work.reset = true;
                work.again(&partition, voucher, &problem);
                Ok(None)
            }
            Err(problem) => Err(problem.into()),
        }
    }

    /// Notes a raised fence, with the ends of both logs as they were when it was up.
    fn begin(&mut self, voucher: &VoucherId, row_seq: i64, fenced: VoucherInRedis, events: i64, requests: i64) {
        let Some(work) = self.works.get_mut(voucher) else { return };
        let from = fenced.offset.map_or(0, |offset| offset + 1);
        work.reset = from > events;
        if work.reset {
            work.again(&self.partition, voucher, "Redis has settled more than the log holds");
            return;
        }
        // Of a voucher that was just published nothing can be in flight that Redis has lost.
        let is_new = work.reason == Reason::Opened && row_seq <= 1 && fenced.seq <= 1;
        let in_flight = if is_new { 0 } else { requests };
        let until = Instant::now() + self.partition.service.config.warming_wait;
        tracing::info!(%voucher, reason = work.reason.as_str(), seq = fenced.seq, from, "gate closed for repair");
        work.fence = Some(Fence { epoch: fenced.epoch, from, seq: fenced.seq, in_flight, until, behind: false });
    }

    /// Opens every gate that may be opened.
    async fn open_gates(&mut self) -> anyhow::Result<()> {
        let service = &self.partition.service;
        let topic = &service.config.connections.topics.requests;
        // In this order: what is decided below `next` is in the rows.
        let next = postgres::next_offset(&service.pool, topic, self.partition.number).await?.unwrap_or(0);
        let rows = self.rows().await?;
        let fenced: Vec<VoucherId> = self.works.iter().filter(|(_, w)| w.fence.is_some()).map(|(v, _)| v.clone()).collect();
        for voucher in fenced {
            match rows.get(&voucher) {
                Some(row) => self.open_gate(&voucher, row.seq, next).await?,
                None => self.end(&voucher, None),
            }
        }
        Ok(())
    }

    async fn open_gate(&mut self, voucher: &VoucherId, needed: i64, next: i64) -> anyhow::Result<()> {
        let partition = self.partition.clone();
        let store = &partition.service.store;
        let Some(work) = self.works.get_mut(voucher) else { return Ok(()) };
        let Some(fence) = work.fence.as_mut() else { return Ok(()) };
        let found = match store.voucher(voucher).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                work.again(&partition, voucher, "Redis lost it again");
                return Ok(());
            }
            Err(StoreError::Damaged { problem, .. }) => {
                work.reset = true;
                work.again(&partition, voucher, &problem);
                return Ok(());
            }
            Err(problem) => return Err(problem.into()),
        };
        if found.epoch != fence.epoch {
            // Fencing again, two who repair would keep each other out for ever.
            tracing::warn!(%voucher, "somebody else repairs this voucher: giving up");
            self.end(voucher, None);
            return Ok(());
        }
        if found.seq < fence.seq {
            work.again(&partition, voucher, "Redis went back");
            return Ok(());
        }
        fence.seq = found.seq;
        fence.behind = found.seq < needed.max(partition.missed(voucher));
        let waits = next < fence.in_flight && Instant::now() < fence.until;
        if fence.behind || waits {
            return Ok(());
        }
        crash::point("compensation.open");
        if store.open_gate(voucher, &fence.epoch, needed).await? {
            crash::point("compensation.opened");
            partition.service.metrics.opened.inc();
            tracing::info!(%voucher, reason = work.reason.as_str(), seq = found.seq, "gate opened");
            self.end(voucher, Some(found.seq));
        }
        Ok(())
    }

    fn end(&mut self, voucher: &VoucherId, seq: Option<i64>) {
        self.works.remove(voucher);
        self.partition.end_repair(voucher, seq);
    }

    /// Settles the next chunk of the log for the vouchers that are behind; says whether there was one.
    async fn read_on(&mut self) -> anyhow::Result<bool> {
        if !self.works.values().any(|work| work.fence.as_ref().is_some_and(|fence| fence.behind)) {
            return Ok(false);
        }
        let partition = self.partition.clone();
        let number = partition.number;
        let (start, end) = partition.probe(move |probe| probe.events(number)).await?;
        let mut wanted = HashMap::new();
        for (voucher, work) in &mut self.works {
            let Some(fence) = work.fence.as_mut().filter(|fence| fence.behind) else { continue };
            if fence.from < start {
                // One that was opened later lacks nothing. Another one meets a gap, or never gets as far as it must: it stays closed.
                tracing::error!(%voucher, from = fence.from, start, "events were deleted that a repair may need; it reads what is left");
                partition.service.metrics.alarm("deleted");
                fence.from = start;
            }
            wanted.insert(voucher.clone(), fence.from);
        }
        let Some(from) = wanted.values().min().copied() else { return Ok(false) };
        if from >= end {
            return Ok(false);
        }
        let (records, read_to) = self.read_chunk(&wanted, from, end).await?;
        let mut events = Vec::with_capacity(records.len());
        for record in records {
            let event =
                decode(&partition.service.codec, &record.payload, partition.number, record.offset, &partition.stop).await?;
            if event.voucher_seq > 0 {
                events.push((event, record.offset));
            }
        }
        let answers = settle_all(&partition.service.store, &events, &partition.stop).await?;
        crash::point("compensation.replayed");
        for ((event, _), answer) in events.iter().zip(answers) {
            self.take_note(event, &answer);
        }
        for voucher in wanted.keys() {
            if let Some(fence) = self.works.get_mut(voucher).and_then(|work| work.fence.as_mut()) {
                fence.from = fence.from.max(read_to);
            }
        }
        Ok(true)
    }

    /// Reads records of the wanted vouchers in `from..end`, each from its own offset on; gives also how far it read.
    async fn read_chunk(&mut self, wanted: &HashMap<VoucherId, i64>, from: i64, end: i64) -> anyhow::Result<(Vec<Record>, i64)> {
        let connections = self.partition.service.config.connections.clone();
        let (number, reader) = (self.partition.number, self.reader.take());
        let wanted: HashMap<Vec<u8>, i64> = wanted.iter().map(|(v, from)| (v.as_str().as_bytes().to_vec(), *from)).collect();
        let beat = self.partition.watched("reading the log");
        let read = move || -> Result<_, LogError> {
            let mut reader = match reader {
                Some(reader) => reader,
                None => PartitionReader::open(&connections, &connections.topics.events, number)?,
            };
            let (mut records, mut scanned, mut read_to) = (Vec::new(), 0, end);
            reader.read(from, end, &mut |record| {
                scanned += 1;
                beat.begin("reading the log");
                let offset = record.offset;
                if record.key.as_ref().and_then(|key| wanted.get(key)).is_some_and(|from| offset >= *from) {
                    records.push(record);
                }
                if records.len() < CHUNK && scanned < SCAN {
                    return ControlFlow::Continue(());
                }
                read_to = offset + 1;
                ControlFlow::Break(())
            })?;
            Ok((reader, records, read_to))
        };
        let (reader, records, read_to) = tokio::task::spawn_blocking(read).await.context("reading the log was cut off")??;
        self.reader = Some(reader);
        Ok((records, read_to))
    }

    fn take_note(&mut self, event: &Event, answer: &Answer) {
        let Some(voucher) = &event.voucher_id else { return };
        let Some(work) = self.works.get_mut(voucher) else { return };
        let Some(fence) = work.fence.as_mut() else { return };
        match answer {
            Answer::Settled(Settle::Applied) => fence.seq = event.voucher_seq,
            Answer::Settled(Settle::Skip { seq }) => fence.seq = fence.seq.max(*seq),
            Answer::Settled(Settle::Gap { .. }) => work.again(&self.partition, voucher, "Redis went back"),
            Answer::Settled(Settle::UnknownVoucher) => work.again(&self.partition, voucher, "Redis lost it again"),
            Answer::Damaged => {
                work.reset = true;
                work.again(&self.partition, voucher, "a key is damaged");
            }
        }
    }
}
