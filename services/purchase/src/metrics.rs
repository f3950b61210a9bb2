//! What this service counts. No label names a user or an order.

use std::time::Instant;

use infra::telemetry::{Label, Register};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Upper ends of the histogram's buckets in seconds: from a fast reserve to a producer that gives up.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0];

/// The service's counters; clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    answers: Family<[(&'static str, &'static str); 2], Counter>,
    seconds: Family<Label<&'static str>, Histogram, fn() -> Histogram>,
    /// Purchases that are worked on.
    pub(crate) in_flight: Gauge,
    /// Calls that wait their turn.
    pub(crate) waiting: Gauge,
    /// Purchases answered "pending" and not acknowledged yet.
    pub(crate) unacknowledged: Gauge,
    /// Reservations given back because the request was not persisted.
    pub(crate) released: Counter,
    /// Repeats answered from a remembered acknowledgement, without publishing again.
    pub(crate) remembered: Counter,
    /// Requests published again after an answer "pending".
    pub(crate) published_again: Counter,
}

impl Metrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            answers: registry.registered("answers", "Answers by call and code"),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            in_flight: registry.registered("in_flight", "Purchases that are worked on"),
            waiting: registry.registered("waiting", "Calls that wait their turn"),
            unacknowledged: registry.registered("unacknowledged", "Purchases answered pending, not acknowledged yet"),
            released: registry.registered("released", "Reservations given back: not persisted"),
            remembered: registry.registered("remembered", "Repeats answered from a remembered acknowledgement"),
            published_again: registry.registered("published_again", "Requests published again after an answer"),
        };
        registry.register_with_unit("step", "Time of a purchase's steps", Unit::Seconds, metrics.seconds.clone());
        metrics
    }

    pub(crate) fn answered(&self, call: &'static str, code: &'static str) {
        self.answers.get_or_create(&[("call", call), ("code", code)]).inc();
    }

    /// Measures one step of a purchase.
    pub(crate) async fn time<T>(&self, step: &'static str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        self.seconds.get_or_create(&[("step", step)]).observe(started.elapsed().as_secs_f64());
        done
    }
}
