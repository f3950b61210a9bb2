//! The service's metrics, all named `doorbuster_orders_*`. Nothing is labelled by voucher, user or order.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PartitionLabel {
    partition: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StepLabel {
    step: &'static str,
}

/// Handles to every metric. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    records: Family<PartitionLabel, Counter>,
    events: Family<KindLabel, Counter>,
    pub(crate) dead_letters: Counter,
    pub(crate) stale_batches: Counter,
    pub(crate) folded: Counter,
    retries: Family<StepLabel, Counter>,
    recoveries: Counter,
    batch: Histogram,
    steps: Family<StepLabel, Histogram>,
    lag_records: Family<PartitionLabel, Gauge>,
    lag_seconds: Family<PartitionLabel, Gauge<f64, std::sync::atomic::AtomicU64>>,
    stopped: Family<PartitionLabel, Gauge>,
}

impl Metrics {
    pub(crate) fn new() -> (Self, Registry) {
        let metrics = Self {
            records: Family::default(),
            events: Family::default(),
            dead_letters: Counter::default(),
            stale_batches: Counter::default(),
            folded: Counter::default(),
            retries: Family::default(),
            recoveries: Counter::default(),
            batch: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            steps: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_5, 2.0, 16))),
            lag_records: Family::default(),
            lag_seconds: Family::default(),
            stopped: Family::default(),
        };
        let mut registry = Registry::with_prefix("doorbuster_orders");
        registry.register("records", "Requests decided and published", metrics.records.clone());
        registry.register("events", "Events decided, by kind", metrics.events.clone());
        registry.register("dead_letters", "Requests that could not be read", metrics.dead_letters.clone());
        registry.register("stale_batches", "Batches thrown away because the lane stood elsewhere", metrics.stale_batches.clone());
        registry.register("folded_events", "Events folded into Postgres, which had lost them", metrics.folded.clone());
        registry.register("retries", "Attempts that failed, by step", metrics.retries.clone());
        registry.register(
            "recoveries",
            "Times a lane looked into Postgres and the log where it stands",
            metrics.recoveries.clone(),
        );
        registry.register("batch_records", "Requests a batch", metrics.batch.clone());
        registry.register_with_unit("step", "Time a batch takes, by step", Unit::Seconds, metrics.steps.clone());
        registry.register("lag_records", "Requests not yet decided and published", metrics.lag_records.clone());
        registry.register_with_unit(
            "lag",
            "Age of the oldest request not yet decided",
            Unit::Seconds,
            metrics.lag_seconds.clone(),
        );
        registry.register("stopped_partitions", "1 where the lane has stopped for good", metrics.stopped.clone());
        (metrics, registry)
    }

    /// A batch is decided, committed and published.
    pub(crate) fn published(&self, partition: i32, records: usize) {
        self.records.get_or_create(&PartitionLabel { partition }).inc_by(records as u64);
        self.batch.observe(records as f64);
    }

    pub(crate) fn event(&self, kind: &'static str) {
        self.events.get_or_create(&KindLabel { kind }).inc();
    }

    pub(crate) fn step(&self, step: &'static str, took: Duration) {
        self.steps.get_or_create(&StepLabel { step }).observe(took.as_secs_f64());
    }

    pub(crate) fn retry(&self, step: &'static str) {
        self.retries.get_or_create(&StepLabel { step }).inc();
    }

    pub(crate) fn recovery(&self) {
        self.recoveries.inc();
    }

    pub(crate) fn lag(&self, partition: i32, records: i64, age: Duration) {
        self.lag_records.get_or_create(&PartitionLabel { partition }).set(records);
        self.lag_seconds.get_or_create(&PartitionLabel { partition }).set(age.as_secs_f64());
    }

    pub(crate) fn stopped(&self, partition: i32) {
        self.stopped.get_or_create(&PartitionLabel { partition }).set(1);
    }

    /// The partition is somebody else's now: its gauges would only mislead.
    pub(crate) fn forget(&self, partition: i32) {
        let label = PartitionLabel { partition };
        self.lag_records.remove(&label);
        self.lag_seconds.remove(&label);
        self.stopped.remove(&label);
    }
}
