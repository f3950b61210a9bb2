//! What buyers and the keeper were told against what is there.
//!
//! A 202 is a promise: the order has a row, an event, one fate. An order whose buyer was told nothing is fine, since answers get lost; an
//! order that nobody asked for is not. And what was told once is not taken back: no "pending" after a fate, no "unknown" after a 202.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use domain::{OrderId, OrderStatus, RequestBody, VoucherId, VoucherState};
use testkit::World;

use super::{Findings, Promise, Subject, stores::Stores};
use crate::ledger::{Book, Call, Change, Done, Outcome, Trouble, What};

/// A look that took so long was answered without Postgres, which is not waited for longer where an order is reserved.
const SLOW: Duration = Duration::from_secs(1);

/// What a status call answers where there is no such order.
const UNKNOWN_ORDER: &str = "unknown_order";

/// The calls by the order that they were about: in the order of ids, so that the same run names the same order first.
pub(super) struct Asked {
    pub(super) calls: BTreeMap<OrderId, Vec<Arc<Call>>>,
}

impl Asked {
    pub(super) fn of(world: &World, book: &Book) -> Self {
        let mut calls: BTreeMap<OrderId, Vec<Arc<Call>>> = BTreeMap::new();
        for call in &book.calls {
            // The id follows from the try, so a call without an answer has one too.
            let order = match &call.what {
                What::Purchase { key, .. } => world.order_id(&call.voucher, &call.user, key.as_deref()),
                What::Status(order) => *order,
                What::Nonsense(_) => continue,
            };
            calls.entry(order).or_default().push(Arc::clone(call));
        }
        Self { calls }
    }

    /// Whether some buyer was told that this order is accepted.
    pub(super) fn was_told(&self, order: &OrderId) -> bool {
        self.calls.get(order).is_some_and(|calls| calls.iter().any(|call| accepted(call).is_some()))
    }
}

/// The status told, where the order was accepted or found.
fn accepted(call: &Call) -> Option<Option<OrderStatus>> {
    match &call.outcome {
        Outcome::Accepted { status, .. } => Some(*status),
        _ => None,
    }
}

fn is_purchase(call: &Call) -> bool {
    matches!(call.what, What::Purchase { .. })
}

pub(super) fn judge(book: &Book, asked: &Asked, stores: &Stores, findings: &mut Findings) {
    let in_log: HashSet<OrderId> = stores.events.iter().filter_map(|(event, _)| event.body.order_id()).collect();
    for (order, calls) in &asked.calls {
        ids(order, calls, findings);
        fate(order, calls, stores, &in_log, findings);
        backwards(order, calls, &book.troubles, findings);
    }
    strangers(asked, stores, findings);
    for call in &book.calls {
        if let (What::Nonsense(what), Outcome::Accepted { order_id, .. }) = (&call.what, &call.outcome) {
            let what = format!("a call that makes no sense ({what}) was accepted as order {order_id}");
            findings.broken(Promise::Answers, Subject::Order(*order_id), what);
        }
    }
    keeper(book, stores, findings);
}

/// The same try is the same order, in every process.
fn ids(order: &OrderId, calls: &[Arc<Call>], findings: &mut Findings) {
    for call in calls {
        if let Outcome::Accepted { order_id, .. } = &call.outcome
            && order_id != order
        {
            let what = format!("user {} asked for order {order} and was told {order_id}", call.user);
            findings.broken(Promise::Answers, Subject::Order(*order), what);
        }
    }
}

/// An accepted order has a fate, everywhere; it is the one that was told.
fn fate(order: &OrderId, calls: &[Arc<Call>], stores: &Stores, in_log: &HashSet<OrderId>, findings: &mut Findings) {
    let told: Vec<(&Call, Option<OrderStatus>)> = calls.iter().filter_map(|call| Some((&**call, accepted(call)?))).collect();
    let row = stores.orders.get(order);
    if let Some((call, _)) = told.first() {
        let missing = match (in_log.contains(order), row.is_some()) {
            (false, false) => "neither the log nor Postgres knows it",
            (false, true) => "it has a row, but no event",
            (true, false) => "it has events, but no row",
            (true, true) => "",
        };
        if !missing.is_empty() {
            let what = format!("order {order} of user {} for voucher {} was accepted, but {missing}", call.user, call.voucher);
            findings.broken(Promise::NoLimbo, Subject::Order(*order), what);
        }
    }
    let Some(row) = row else { return };
    let mut broken = |what: String| findings.broken(Promise::Answers, Subject::Order(*order), format!("order {order} {what}"));
    if let Some((call, status)) = told.iter().find(|(_, status)| status.is_some_and(|status| !can_become(status, row.status))) {
        let status = status.map_or("pending", OrderStatus::as_str);
        broken(format!("was told to be {status} to user {}, but is {}", call.user, row.status.as_str()));
    }
    let quantity = |call: &Arc<Call>| match call.what {
        What::Purchase { quantity, .. } => Some(quantity),
        _ => None,
    };
    let purchases = || calls.iter().filter(|call| is_purchase(call));
    if purchases().next().is_some() && !purchases().any(|call| quantity(call) == Some(row.quantity)) {
        broken(format!("is for {} units, which nobody asked for", row.quantity));
    }
    if let Some(call) = calls.iter().find(|call| call.user != row.user_id.as_str() || call.voucher != row.voucher_id) {
        broken(format!("of {} for {} was asked for by {} for {}", row.user_id, row.voucher_id, call.user, call.voucher));
    }
}

