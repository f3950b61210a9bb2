//! Whether the invariants of `docs/ARCHITECTURE.md` hold after a run, judged from every answer that anybody got, Redis, the log and Postgres.
//!
//! The judgement is made three times, each time with less trust in the code under test:
//! 1. `replay`'s audit: the fold of the log, row by row and voucher by voucher, against Postgres and Redis, and every event against the rules;
//! 2. plain counting ([`units`]) of units in the log, the tables and Redis, which uses neither the rules nor the fold;
//! 3. the ledger ([`answers`]): what buyers and the keeper were told against what is there.
//!
//! Everything that breaks is told by name, with the timeline of the order or voucher in question.

mod answers;
mod rest;
mod stores;
mod timeline;
mod units;

use std::{
    fmt,
    time::{Duration, Instant},
};

use domain::{OrderId, OrderStatus, VoucherId};
use replay::{AuditOptions, Kind, Verdict};
use testkit::World;

use self::{answers::Asked, stores::Stores};
use crate::ledger::{Counts, Ledger};

/// Violations that are told with their timeline; the causes are among the first, and the rest mostly repeats them.
const WITH_TIMELINE: usize = 30;

/// Times an audit is made that could not tell, as on a busy machine where Redis answers later than a buyer would wait.
const AUDITS: u32 = 5;

/// Violations that are kept in all; one broken voucher can break thousands of orders.
const KEPT: usize = 200;

/// A promise of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// I1: no unit is lost, none is made.
    Conservation,
    /// I2: nobody holds more than one user may.
    Limit,
    /// I3: 0 <= stock <= total at rest.
    Bounds,
    /// I4: every accepted order reaches exactly one fate.
    NoLimbo,
    /// I5: the log says what the tables and Redis say, each request has one event, and nothing is there that nobody asked for.
    Replay,
    /// I6: the system comes to rest by itself.
    Recovery,
    /// What somebody was told was true, and stays true.
    Answers,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conservation => "I1 conservation",
            Self::Limit => "I2 limit of a user",
            Self::Bounds => "I3 bounds of stock",
            Self::NoLimbo => "I4 no limbo",
            Self::Replay => "I5 replay equals live",
            Self::Recovery => "I6 recovery",
            Self::Answers => "answers are true",
        })
    }
}

/// What breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Order(OrderId),
    Voucher(VoucherId),
    /// Neither, or it could not be told.
    Whole,
}

/// One promise that does not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    pub promise: Promise,
    pub subject: Subject,
    pub what: String,
    /// What happened to the subject, in order of time.
    pub timeline: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)?;
        self.timeline.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// What was looked at where everything holds.
#[derive(Clone, Debug)]
pub struct Summary {
    pub answers: Counts,
    pub vouchers: usize,
    pub requests: usize,
    pub events: usize,
    pub orders: usize,
    pub confirmed: usize,
    pub rejected: usize,
    /// Orders of which no buyer was told anything: their answers got lost on the way.
    pub untold: usize,
    /// Until everything was decided and settled, and how long the looking took afterwards.
    pub to_rest: Duration,
    pub looking: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answers, vouchers, requests, events, orders, confirmed, rejected, untold, to_rest, looking } = self;
        write!(
            f,
            "{orders} orders ({confirmed} confirmed, {rejected} rejected, {untold} untold) of {vouchers} vouchers by {answers}, \
             {requests} requests and {events} events agree; at rest after {:.1} s, checked in {:.1} s",
            to_rest.as_secs_f64(),
            looking.as_secs_f64()
        )
    }
}

/// Collects what breaks.
#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn broken(&mut self, promise: Promise, subject: Subject, what: impl Into<String>) {
        if self.0.len() < KEPT {
            self.0.push(Violation { promise, subject, what: what.into(), timeline: Vec::new() });
        }
    }
}

/// Waits, for at most `deadline`, until everything asked for is decided and settled, then says whether every promise holds. To be called
/// when faults are over, all services run, and buyers and keeper have stopped.
///
/// `Err` is never empty; the worst comes first: what the ledger and plain counting say, then the audit.
pub fn check(world: &World, ledger: &Ledger, deadline: Duration) -> Result<Summary, Vec<Violation>> {
    testkit::block_on(look(world, ledger, deadline))
}

