//! The proof that no unit was lost or sold twice: Redis, the log and Postgres compared at one cut.
//!
//! The order of reading makes the cut sound while a sale goes on. Redis first: what it has settled is published, so the log has it.
//! Then the ends of `order-events`: what is published was committed in Postgres before, so a snapshot taken afterwards has it. Then
//! the snapshot, which names how far each lane had come. Then the log, up to exactly there: each voucher passes on its way through
//! the `voucher_seq` at which Redis was read, and is compared with Redis there; at the end everything is compared with the snapshot.
//!
//! A deep audit decides each request again and looks at every row and every entry of every hash. The other compares numbers: what the events
//! of a voucher add up to, what its rows add up to, its hash in Redis. That needs no requests and no memory for orders, and can go on where it
//! ended; two wrongs of one voucher that make up for each other are found by the deep one only.

pub(crate) mod log;
mod redis;
mod sums;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{State, Timestamp, VoucherId};
use events::{Codec, dead_letter};
use infra::{
    config::Connections,
    kafka::partition_count,
    redis::{Store, StoreError},
};
use serde::Serialize;

use self::{
    log::{Cut, Told, told},
    redis::View,
    sums::Sums,
};
use crate::{
    ReplayError, Verdict,
    compare::{self, Snapshot},
    verdict::{Findings, Kind},
    walk::{Log, PartitionRead, Walk, blocking, open_all, partitions, side_by_side},
};

/// Pause between two looks for a voucher that Redis does not have.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Redis keeps a voucher at least so long after its end: an hour is the shortest time after which anybody archives it.
const KEPT_MS: i64 = 3_600_000;

/// What the sweeper adds to the delivery time-out for clocks that differ, where nobody says otherwise.
const SWEEP_MARGIN: Duration = Duration::from_secs(5);

/// How an audit is made.
#[derive(Clone, Copy, Debug)]
pub struct AuditOptions {
    /// How long to wait for what is on its way: events that Postgres has already, vouchers being put back into Redis.
    pub patience: Duration,
    /// Every request, row and entry of a hash; otherwise the numbers of each voucher.
    pub deep: bool,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), deep: true }
    }
}

/// One voucher at the cut.
#[derive(Clone, Debug, Serialize)]
pub struct VoucherCut {
    pub voucher: VoucherId,
    pub total: i64,
    /// By the log and Postgres, at `seq`.
    pub remaining: i64,
    pub sold: i64,
    pub seq: i64,
    /// By Redis, at `redis_seq`; `None`: Redis does not have it.
    pub redis_stock: Option<i64>,
    pub redis_reserved: Option<i64>,
    pub redis_sold: Option<i64>,
    pub redis_seq: Option<i64>,
}

/// What an audit looked at, and what it says.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Audit {
    #[serde(flatten)]
    pub verdict: Verdict,
    pub vouchers: Vec<VoucherCut>,
    pub partitions: i32,
    pub read: Vec<PartitionRead>,
    /// Decided requests, and the events that answer them.
    pub requests: u64,
    pub events: u64,
    /// Requests that were not decided yet at the cut: on their way, not wrong.
    pub undecided: i64,
    /// Reservations in Redis whose orders were not settled yet at the cut: on their way, not wrong.
    pub in_flight: u64,
    pub order_rows: u64,
    pub dead_letters: u64,
    /// Units that Redis, or the rows of orders, count otherwise than the log, over all vouchers.
    pub drift_units: u64,
    pub seconds: f64,
}

/// Audits again and again. What is not deep reads only what came since the last time, unless that failed, or Redis or Postgres were behind it.
pub struct Auditor {
    connections: Connections,
    codec: Codec,
    options: AuditOptions,
    kept: Vec<Sums>,
}

/// One audit, from the beginning of the log. What cannot be asked or read gives [`Verdict::CannotTell`].
pub async fn audit(connections: &Connections, codec: &Codec, options: AuditOptions) -> Audit {
    Auditor::new(connections, codec, options).audit().await
}

impl Auditor {
    pub fn new(connections: &Connections, codec: &Codec, options: AuditOptions) -> Self {
        Self { connections: connections.clone(), codec: codec.clone(), options, kept: Vec::new() }
    }

    /// As [`audit`](fn@audit).
    pub async fn audit(&mut self) -> Audit {
        let started = Instant::now();
        let (mut audit, mut findings) = (Audit::default(), Findings::default());
        if let Err(error) = self.look(&mut audit, &mut findings).await {
            findings.doubt(error.to_string());
        }
        audit.verdict = findings.verdict();
        audit.seconds = started.elapsed().as_secs_f64();
        audit
    }

