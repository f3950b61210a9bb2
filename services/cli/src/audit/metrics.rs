//! What `audit --watch` offers, all named `doorbuster_audit_*`. A round that could not tell changes nothing of what the last verdict said: an alert
//! about a difference must not end because nobody can look any more.

use std::{collections::BTreeMap, sync::atomic::AtomicU64};

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
    last_verdict: Seconds,
    last_equal: Seconds,
}

impl Metrics {
    pub(super) fn new() -> (Self, Registry) {
        let mut registry = Registry::with_prefix("doorbuster_audit");
        let metrics = Self {
            rounds: registry.registered("rounds", "Audits made, by verdict"),
            verdict: registry.registered("last_verdict", "The last that was reached: 0 equal, 1 different; 2 none yet"),
            differences: registry.registered("differences", "Differences of the last verdict, by kind"),
            drift: registry
                .registered("drift_units", "Units that Redis or Postgres counted otherwise than the log, at the last verdict"),
            took: registry.registered("round_seconds", "Time that the last audit took"),
            last_round: registry.registered("last_round_timestamp_seconds", "When the last audit ended"),
            last_verdict: registry.registered("last_verdict_timestamp_seconds", "When the last audit ended that could tell"),
            last_equal: registry.registered("last_equal_timestamp_seconds", "When the last audit ended that was equal"),
        };
        metrics.verdict.set(UNKNOWN.into());
        (metrics, registry)
    }

    /// Shows an audit that ended now.
    pub(super) fn told(&self, audit: &Audit, now: Timestamp) {
        let seconds = now.0 as f64 / 1e3;
        self.took.set(audit.seconds);
        self.last_round.set(seconds);
        let round = |verdict| self.rounds.get_or_create(&[("verdict", verdict)]).inc();
        let differences = match &audit.verdict {
            Verdict::CannotTell { .. } => {
                round("cannot_tell");
                return;
            }
            Verdict::Equal => {
                round("equal");
                self.last_equal.set(seconds);
                &BTreeMap::new()
            }
            Verdict::Different { counts, .. } => {
                round("different");
                counts
            }
        };
        self.verdict.set(code_of(&audit.verdict).into());
        self.last_verdict.set(seconds);
        self.drift.set(i64::try_from(audit.drift_units).unwrap_or(i64::MAX));
        self.differences.clear();
        for (kind, count) in differences {
            self.differences.get_or_create(&[("kind", kind.to_string())]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use replay::{Kind, Verdict::*};

    use super::*;

    fn audit(verdict: Verdict, drift_units: u64) -> Audit {
        Audit { verdict, drift_units, ..Audit::default() }
    }

    #[test]
    fn a_round_that_cannot_tell_leaves_the_last_verdict_standing() {
        let (metrics, registry) = Metrics::new();
        let shows = |wanted: &[&str]| {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            for line in wanted {
                assert!(text.contains(&format!("\ndoorbuster_audit_{line}\n")), "{line}: {text}");
            }
        };
        let blind = audit(CannotTell { reasons: vec!["Redis is away".to_owned()] }, 0);
        metrics.told(&blind, Timestamp(1_000));
        shows(&["last_verdict 2", "last_verdict_timestamp_seconds 0.0", "last_round_timestamp_seconds 1.0"]);
        let counts = BTreeMap::from([(Kind::RedisVoucher, 3)]);
        metrics.told(&audit(Different { counts, first: Vec::new() }, 7), Timestamp(2_000));
        metrics.told(&blind, Timestamp(3_000));
        shows(&[
            "last_verdict 1",
            "differences{kind=\"redis_voucher\"} 3",
            "drift_units 7",
            "last_verdict_timestamp_seconds 2.0",
        ]);
        shows(&[
            "last_round_timestamp_seconds 3.0",
            "rounds_total{verdict=\"cannot_tell\"} 2",
            "last_equal_timestamp_seconds 0.0",
        ]);
        metrics.told(&audit(Equal, 0), Timestamp(4_000));
        shows(&["last_verdict 0", "drift_units 0", "last_equal_timestamp_seconds 4.0", "last_verdict_timestamp_seconds 4.0"]);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(!text.contains("redis_voucher"), "{text}");
    }
}
