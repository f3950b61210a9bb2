//! How long the system took to be well again after each kind of fault, as a table.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{fault, ledger::Counts};

/// What a run did and saw.
#[derive(Default)]
pub struct Report {
    /// Recoveries after rounds of one fault, by its kind.
    alone: BTreeMap<&'static str, Vec<Duration>>,
    /// Recoveries after rounds of several, with the sum of their bounds.
    together: Vec<(Duration, Duration)>,
    pub epochs: usize,
    pub faults: usize,
    pub answers: Counts,
    pub requests: usize,
    /// In Postgres, after the epochs that hold; likewise the requests in the log.
    pub orders: usize,
    pub confirmed: usize,
    pub took: Duration,
}

impl Report {
    /// Notes that the system recovered from a round of these kinds in this time.
    pub fn recovered(&mut self, kinds: &[fault::Kind], took: Duration) {
        match kinds {
            [kind] => self.alone.entry(kind.name).or_default().push(took),
            kinds => self.together.push((took, bound(kinds))),
        }
    }
}

/// Longest recovery that is allowed after these: they may have to follow one another.
pub fn bound(kinds: &[fault::Kind]) -> Duration {
    kinds.iter().map(|kind| kind.bound).sum()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epochs, faults, answers, requests, orders, confirmed, .. } = self;
        let minutes = self.took.as_secs_f64() / 60.0;
        writeln!(
            f,
            "{faults} faults in {epochs} epochs, {minutes:.0} min; {answers}; {orders} orders ({confirmed} confirmed), {requests} requests\n"
        )?;
        writeln!(f, "| fault, alone | times | median (s) | worst (s) | bound (s) | the bound is |\n|---|---|---|---|---|---|")?;
        for kind in fault::kinds() {
            let Some(times) = self.alone.get(kind.name) else { continue };
            let (median, worst) = spread(times);
            let bound = kind.bound.as_secs();
            writeln!(f, "| {} | {} | {median:.1} | {worst:.1} | {bound} | {} |", kind.name, times.len(), kind.why)?;
        }
        if !self.together.is_empty() {
            let times: Vec<_> = self.together.iter().map(|(took, _)| *took).collect();
            let (median, worst) = spread(&times);
            writeln!(f, "| several at once | {} | {median:.1} | {worst:.1} | - | the sum of theirs |", times.len())?;
        }
        Ok(())
    }
}

/// Median and longest, in seconds.
fn spread(times: &[Duration]) -> (f64, f64) {
    let mut sorted: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    (at(sorted.len() / 2), at(sorted.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_kinds_that_were_met_with_median_and_worst() {
        let kind = fault::kinds()[0];
        let mut report = Report { faults: 5, ..Report::default() };
        [3, 1, 2].into_iter().for_each(|s| report.recovered(&[kind], Duration::from_secs(s)));
        report.recovered(&[kind, fault::kinds()[1]], Duration::from_secs(9));
        let text = report.to_string();
        assert!(text.starts_with("5 faults"), "{text}");
        assert!(text.contains(&format!("| {} | 3 | 2.0 | 3.0 | {} |", kind.name, kind.bound.as_secs())), "{text}");
        assert!(text.contains("| several at once | 1 | 9.0 | 9.0 |"), "{text}");
    }
}