    async fn look(&mut self, audit: &mut Audit, findings: &mut Findings) -> Result<(), ReplayError> {
        let (connections, options) = (self.connections.clone(), self.options);
        audit.partitions = partitions(&connections).await?;
        let store = Store::connect(&connections.redis).await?;
        let client = infra::postgres::connect(&connections).await?;

        let in_redis = store.voucher_ids().await?;
        let (views, damaged) = read_redis(&store, &client, options.deep, findings).await?;
        let redis_seqs = Arc::new(views.iter().map(|(id, view)| (id.clone(), view.voucher.seq)).collect());
        let (snapshot, parts) = self.read_log(audit.partitions, &client, redis_seqs).await?;

        let undecided: HashMap<i32, i64> = (0..).zip(parts.iter().map(|part| part.undecided)).collect();
        let told = Told::join(parts, options.deep, findings);
        let Told { state, sums, at_redis, read, unreadable, events, requests, undecided: waiting, is_late, .. } = told;
        (audit.read, audit.events, audit.requests, audit.undecided) = (read, events, requests, waiting);
        for (id, view) in &views {
            audit.drift_units += redis::compare(id, view, at_redis.get(id), options.deep, findings);
            audit.in_flight += view.holders.as_ref().map_or(0, |h| h.in_flight as u64);
            let at_rest = snapshot.vouchers.get(id).is_some_and(|row| row.seq == view.voucher.seq);
            if at_rest && undecided.get(&view.voucher.partition) == Some(&0) {
                stale(id, view, connections.delivery_timeout + SWEEP_MARGIN + options.patience, findings);
            }
        }
        for id in in_redis.iter().filter(|id| !state.vouchers.contains_key(*id)) {
            findings.differs(Kind::RedisUnknown, format!("voucher {id} is in Redis, but the log has not opened it"));
        }
        let gone = snapshot.vouchers.values().filter(|v| !views.contains_key(&v.id) && !damaged.contains(&v.id));
        missing_in_redis(&store, gone, options.patience, findings).await?;
        audit.vouchers = cut_of(&state, &views);
        if is_late {
            // Rows would differ only because they are of another moment.
            return Ok(());
        }
        audit.dead_letters = dead_letters(Log::of(&connections, &self.codec), &snapshot.positions, unreadable, findings).await?;
        compare::compare_vouchers(&snapshot.vouchers, &state.vouchers, findings);
        let (rows, drift) = compare::compare_sums(&client, &sums, findings).await?;
        (audit.order_rows, audit.drift_units) = (rows, audit.drift_units + drift);
        if options.deep {
            let mut by_log: Vec<_> = state.orders.into_values().collect();
            by_log.sort_unstable_by_key(|order| order.id);
            let by_log = futures::stream::iter(by_log.into_iter().map(Ok));
            compare::compare_orders(compare::orders(&client).await?, by_log, findings, |_| ()).await?;
        }
        Ok(())
    }

    /// Opens a snapshot of Postgres on `client`, and reads each partition of the log to where it says that the lane was.
    async fn read_log(
        &mut self,
        count: i32,
        client: &tokio_postgres::Client,
        redis_seqs: Arc<HashMap<VoucherId, i64>>,
    ) -> Result<(Snapshot, Vec<Told>), ReplayError> {
        let (log, patience) = (Log::of(&self.connections, &self.codec), self.options.patience);
        let requests = &self.connections.topics.requests;
        let cut = |positions: &HashMap<i32, i64>, partition: i32| positions.get(&partition).copied();
        if self.options.deep {
            let opened = open_all(count, move |p| log::open(&log, p)).await?;
            let snapshot = compare::open(client, requests).await?;
            let positions = snapshot.positions.clone();
            let parts = side_by_side(opened, move |opened| {
                let next_offset = cut(&positions, opened.events.partition);
                told(opened, &Cut { next_offset, redis_seqs: &redis_seqs, patience })
            });
            return Ok((snapshot, parts.await?));
        }
        // Kept again only when all went well.
        let kept = mem::take(&mut self.kept);
        let opened = if kept.len() == usize::try_from(count).unwrap_or(0) {
            side_by_side(kept, Sums::look).await?
        } else {
            open_all(count, move |p| Sums::open(&log, p)).await?
        };
        let snapshot = compare::open(client, requests).await?;
        let positions = snapshot.positions.clone();
        let read = side_by_side(opened, move |sums| {
            let next_offset = cut(&positions, sums.partition());
            sums.read_on(&Cut { next_offset, redis_seqs: &redis_seqs, patience })
        });
        let (kept, parts) = read.await?.into_iter().unzip();
        self.kept = kept;
        Ok((snapshot, parts))
    }
}