/// Whether an order that was told to be `told` can be `now` later.
fn can_become(told: OrderStatus, now: OrderStatus) -> bool {
    use OrderStatus::{Cancelled, Confirmed, Expired, Paid};
    told == now || matches!((told, now), (Confirmed, Paid | Cancelled | Expired) | (Paid, Cancelled))
}

/// A status call that was begun when something had been told must not tell less. Only without Postgres is an order called pending for as
/// long as it is reserved, which it is again when it is asked for again after its decision.
fn backwards(order: &OrderId, calls: &[Arc<Call>], troubles: &[Trouble], findings: &mut Findings) {
    let without_postgres = |look: &Call| {
        let mut meanwhile = troubles.iter().filter(|t| t.from <= look.ended && t.to >= look.begun);
        look.ended.duration_since(look.begun) > SLOW || meanwhile.any(|t| t.with.contains(&"postgres"))
    };
    let looks = calls.iter().filter(|call| matches!(call.what, What::Status(_)));
    for look in looks {
        let before = || calls.iter().filter(|call| call.ended <= look.begun);
        let known = before().find_map(|call| accepted(call).flatten());
        let wrong = match (&look.outcome, known) {
            (Outcome::Accepted { status: None, .. }, Some(fate)) if !without_postgres(look) => {
                format!("was told to be pending, having been told to be {}", fate.as_str())
            }
            (Outcome::Accepted { status: Some(now), .. }, Some(_)) => {
                match before().filter_map(|call| accepted(call).flatten()).find(|before| !can_become(*before, *now)) {
                    Some(before) => format!("was told to be {}, having been told to be {}", now.as_str(), before.as_str()),
                    None => continue,
                }
            }
            (Outcome::Refused { code }, _) if code == UNKNOWN_ORDER && before().any(|call| accepted(call).is_some()) => {
                "was told to be unknown, having been accepted".to_owned()
            }
            _ => continue,
        };
        return findings.broken(Promise::Answers, Subject::Order(*order), format!("order {order} {wrong}"));
    }
}

/// Nothing is there that no buyer asked for.
fn strangers(asked: &Asked, stores: &Stores, findings: &mut Findings) {
    let wanted = |order: &OrderId| asked.calls.get(order).is_some_and(|calls| calls.iter().any(|call| is_purchase(call)));
    let mut told = HashSet::new();
    for request in &stores.requests {
        if let Some(RequestBody::OrderRequested { order_id, user_id, .. }) = request.request.as_ref().map(|r| &r.body)
            && !wanted(order_id)
            && told.insert(*order_id)
        {
            let what = format!("order {order_id} of user {user_id} was requested, but no buyer asked for it");
            findings.broken(Promise::Replay, Subject::Order(*order_id), what);
        }
    }
    for row in stores.orders.values().filter(|row| !wanted(&row.id) && !told.contains(&row.id)) {
        let what = format!("order {} of user {} has a row, but no buyer asked for it", row.id, row.user_id);
        findings.broken(Promise::Replay, Subject::Order(row.id), what);
    }
}

/// What the keeper was told to be done is done, and only that.
fn keeper(book: &Book, stores: &Stores, findings: &mut Findings) {
    let mut by_voucher: HashMap<&VoucherId, Vec<(&Change, &Done)>> = HashMap::new();
    for deed in &book.deeds {
        by_voucher.entry(&deed.voucher).or_default().push((&deed.change, &deed.done));
    }
    for (id, deeds) in by_voucher {
        let mut broken = |what: String| {
            let what = format!("voucher {id} {what}");
            findings.broken(Promise::Answers, Subject::Voucher(id.clone()), what);
        };
        let done = |wanted: fn(&Change) -> bool| deeds.iter().any(|(change, done)| wanted(change) && **done == Done::Yes);
        let Some(row) = stores.vouchers.get(id) else {
            if done(|change| matches!(change, Change::Publish { .. })) {
                broken("was published, but has no row".to_owned());
            }
            continue;
        };
        if done(|change| *change == Change::Close) && row.state != VoucherState::Closed {
            broken(format!("was closed, but is {}", row.state.as_str()));
        }
        let mut total = 0;
        let mut certain = true;
        for (change, done) in &deeds {
            let units = match change {
                Change::Publish { total, .. } => *total,
                Change::Stock { delta } => *delta,
                Change::Pause | Change::Resume | Change::Close => continue,
            };
            match done {
                Done::Yes => total += units,
                // Published it is, since it has a row.
                Done::Unknown(_) if matches!(change, Change::Publish { .. }) => total += units,
                Done::Unknown(_) => certain = false,
                Done::Refused(_) => {}
            }
        }
        if certain && total != row.terms.total {
            broken(format!("has {} units in all; what was published and changed makes {total}", row.terms.total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fate_that_was_told_can_only_go_on() {
        use OrderStatus::{Cancelled, Confirmed, Expired, Paid, Rejected};
        let allowed = [(Confirmed, Paid), (Confirmed, Cancelled), (Confirmed, Expired), (Paid, Cancelled)];
        for told in OrderStatus::ALL {
            for now in OrderStatus::ALL {
                assert_eq!(can_become(told, now), told == now || allowed.contains(&(told, now)), "{told:?} {now:?}");
            }
        }
        assert!(!can_become(Rejected, Confirmed));
    }
}
