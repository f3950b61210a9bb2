//! What `audit --watch` offers, all named `doorbuster_audit_*`.

use std::sync::atomic::AtomicU64;

use domain::Timestamp;
use infra::telemetry::{Label, Register};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use replay::{Audit, Verdict};

use super::code_of;
use crate::UNKNOWN;

type Seconds = Gauge<f64, AtomicU64>;

/// Handles to every metric.
pub(super) struct Metrics {
    rounds: Family<Label<&'static str>, Counter>,
    verdict: Gauge,
    differences: Family<Label<String>, Gauge>,
    drift: Gauge,
    took: Seconds,
    last_round: Seconds,
    last_equal: Seconds,
}

impl Metrics {
    pub(super) fn new() -> (Self, Registry) {
        let mut registry = Registry::with_prefix("doorbuster_audit");
        let metrics = Self {
            rounds: registry.registered("rounds", "Audits made, by verdict"),
            verdict: registry.registered("last_verdict", "0 equal, 1 different, 2 could not tell (or none yet)"),
            differences: registry.registered("differences", "Differences found by the last audit, by kind"),
            drift: registry.registered("drift_units", "Units that Redis or Postgres counted otherwise than the log"),
            took: registry.registered("round_seconds", "Time that the last audit took"),
            last_round: registry.registered("last_round_timestamp_seconds", "When the last audit ended"),
            last_equal: registry.registered("last_equal_timestamp_seconds", "When the last audit ended that was equal"),
        };
        metrics.verdict.set(UNKNOWN.into());
        (metrics, registry)
    }

    /// Shows an audit that ended now.
    pub(super) fn told(&self, audit: &Audit, now: Timestamp) {
        let seconds = now.0 as f64 / 1e3;
        let verdict = match &audit.verdict {
            Verdict::Equal => "equal",
            Verdict::Different { .. } => "different",
            Verdict::CannotTell { .. } => "cannot_tell",
        };
        self.rounds.get_or_create(&[("verdict", verdict)]).inc();
        self.verdict.set(code_of(&audit.verdict).into());
        self.differences.clear();
        match &audit.verdict {
            Verdict::Equal => {
                self.last_equal.set(seconds);
            }
            Verdict::Different { counts, .. } => counts.iter().for_each(|(kind, count)| {
                self.differences.get_or_create(&[("kind", kind.to_string())]).set(i64::try_from(*count).unwrap_or(i64::MAX));
            }),
            Verdict::CannotTell { .. } => {}
        }
        self.drift.set(i64::try_from(audit.drift_units).unwrap_or(i64::MAX));
        self.took.set(audit.seconds);
        self.last_round.set(seconds);
    }
}
