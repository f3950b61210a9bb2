//! What the tasks of one partition share: how far the stream came, and which vouchers are under repair.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use domain::{Timestamp, Voucher, VoucherId};
use events::Codec;
use infra::{
    kafka::{LogError, Probe},
    postgres::Pool,
    redis::{Store, StoreError},
    shutdown::CancellationToken,
    telemetry::Readiness,
    watchdog::{Beat, Beats},
};
use parking_lot::Mutex;
use publish::RequestProducer;
use tokio::sync::Notify;

use crate::{CompensationConfig, metrics::Metrics};

/// How long the keys of an archived voucher stay. Whoever takes the partition over in between gives them as long again.
const ARCHIVE_TTL: Duration = Duration::from_secs(3_600);

/// What the process has one of.
pub(crate) struct Service {
    pub(crate) config: CompensationConfig,
    pub(crate) store: Store,
    pub(crate) pool: Pool,
    pub(crate) codec: Codec,
    pub(crate) producer: RequestProducer,
    pub(crate) probe: Probe,
    pub(crate) metrics: Metrics,
    pub(crate) beats: Arc<Beats>,
    /// The partitions that members of this process own now.
    pub(crate) partitions: Mutex<HashMap<i32, Arc<Partition>>>,
    /// Members that the group has given an assignment, be it an empty one.
    pub(crate) joined: AtomicUsize,
    /// Whether Redis gave its last sign of life.
    pub(crate) redis_answers: AtomicBool,
}

impl Service {
    /// Ready: Redis answers, every member is in the group, no partition has stopped for good.
    pub(crate) fn readiness(self: &Arc<Self>) -> Readiness {
        let service = self.clone();
        Arc::new(move || {
            if !service.redis_answers.load(Ordering::Relaxed) {
                return Err("Redis does not answer".to_owned());
            }
            if service.joined.load(Ordering::Relaxed) < service.config.members {
                return Err("not yet in the consumer group".to_owned());
            }
            let partitions = service.partitions.lock();
            match partitions.values().find_map(|p| p.stopped().map(|why| (p.number, why))) {
                Some((number, why)) => Err(format!("partition {number} has stopped: {why}")),
                None => Ok(()),
            }
        })
    }
}

/// Why a voucher is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Reason {
    /// It was just published: its gate has only to be opened.
    Opened,
    /// Redis does not have it.
    Missing,
    /// Redis is behind what was settled, or behind Postgres.
    Behind,
    /// Its gate is warming and nobody works on it.
    Warming,
    /// Units are missing or doubled.
    Breach,
    /// `rebuild redis` or `voucher thaw` asked for it.
    Asked,
    /// A key has a wrong type or content.
    Damaged,
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether Redis is wrong at its own seq, so that reading on changes nothing.
    pub(crate) fn resets(self) -> bool {
        matches!(self, Self::Breach | Self::Asked | Self::Damaged)
    }
}

/// One partition as owned by this process, from its assignment to its revocation.
pub(crate) struct Partition {
    pub(crate) number: i32,
    pub(crate) service: Arc<Service>,
    /// Cancelled when the partition goes.
    pub(crate) stop: CancellationToken,
    /// Events handed to settle and not yet answered.
    pub(crate) queued: AtomicUsize,
    /// Everything below this offset of `order-events` is settled; -1: not known.
    settled: AtomicI64,
    /// Everything below this offset of `order-requests` is decided, published and settled; -1: not known.
    tail: AtomicI64,
    ledger: Mutex<Ledger>,
    stopped: Mutex<Option<String>>,
    repairs_ended: AtomicU64,
    /// Wakes the repair.
    pub(crate) wanted: Notify,
    /// Vouchers in which the warden saw reservations.
    pub(crate) reserved: Mutex<Vec<VoucherId>>,
}

#[derive(Default)]
struct Ledger {
    /// Per voucher, the highest seq that Redis was seen to have settled.
    seen: HashMap<VoucherId, i64>,
    /// Vouchers to be repaired that the repair has not taken up yet.
    waiting: HashMap<VoucherId, Reason>,
    /// Vouchers under repair, with the highest seq that the stream could not apply meanwhile.
    working: HashMap<VoucherId, i64>,
}

impl Partition {
    pub(crate) fn new(number: i32, service: Arc<Service>) -> Self {
        Self {
            number,
            service,
            stop: CancellationToken::new(),
            queued: AtomicUsize::new(0),
            settled: AtomicI64::new(-1),
            tail: AtomicI64::new(-1),
            ledger: Mutex::default(),
            stopped: Mutex::default(),
            repairs_ended: AtomicU64::new(0),
            wanted: Notify::new(),
            reserved: Mutex::default(),
        }
    }

    /// For what a task of this partition has a blocking thread do. Everything else they wait for is cancelled by its own limit.
    pub(crate) fn watched(&self, what: &'static str) -> Arc<Beat> {
        let beat = self.service.beats.add(format!("partition {}", self.number));
        beat.begin(what);
        beat
    }

