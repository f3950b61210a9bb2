//! The service's metrics, all named `doorbuster_compensation_*`. Nothing is labelled by voucher, user or order.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A word from a short fixed list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PartitionLabel {
    partition: i32,
}

/// Handles to every metric. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    settled: Family<Kind, Counter>,
    repairs: Family<Kind, Counter>,
    alarms: Family<Kind, Counter>,
    pub(crate) opened: Counter,
    pub(crate) swept: Counter,
    queued: Family<PartitionLabel, Gauge>,
    repairing: Family<PartitionLabel, Gauge>,
    behind: Family<PartitionLabel, Gauge>,
    unlike: Family<PartitionLabel, Gauge>,
    frozen: Family<PartitionLabel, Gauge>,
    stopped: Family<PartitionLabel, Gauge>,
}

impl Metrics {
    pub(crate) fn new() -> (Self, Registry) {
        let metrics = Self::default();
        let mut registry = Registry::with_prefix("doorbuster_compensation");
        registry.register("settled", "Events answered by Redis, by answer", metrics.settled.clone());
        registry.register("repairs", "Repairs begun, by reason", metrics.repairs.clone());
        registry.register("alarms", "Things somebody should look at, by kind", metrics.alarms.clone());
        registry.register("gates_opened", "Gates opened after a publication or a repair", metrics.opened.clone());
        registry.register("swept", "Reservations published again", metrics.swept.clone());
        registry.register("queued_events", "Events read and not yet settled", metrics.queued.clone());
        registry.register("vouchers_in_repair", "Vouchers whose gate is closed for repair", metrics.repairing.clone());
        registry.register("drift_events", "Events by which Redis is behind Postgres, over all vouchers", metrics.behind.clone());
        registry.register(
            "drift_units",
            "Units sold that Redis and Postgres count differently at the same seq",
            metrics.unlike.clone(),
        );
        registry.register("frozen_vouchers", "Vouchers that wait for `doorbuster voucher thaw`", metrics.frozen.clone());
        registry.register("stopped_partitions", "1 where settling has stopped for good", metrics.stopped.clone());
        (metrics, registry)
    }

    pub(crate) fn settled(&self, kind: &'static str, events: u64) {
        self.settled.get_or_create(&Kind { kind }).inc_by(events);
    }

    pub(crate) fn repair(&self, kind: &'static str) {
        self.repairs.get_or_create(&Kind { kind }).inc();
    }

    /// Counts an alarm; the caller logs what it is about.
    pub(crate) fn alarm(&self, kind: &'static str) {
        self.alarms.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn queued(&self, partition: i32, events: usize) {
        set(&self.queued, partition, events);
    }

    pub(crate) fn repairing(&self, partition: i32, vouchers: usize) {
        set(&self.repairing, partition, vouchers);
    }

    /// What the warden saw in its last round.
    pub(crate) fn looked(&self, partition: i32, behind: i64, unlike: i64, frozen: i64) {
        for (gauges, value) in [(&self.behind, behind), (&self.unlike, unlike), (&self.frozen, frozen)] {
            gauges.get_or_create(&PartitionLabel { partition }).set(value);
        }
    }

    pub(crate) fn stopped(&self, partition: i32) {
        set(&self.stopped, partition, 1);
    }

    /// Takes a partition that went to another member out of the gauges.
    pub(crate) fn forget(&self, partition: i32) {
        let label = PartitionLabel { partition };
        for gauges in [&self.queued, &self.repairing, &self.behind, &self.unlike, &self.frozen, &self.stopped] {
            gauges.remove(&label);
        }
    }
}

fn set(gauges: &Family<PartitionLabel, Gauge>, partition: i32, value: usize) {
    gauges.get_or_create(&PartitionLabel { partition }).set(i64::try_from(value).unwrap_or(i64::MAX));
}
