//! The service's metrics, all named `doorbuster_orders_*`. Nothing is labelled by voucher, user or order.

use std::time::Duration;

use infra::telemetry::{Label, Register};
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

type Partition = Label<i32>;
type Word = Label<&'static str>;

/// Handles to every metric. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    records: Family<Partition, Counter>,
    events: Family<Word, Counter>,
    pub(crate) dead_letters: Counter,
    pub(crate) stale_batches: Counter,
    pub(crate) folded: Counter,
    retries: Family<Word, Counter>,
    pub(crate) recoveries: Counter,
    batch: Histogram,
    steps: Family<Word, Histogram>,
    lag_records: Family<Partition, Gauge>,
    lag_seconds: Family<Partition, Gauge<f64, std::sync::atomic::AtomicU64>>,
    stopped: Family<Partition, Gauge>,
}

impl Metrics {
    pub(crate) fn new() -> (Self, Registry) {
        let mut registry = Registry::with_prefix("doorbuster_orders");
        let metrics = Self {
            records: registry.registered("records", "Requests decided and published"),
            events: registry.registered("events", "Events decided, by kind"),
            dead_letters: registry.registered("dead_letters", "Requests that could not be read"),
            stale_batches: registry.registered("stale_batches", "Batches thrown away because the lane stood elsewhere"),
            folded: registry.registered("folded_events", "Events folded into Postgres, which had lost them"),
            retries: registry.registered("retries", "Attempts that failed, by step"),
            recoveries: registry.registered("recoveries", "Times a lane looked into Postgres and the log where it stands"),
            batch: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            steps: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_5, 2.0, 16))),
            lag_records: registry.registered("lag_records", "Requests not yet decided and published"),
            lag_seconds: Family::default(),
            stopped: registry.registered("stopped_partitions", "1 where the lane has stopped for good"),
        };
        registry.register("batch_records", "Requests a batch", metrics.batch.clone());
        registry.register_with_unit("step", "Time a batch takes, by step", Unit::Seconds, metrics.steps.clone());
        let lag = metrics.lag_seconds.clone();
        registry.register_with_unit("lag", "Age of the oldest request not yet decided", Unit::Seconds, lag);
        (metrics, registry)
    }

    /// A batch is decided, committed and published.
    pub(crate) fn published(&self, partition: i32, records: usize) {
        self.records.get_or_create(&[("partition", partition)]).inc_by(records as u64);
        self.batch.observe(records as f64);
    }

    pub(crate) fn event(&self, kind: &'static str) {
        self.events.get_or_create(&[("kind", kind)]).inc();
    }

    pub(crate) fn step(&self, step: &'static str, took: Duration) {
        self.steps.get_or_create(&[("step", step)]).observe(took.as_secs_f64());
    }

    pub(crate) fn retry(&self, step: &'static str) {
        self.retries.get_or_create(&[("step", step)]).inc();
    }

    pub(crate) fn lag(&self, partition: i32, records: i64, age: Duration) {
        self.lag_records.get_or_create(&[("partition", partition)]).set(records);
        self.lag_seconds.get_or_create(&[("partition", partition)]).set(age.as_secs_f64());
    }

    pub(crate) fn stopped(&self, partition: i32) {
        self.stopped.get_or_create(&[("partition", partition)]).set(1);
    }

    /// The partition is somebody else's now: its gauges would only mislead.
    pub(crate) fn forget(&self, partition: i32) {
        let label = [("partition", partition)];
        self.lag_records.remove(&label);
        self.lag_seconds.remove(&label);
        self.stopped.remove(&label);
    }
}
