//! What a comparison says.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ReplayError;

/// Differences named one by one; the rest is only counted.
const NAMED: usize = 20;

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// A request below the lane's position has no event.
    RequestUnanswered,
    /// An event answers a request that was answered before, or comes out of order.
    EventRepeated,
    /// An event answers an offset at which there is no request.
    EventUnfounded,
    /// The request at the offset an event answers is another one than the event says.
    RequestReplaced,
    /// An event is not what the rules make of its request.
    Decision,
    /// A voucher was opened on two partitions, or refused as opened elsewhere and is not.
    VoucherPlace,
    /// A voucher's events are not numbered 1, 2, 3, ...
    VoucherSeqGap,
    /// The log itself breaks conservation.
    Conservation,
    /// The log holds events that Postgres knows nothing of.
    PostgresBehind,
    /// A lane's position is not one that the log could have led to.
    Position,
    VoucherRow,
    /// A voucher's rows of orders add up to other numbers than its events.
    OrderRows,
    OrderRowChanged,
    OrderRowMissing,
    OrderRowExtra,
    /// The tables' own constraints refuse what the log folds into.
    Refused,
    /// Redis does not have a voucher that it must not have forgotten yet.
    RedisMissing,
    /// Redis has a voucher that the log has not opened.
    RedisUnknown,
    /// A voucher's keys in Redis have a content that nobody writes.
    RedisDamaged,
    /// Redis was found wrong twice and does not sell the voucher.
    RedisFrozen,
    /// Redis' numbers or terms differ from the log at the same `voucher_seq`.
    RedisVoucher,
    RedisReserved,
    RedisHeld,
    /// A reservation is older than any request in flight, and nobody has published it.
    StaleReservation,
    DeadLetter,
}

/// One thing that is not as the log says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub kind: Kind,
    pub what: String,
}

/// Whether the log, Postgres and Redis tell the same story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    Equal,
    /// `first`: the first of them by name; `counts`: all by kind.
    Different {
        counts: BTreeMap<Kind, u64>,
        first: Vec<Difference>,
    },
    /// Nothing wrong was found, but not everything could be looked at.
    CannotTell {
        reasons: Vec<String>,
    },
}

/// Whoever has looked at nothing cannot tell.
impl Default for Verdict {
    fn default() -> Self {
        Self::CannotTell { reasons: Vec::new() }
    }
}

/// Collects what a comparison finds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    counts: BTreeMap<Kind, u64>,
    first: Vec<Difference>,
    doubts: Vec<String>,
}

impl Findings {
    pub(crate) fn differs(&mut self, kind: Kind, what: impl Into<String>) {
        *self.counts.entry(kind).or_default() += 1;
        if self.first.len() < NAMED {
            self.first.push(Difference { kind, what: what.into() });
        }
    }

    pub(crate) fn doubt(&mut self, reason: impl Into<String>) {
        self.doubts.push(reason.into());
    }

    /// What has to happen first, and does not, is a doubt.
    pub(crate) fn unless_late<T>(&mut self, result: Result<T, ReplayError>) -> Result<Option<T>, ReplayError> {
        match result {
            Err(ReplayError::NotNow(late)) => {
                self.doubt(late);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.first.extend(other.first.into_iter().take(NAMED.saturating_sub(self.first.len())));
        self.doubts.extend(other.doubts);
    }

    /// A difference is certain whatever could not be looked at; so it wins.
    pub(crate) fn verdict(self) -> Verdict {
        if !self.counts.is_empty() {
            Verdict::Different { counts: self.counts, first: self.first }
        } else if !self.doubts.is_empty() {
            Verdict::CannotTell { reasons: self.doubts }
        } else {
            Verdict::Equal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_wins_over_a_doubt_and_a_doubt_over_nothing() {
        assert_eq!(Findings::default().verdict(), Verdict::Equal);
        let mut findings = Findings::default();
        findings.doubt("away");
        let mut worse = Findings::default();
        worse.differs(Kind::Position, "x");
        worse.add(findings);
        assert!(matches!(worse.verdict(), Verdict::Different { counts, .. } if counts[&Kind::Position] == 1));
        let mut doubtful = Findings::default();
        doubtful.doubt("away");
        assert_eq!(doubtful.verdict(), Verdict::CannotTell { reasons: vec!["away".to_owned()] });
    }

    #[test]
    fn all_are_counted_and_only_the_first_named() {
        let mut findings = Findings::default();
        (0..100).for_each(|n| findings.differs(Kind::OrderRowExtra, n.to_string()));
        let Verdict::Different { counts, first } = findings.verdict() else { panic!("differences were found") };
        assert_eq!((counts[&Kind::OrderRowExtra], first.len()), (100, NAMED));
        assert_eq!(Kind::OrderRowExtra.to_string(), "order_row_extra");
    }
}
