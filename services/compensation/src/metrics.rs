//! The service's metrics, all named `doorbuster_compensation_*`. Nothing is labelled by voucher, user or order.

use infra::telemetry::{Label, Register};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

type Partition = Label<i32>;
/// A word from a short fixed list.
type Kind = Label<&'static str>;

/// Handles to every metric. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    settled: Family<Kind, Counter>,
    repairs: Family<Kind, Counter>,
    alarms: Family<Kind, Counter>,
    pub(crate) opened: Counter,
    pub(crate) swept: Counter,
    queued: Family<Partition, Gauge>,
    repairing: Family<Partition, Gauge>,
    behind: Family<Partition, Gauge>,
    unlike: Family<Partition, Gauge>,
    frozen: Family<Partition, Gauge>,
    stopped: Family<Partition, Gauge>,
}

impl Metrics {
    pub(crate) fn new() -> (Self, Registry) {
        let mut registry = Registry::with_prefix("doorbuster_compensation");
        let metrics = Self {
            settled: registry.registered("settled", "Events answered by Redis, by answer"),
            repairs: registry.registered("repairs", "Repairs begun, by reason"),
            alarms: registry.registered("alarms", "Things somebody should look at, by kind"),
            opened: registry.registered("gates_opened", "Gates opened after a publication or a repair"),
            swept: registry.registered("swept", "Reservations published again"),
            queued: registry.registered("queued_events", "Events read and not yet settled"),
            repairing: registry.registered("vouchers_in_repair", "Vouchers whose gate is closed for repair"),
            behind: registry.registered("drift_events", "Events by which Redis is behind Postgres, over all vouchers"),
            unlike: registry.registered("drift_units", "Units sold that Redis and Postgres count differently at the same seq"),
            frozen: registry.registered("frozen_vouchers", "Vouchers that wait for `doorbuster voucher thaw`"),
            stopped: registry.registered("stopped_partitions", "1 where settling has stopped for good"),
        };
        (metrics, registry)
    }

    pub(crate) fn settled(&self, kind: &'static str) {
        self.settled.get_or_create(&[("kind", kind)]).inc();
    }

    pub(crate) fn repair(&self, kind: &'static str) {
        self.repairs.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts an alarm; the caller logs what it is about.
    pub(crate) fn alarm(&self, kind: &'static str) {
        self.alarms.get_or_create(&[("kind", kind)]).inc();
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
            gauges.get_or_create(&[("partition", partition)]).set(value);
        }
    }

    pub(crate) fn stopped(&self, partition: i32) {
        set(&self.stopped, partition, 1);
    }

    /// Takes a partition that went to another member out of the gauges.
    pub(crate) fn forget(&self, partition: i32) {
        let label = [("partition", partition)];
        for gauges in [&self.queued, &self.repairing, &self.behind, &self.unlike, &self.frozen, &self.stopped] {
            gauges.remove(&label);
        }
    }
}

fn set(gauges: &Family<Partition, Gauge>, partition: i32, value: usize) {
    gauges.get_or_create(&[("partition", partition)]).set(i64::try_from(value).unwrap_or(i64::MAX));
}
