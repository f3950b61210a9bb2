//! What a run found.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{Answer, Cost};

/// Longest latency the histograms can hold apart; longer ones count as this.
const LONGEST: Duration = Duration::from_secs(600);

/// Significant digits of a recorded latency.
const DIGITS: u8 = 3;

/// How a run stands while it goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Buyers who have arrived.
    pub arrived: usize,
    pub buyers: usize,
    /// Answers by outcome; a buyer who clicks twice or retries gives several.
    pub accepted: u64,
    pub refused: u64,
    /// Overload, errors, no answer.
    pub failed: u64,
    pub elapsed: Duration,
}

impl Progress {
    pub(crate) fn count(&mut self, answer: &Answer) {
        match () {
            () if answer.is_accepted() => self.accepted += 1,
            () if answer.may_retry() => self.failed += 1,
            () => self.refused += 1,
        }
    }
}

/// One buyer's visit, from the click he meant to make to his last answer.
#[derive(Clone, Debug)]
pub struct Visit {
    pub user: String,
    /// When he meant to click.
    pub intended: Instant,
    /// All order ids he was answered 202 with, without repeats: more than one is a fault of the shop.
    pub orders: Vec<String>,
    /// The last answer he got, to either click.
    pub last: Answer,
}

/// A distribution of latencies, in microseconds.
#[derive(Clone, Debug)]
pub struct Quantiles(Histogram<u64>);

impl Quantiles {
    pub fn new() -> Self {
        let longest = u64::try_from(LONGEST.as_micros()).expect("ten minutes in microseconds fit 64 bits");
        Self(Histogram::new_with_bounds(1, longest, DIGITS).expect("the bounds are valid constants"))
    }

    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Takes all of the others in.
    pub fn add(&mut self, others: &Self) {
        self.0.add(&others.0).expect("all have the same bounds");
    }

    /// The latency that `share` (0 to 1) of the recorded ones do not exceed; `None` if nothing was recorded.
    pub fn at(&self, share: f64) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_micros(self.0.value_at_quantile(share)))
    }
}

impl Default for Quantiles {
    fn default() -> Self {
        Self::new()
    }
}

impl Serialize for Quantiles {
    /// Count and quantiles in milliseconds.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = |share| self.at(share).map(|d| d.as_secs_f64() * 1e3);
        let shares = [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p99.9_ms", 0.999), ("max_ms", 1.0)];
        let mut fields: BTreeMap<&str, serde_json::Value> =
            shares.into_iter().map(|(name, share)| (name, serde_json::json!(ms(share)))).collect();
        fields.insert("count", self.count().into());
        fields.serialize(serializer)
    }
}

/// The whole of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of answers by kind.
    pub answers: BTreeMap<String, u64>,
    /// One per buyer, in order of arrival.
    pub visits: Vec<Visit>,
    /// From the start until the last buyer was on his way: longer than the plan's window where this process itself was late.
    pub offered: Duration,
    /// From the intended click to a 202.
    pub accepted: Quantiles,
    /// From the intended click to any answer of the shop.
    pub answered: Quantiles,
    pub cost: Cost,
}

impl Report {
    /// Buyers who hold a 202.
    pub fn accepted_buyers(&self) -> usize {
        self.visits.iter().filter(|v| !v.orders.is_empty()).count()
    }

    pub(crate) fn add(&mut self, answer: &Answer, latency: Duration) {
        *self.answers.entry(answer.kind.clone()).or_default() += 1;
        if answer.is_accepted() {
            self.accepted.record(latency);
        }
        if answer.status != 0 {
            self.answered.record(latency);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_nothing_are_nothing_and_long_ones_are_kept() {
        let mut q = Quantiles::new();
        assert_eq!(q.at(0.5), None);
        q.record(Duration::from_millis(10));
        q.record(Duration::from_secs(100_000));
        assert_eq!(q.count(), 2);
        assert!(q.at(0.5).is_some_and(|d| d.as_millis() == 10));
        assert!(q.at(1.0).is_some_and(|d| d >= Duration::from_secs(599)));
    }
}