async fn look(world: &World, ledger: &Ledger, deadline: Duration) -> Result<Summary, Vec<Violation>> {
    let mut findings = Findings::default();
    let began = Instant::now();
    let unrest = rest::wait(world, deadline).await.err().unwrap_or_default();
    let to_rest = began.elapsed();
    let book = ledger.book();
    let asked = Asked::of(world, &book);
    let stores = Stores::read(world).await;
    match &stores {
        Ok(stores) => {
            answers::judge(&book, &asked, stores, &mut findings);
            units::count(stores, &mut findings);
        }
        Err(error) => findings.broken(Promise::Recovery, Subject::Whole, format!("not everything can be read: {error:#}")),
    }
    for (subject, what) in unrest {
        let promise = if matches!(subject, Subject::Order(_)) { Promise::NoLimbo } else { Promise::Recovery };
        findings.broken(promise, subject, format!("not at rest within {deadline:?}: {what}"));
    }
    audit(world, &mut findings).await;
    if findings.0.is_empty()
        && let Ok(stores) = &stores
    {
        let looking = began.elapsed().saturating_sub(to_rest);
        return Ok(summary(ledger, &asked, stores, to_rest, looking));
    }
    let mut violations = findings.0;
    if let Ok(stores) = &stores {
        for violation in violations.iter_mut().take(WITH_TIMELINE) {
            violation.timeline = timeline::of(&violation.subject, &book, &asked, stores);
        }
    }
    Err(violations)
}

fn summary(ledger: &Ledger, asked: &Asked, stores: &Stores, to_rest: Duration, looking: Duration) -> Summary {
    let with = |status| stores.orders.values().filter(|order| order.status == status).count();
    Summary {
        answers: ledger.counts(),
        vouchers: stores.vouchers.len(),
        requests: stores.requests.len(),
        events: stores.events.len(),
        orders: stores.orders.len(),
        confirmed: with(OrderStatus::Confirmed),
        rejected: with(OrderStatus::Rejected),
        untold: stores.orders.keys().filter(|order| !asked.was_told(order)).count(),
        to_rest,
        looking,
    }
}

/// The log against Postgres, Redis and the rules, as `doorbuster audit` compares them.
async fn audit(world: &World, findings: &mut Findings) {
    let mut verdict = Verdict::Equal;
    for _ in 0..AUDITS {
        verdict = replay::audit(world.connections(), &world.codec(), AuditOptions::default()).await.verdict;
        if !matches!(verdict, Verdict::CannotTell { .. }) {
            break;
        }
    }
    match verdict {
        Verdict::Equal => {}
        Verdict::CannotTell { reasons } => {
            let what = format!("the audit could not tell: {}", reasons.join("; "));
            findings.broken(Promise::Recovery, Subject::Whole, what);
        }
        Verdict::Different { counts, first } => {
            for difference in first {
                let subject = named_in(&difference.what);
                let count = counts.get(&difference.kind).copied().unwrap_or(1);
                let what = format!("audit, {} ({count} in all): {}", difference.kind, difference.what);
                findings.broken(promise_of(difference.kind), subject, what);
            }
        }
    }
}

fn promise_of(kind: Kind) -> Promise {
    match kind {
        Kind::Conservation => Promise::Conservation,
        Kind::StaleReservation => Promise::NoLimbo,
        Kind::RedisFrozen => Promise::Recovery,
        _ => Promise::Replay,
    }
}

/// The order, else the voucher, that a text names.
fn named_in(text: &str) -> Subject {
    let words = || text.split(|c: char| c.is_whitespace() || "\",;()".contains(c)).map(|word| word.trim_end_matches(':'));
    if let Some(order) = words().find_map(|word| OrderId::parse(word).ok()) {
        return Subject::Order(order);
    }
    let behind = words().skip_while(|word| *word != "voucher").nth(1);
    behind.and_then(|word| VoucherId::parse(word).ok()).map_or(Subject::Whole, Subject::Voucher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_or_else_a_voucher_is_found_in_a_text() {
        let id = "0190b8a0-0000-8000-8000-000000000000";
        let order = Subject::Order(OrderId::parse(id).unwrap());
        assert_eq!(named_in(&format!("order {id}: quantity is 2, by the log 1")), order);
        assert_eq!(named_in(&format!("partition 1: event 3: body is {{\"order_id\":\"{id}\"}}, by the rules")), order);
        assert_eq!(named_in("voucher v-1: stock is 3 in Redis"), Subject::Voucher(VoucherId::parse("v-1").unwrap()));
        assert_eq!(named_in("a dead letter does not say where its record was found"), Subject::Whole);
    }
}
