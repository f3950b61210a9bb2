//! What must hold at the end of the demo.

use load::Report;
use replay::{Audit, Verdict};

use super::fates::Fates;

/// One thing that must hold.
pub(super) struct Check {
    pub(super) what: String,
    pub(super) holds: bool,
}

/// `settled`: whether everything came to rest.
pub(super) fn all(units: i64, report: &Report, fates: &Fates, audit: &Audit, settled: Result<(), String>) -> Vec<Check> {
    let (accepted, missing) = (report.accepted_buyers(), fates.missing(report));
    let fated = match missing {
        0 => format!("each of the {accepted} buyers answered 202 has exactly one fate"),
        _ => format!("{missing} orders answered 202 have no fate"),
    };
    let at_most_one = report.visits.iter().all(|visit| visit.orders.len() <= 1);
    vec![
        check("conservation: Redis, the log and Postgres tell the same story", audit.verdict == Verdict::Equal),
        sold(units, report, fates),
        check(fated, missing == 0 && fates.decided_twice() == 0),
        check("nobody was given two orders for one wish", at_most_one),
        of("everything accepted was decided and settled, nothing is in flight", settled),
    ]
}

fn check(what: impl Into<String>, holds: bool) -> Check {
    Check { what: what.into(), holds }
}

/// `ended`: whether the services ended well when they were asked to.
pub(super) fn ended(ended: Result<(), String>) -> Check {
    of("the services ended well on SIGTERM and never had to be started again", ended)
}

fn of(what: &str, outcome: Result<(), String>) -> Check {
    match outcome {
        Ok(()) => check(what, true),
        Err(problem) => check(format!("{what}: {problem}"), false),
    }
}

/// Exactly as many units are sold as there are, or as are wanted. A buyer who never got an answer may or may not have ordered.
fn sold(units: i64, report: &Report, fates: &Fates) -> Check {
    let unsure = report.visits.iter().filter(|v| v.orders.is_empty() && v.last.may_retry()).count() as i64;
    let wanted = report.visits.len() as i64;
    let (least, most) = (units.min(wanted - unsure), units.min(wanted));
    let sold = i64::try_from(fates.confirmed()).unwrap_or(i64::MAX);
    let expected = if least == most { most.to_string() } else { format!("{least} to {most}") };
    check(format!("{sold} units sold of {units}, {expected} expected"), (least..=most).contains(&sold))
}