    /// Asks the brokers for offsets.
    pub(crate) async fn probe<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Probe) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        let _beat = self.watched("asking for offsets");
        self.service.probe.ask(call).await
    }

    /// Everything below this offset of `order-events` is settled.
    pub(crate) fn settled(&self) -> Option<i64> {
        Some(self.settled.load(Ordering::Acquire)).filter(|offset| *offset >= 0)
    }

    pub(crate) fn settled_to(&self, offset: i64) {
        self.settled.fetch_max(offset, Ordering::AcqRel);
    }

    /// Everything below this offset of `order-requests` is decided, published and settled.
    pub(crate) fn tail(&self) -> Option<i64> {
        Some(self.tail.load(Ordering::Acquire)).filter(|offset| *offset >= 0)
    }

    pub(crate) fn tail_to(&self, offset: i64) {
        self.tail.fetch_max(offset, Ordering::AcqRel);
    }

    /// Notes that Redis has settled the voucher up to `seq`.
    pub(crate) fn saw(&self, voucher: &VoucherId, seq: i64) {
        let mut ledger = self.ledger.lock();
        match ledger.seen.get_mut(voucher) {
            Some(seen) => *seen = seq.max(*seen),
            None => drop(ledger.seen.insert(voucher.clone(), seq)),
        }
    }

    /// The highest seq seen settled; 0: none.
    pub(crate) fn seen(&self, voucher: &VoucherId) -> i64 {
        self.ledger.lock().seen.get(voucher).copied().unwrap_or(0)
    }

    /// Asks for a repair. One that is under way or asked for already stays as it is, except that a reset is never forgotten.
    pub(crate) fn ask_repair(&self, voucher: &VoucherId, reason: Reason) {
        self.ask(&mut self.ledger.lock(), voucher, reason);
    }

    fn ask(&self, ledger: &mut Ledger, voucher: &VoucherId, reason: Reason) {
        if ledger.working.contains_key(voucher) && !reason.resets() {
            return;
        }
        let waiting = ledger.waiting.entry(voucher.clone()).or_insert(reason);
        if reason.resets() {
            *waiting = reason;
        }
        self.wanted.notify_one();
    }

    /// The stream could not apply the event `seq` of this voucher: a repair that is under way must come past it, else one is asked for.
    pub(crate) fn passed_by(&self, voucher: &VoucherId, seq: i64, reason: Reason) {
        let mut ledger = self.ledger.lock();
        match ledger.working.get_mut(voucher) {
            Some(highest) => *highest = seq.max(*highest),
            None => self.ask(&mut ledger, voucher, reason),
        }
    }

    pub(crate) fn in_repair(&self, voucher: &VoucherId) -> bool {
        let ledger = self.ledger.lock();
        ledger.working.contains_key(voucher) || ledger.waiting.contains_key(voucher)
    }

    /// What was asked for since the last call; it counts as under repair from now on.
    pub(crate) fn take_waiting(&self) -> Vec<(VoucherId, Reason)> {
        let mut ledger = self.ledger.lock();
        let taken: Vec<_> = ledger.waiting.drain().collect();
        for (voucher, _) in &taken {
            ledger.working.entry(voucher.clone()).or_insert(0);
        }
        self.service.metrics.repairing(self.number, ledger.working.len());
        taken
    }

    /// The highest seq that the stream could not apply while the voucher was under repair; 0: none.
    pub(crate) fn missed(&self, voucher: &VoucherId) -> i64 {
        self.ledger.lock().working.get(voucher).copied().unwrap_or(0)
    }

    /// The repair of this voucher ended with Redis at `seq`; what the stream passed by in the last moment asks for another.
    pub(crate) fn end_repair(&self, voucher: &VoucherId, seq: Option<i64>) {
        let mut ledger = self.ledger.lock();
        let missed = ledger.working.remove(voucher).unwrap_or(0);
        self.service.metrics.repairing(self.number, ledger.working.len());
        drop(ledger);
        self.repairs_ended.fetch_add(1, Ordering::AcqRel);
        if let Some(seq) = seq {
            self.saw(voucher, seq);
            if missed > seq {
                self.ask_repair(voucher, Reason::Behind);
            }
        }
    }

    /// Whether the voucher's window ended so long ago that Redis forgets it.
    pub(crate) fn is_archived(&self, row: &Voucher, now: Timestamp) -> bool {
        row.terms.ends_at.plus(self.service.config.archive_after_ms()) <= now
    }

    /// Lets the keys of an archived voucher expire together.
    pub(crate) async fn archive(&self, voucher: &VoucherId) -> Result<(), StoreError> {
        self.service.store.archive(voucher, ARCHIVE_TTL).await.map(|_| ())
    }

    /// Repairs that have ended; who looks at vouchers notices by it that one ended meanwhile.
    pub(crate) fn repairs_ended(&self) -> u64 {
        self.repairs_ended.load(Ordering::Acquire)
    }

    /// Settling cannot go on: better a stalled consumer than a wrong Redis.
    pub(crate) fn stop_for_good(&self, why: String) {
        tracing::error!(partition = self.number, why, "settling has stopped for this partition");
        self.service.metrics.alarm("stopped");
        self.service.metrics.stopped(self.number);
        *self.stopped.lock() = Some(why);
    }

    pub(crate) fn stopped(&self) -> Option<String> {
        self.stopped.lock().clone()
    }
}