/// Reads in Redis the vouchers that Postgres knows now. Second: those that cannot be read.
async fn read_redis(
    store: &Store,
    client: &tokio_postgres::Client,
    deep: bool,
    findings: &mut Findings,
) -> Result<(HashMap<VoucherId, View>, HashSet<VoucherId>), ReplayError> {
    let (mut views, mut damaged) = (HashMap::new(), HashSet::new());
    for row in client.query("SELECT voucher_id FROM vouchers", &[]).await? {
        // A row whose id makes no sense is found, and named, when the snapshot is read.
        let Ok(id) = VoucherId::parse(row.try_get(0)?) else { continue };
        match redis::view(store, &id, deep).await {
            Ok(Some(view)) => drop(views.insert(id, view)),
            Ok(None) => {}
            Err(ReplayError::Store(error @ StoreError::Damaged { .. })) => {
                findings.differs(Kind::RedisDamaged, error.to_string());
                damaged.insert(id);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((views, damaged))
}

/// A reservation that outlives `limit` while nothing is undecided and Redis is settled has no request, and the sweeper has not seen it.
fn stale(id: &VoucherId, view: &View, limit: Duration, findings: &mut Findings) {
    let oldest = view.holders.as_ref().and_then(|holders| holders.oldest_ms).and_then(|ms| u64::try_from(ms).ok());
    if let Some(age) = oldest.map(Duration::from_millis).filter(|age| *age > limit) {
        let what =
            format!("voucher {id}: a stale reservation, {} s old, was not published: is compensation running?", age.as_secs());
        findings.differs(Kind::StaleReservation, what);
    }
}

/// A voucher that Postgres has and Redis has not is being put back by compensation, or its sale is over and it was archived; else Redis
/// has lost it.
async fn missing_in_redis(
    store: &Store,
    gone: impl Iterator<Item = &domain::Voucher>,
    patience: Duration,
    findings: &mut Findings,
) -> Result<(), ReplayError> {
    let deadline = Instant::now() + patience;
    let now: Timestamp = store.now().await?;
    for voucher in gone.filter(|v| v.terms.ends_at.plus(KEPT_MS) > now) {
        let mut there = is_there(store, &voucher.id).await?;
        while !there && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
            there = is_there(store, &voucher.id).await?;
        }
        if there {
            findings.doubt(format!("voucher {} came into Redis only while the audit was made: make it again", voucher.id));
        } else {
            findings.differs(Kind::RedisMissing, format!("Redis does not have voucher {}", voucher.id));
        }
    }
    Ok(())
}

async fn is_there(store: &Store, id: &VoucherId) -> Result<bool, ReplayError> {
    match store.voucher(id).await {
        Ok(found) => Ok(found.is_some()),
        Err(StoreError::Damaged { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Each request refused as unreadable must have its dead letter, and each dead letter of a decided request its refusal. Gives the number
/// of dead letters looked at.
async fn dead_letters(
    log: Log,
    positions: &HashMap<i32, i64>,
    refused: BTreeSet<(i32, i64)>,
    findings: &mut Findings,
) -> Result<u64, ReplayError> {
    let asked = log.connections.clone();
    let count_of = blocking(move || Ok(partition_count(&asked, &asked.topics.dead_letters)?)).await?;
    let read = move |partition| {
        let topics = &log.connections.topics;
        let mut letters = Walk::open(&log, &topics.dead_letters, partition)?;
        let (end, mut places) = (letters.whole()?.stable, Vec::new());
        letters.records(0, end, |_, _, record| {
            places.push(place(&record.headers, &topics.requests));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(places)
    };
    let letters = side_by_side(0..count_of, read).await?.concat();
    let mut found = BTreeSet::new();
    let mut count = 0;
    for letter in letters {
        match letter {
            // Dead letters of requests beyond the cut belong to the next audit.
            Some((partition, offset)) if positions.get(&partition).is_none_or(|position| offset >= *position) => {}
            Some(place) => {
                count += 1;
                if !found.insert(place) {
                    findings
                        .differs(Kind::DeadLetter, format!("partition {}, request {}: a second dead letter", place.0, place.1));
                }
            }
            None => findings.differs(Kind::DeadLetter, "a dead letter does not say where its record was found"),
        }
    }
    for (partition, offset) in refused.difference(&found) {
        findings.differs(
            Kind::DeadLetter,
            format!("partition {partition}: request {offset} was refused as unreadable, but has no dead letter"),
        );
    }
    for (partition, offset) in found.difference(&refused) {
        findings.differs(
            Kind::DeadLetter,
            format!("partition {partition}: request {offset} has a dead letter, but was not refused as unreadable"),
        );
    }
    Ok(count)
}

/// Where the record of a dead letter was found, if its headers name a place in `topic`.
fn place(headers: &[(String, Vec<u8>)], topic: &str) -> Option<(i32, i64)> {
    let place = dead_letter::found_at(headers).filter(|place| place.topic == topic)?;
    Some((place.partition, place.offset))
}

fn cut_of(state: &State, views: &HashMap<VoucherId, View>) -> Vec<VoucherCut> {
    let mut cuts: Vec<VoucherCut> = state
        .vouchers
        .values()
        .map(|v| {
            let redis = views.get(&v.id).map(|view| &view.voucher);
            VoucherCut {
                voucher: v.id.clone(),
                total: v.terms.total,
                remaining: v.remaining,
                sold: v.terms.total - v.remaining,
                seq: v.seq,
                redis_stock: redis.map(|r| r.stock),
                redis_reserved: redis.map(|r| r.reserved),
                redis_sold: redis.map(|r| r.sold),
                redis_seq: redis.map(|r| r.seq),
            }
        })
        .collect();
    cuts.sort_by(|a, b| a.voucher.cmp(&b.voucher));
    cuts
}
