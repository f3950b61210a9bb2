//! A voucher as it was: its events folded again up to some point of the log.

use std::{collections::BTreeMap, ops::ControlFlow, time::Instant};

use domain::{Event, Order, State, Timestamp, Voucher, VoucherId, conservation};
use events::Codec;
use infra::config::Connections;
use serde::Serialize;

use crate::{
    ReplayError, Verdict,
    audit::log::seq_before,
    verdict::{Findings, Kind},
    walk::{Log, Point, Walk, blocking, home},
};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct StateOptions {
    pub voucher: VoucherId,
    /// Where the voucher lives; without: as its row in Postgres says, which is asked for nothing else.
    pub partition: Option<i32>,
    /// The last event that counts.
    pub at: Point,
    /// Gives each order, too, which takes memory for all of them; without, for the live ones.
    pub orders: bool,
}

/// A voucher at a point of the log.
#[derive(Clone, Debug, Serialize)]
pub struct StateAt {
    /// [`Verdict::Different`]: the log itself is wrong up to there.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// `None`: it was not opened yet.
    pub voucher: Option<Voucher>,
    pub partition: i32,
    /// Offset of the voucher's last event that counts, and when it was decided.
    pub last_event: Option<(i64, Timestamp)>,
    /// The point lies behind the end of the log; so this is the state at its end.
    pub is_at_end: bool,
    /// By status.
    pub orders: BTreeMap<&'static str, Tally>,
    /// In the order of their decisions, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed: Option<Vec<Order>>,
    /// Events of the partition that were read.
    pub events: u64,
    pub seconds: f64,
}

/// Orders of one status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    pub orders: u64,
    pub units: i64,
}

/// Folds the voucher's partition from its beginning up to the point.
pub async fn state_at(connections: &Connections, codec: &Codec, options: StateOptions) -> Result<StateAt, ReplayError> {
    let partition = home(connections, &options.voucher, options.partition).await?;
    let log = Log::of(connections, codec);
    blocking(move || fold(log.events(partition)?, options)).await
}

fn fold(mut events: Walk, options: StateOptions) -> Result<StateAt, ReplayError> {
    let started = Instant::now();
    let ends = events.whole()?;
    let to = events.behind(options.at, &ends)?;
    let mut fold = Fold { keeps_all: options.orders, ..Fold::of(options.voucher) };
    events.events(0, to, |event, offset| {
        fold.take(&event, offset);
        Ok(ControlFlow::Continue(()))
    })?;
    let Fold { voucher, keeps_all, mut state, mut orders, last_event, mut findings, .. } = fold;
    for breach in conservation::breaches(&state) {
        findings.differs(Kind::Conservation, breach.to_string());
    }
    state.orders.values().for_each(|order| count(&mut orders, order));
    let listed = keeps_all.then(|| {
        let mut listed: Vec<Order> = state.orders.into_values().collect();
        listed.sort_by_key(|order| order.request_offset);
        listed
    });
    Ok(StateAt {
        verdict: findings.verdict(),
        voucher: state.vouchers.remove(&voucher),
        partition: events.partition,
        last_event,
        is_at_end: matches!(options.at, Point::Time(_)) && to == ends.stable,
        orders,
        listed,
        events: events.records_read,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// One voucher as its events make it. Of orders that have met their fate only the number is kept, so that what stays in memory are the live ones.
struct Fold {
    voucher: VoucherId,
    keeps_all: bool,
    state: State,
    /// Those that are not in `state` any more.
    orders: BTreeMap<&'static str, Tally>,
    last_event: Option<(i64, Timestamp)>,
    findings: Findings,
}

impl Fold {
    fn of(voucher: VoucherId) -> Self {
        let (state, orders, findings) = (State::default(), BTreeMap::new(), Findings::default());
        Self { voucher, keeps_all: false, state, orders, last_event: None, findings }
    }

    fn take(&mut self, event: &Event, offset: i64) {
        if event.voucher_id.as_ref() != Some(&self.voucher) || event.voucher_seq == 0 {
            return;
        }
        self.last_event = Some((offset, event.decided_at));
        seq_before(&self.state, &self.voucher, event, offset, &mut self.findings);
        self.state.evolve(event);
        // Only decisions look at them.
        self.state.payments.clear();
        let Some(id) = event.body.order_id().filter(|_| !self.keeps_all) else { return };
        if self.state.orders.get(&id).is_some_and(|order| !order.status.is_live())
            && let Some(order) = self.state.orders.remove(&id)
        {
            count(&mut self.orders, &order);
        }
    }
}

fn count(orders: &mut BTreeMap<&'static str, Tally>, order: &Order) {
    let tally = orders.entry(order.status.as_str()).or_default();
    tally.orders += 1;
    tally.units = tally.units.saturating_add(order.quantity);
}

#[cfg(test)]
mod tests {
    use domain::{
        CancelledBy, RequestBody,
        testing::{nothing, order, order_id, payment, terms, voucher_id},
    };

    use super::*;

    /// Opened, bought by ann, ben and cid (too many), ann pays, ben gives up, and both are asked for again.
    fn log() -> Vec<Event> {
        let cancel = RequestBody::CancellationRequested { order_id: order_id("ben"), by: CancelledBy::Buyer };
        let orders = [order("ann", 2), order("ben", 1), order("cid", 3), payment("ann", "p1", 3_998), cancel];
        let (mut given, mut events) = (nothing(), Vec::new());
        for body in [RequestBody::VoucherPublished(terms())].into_iter().chain(orders).chain([order("ann", 2), order("ben", 1)]) {
            let decided = given.when(body);
            events.push(decided.event().clone());
            given = decided.and();
        }
        events
    }

    #[test]
    fn orders_that_met_their_fate_are_counted_and_not_kept() {
        for keeps_all in [false, true] {
            let mut fold = Fold { keeps_all, ..Fold::of(voucher_id()) };
            (0..).zip(&log()).for_each(|(offset, event)| fold.take(event, offset));
            assert_eq!(fold.state.orders.len(), if keeps_all { 3 } else { 1 });
            assert_eq!((fold.state.payments.len(), fold.last_event.map(|(offset, _)| offset)), (0, Some(7)));
            fold.state.orders.values().for_each(|order| count(&mut fold.orders, order));
            let one = |units| Tally { orders: 1, units };
            assert_eq!(fold.orders, BTreeMap::from([("cancelled", one(1)), ("paid", one(2)), ("rejected", one(3))]));
            assert_eq!(conservation::breaches(&fold.state), []);
            assert_eq!(fold.findings.verdict(), Verdict::Equal);
        }
    }

    #[test]
    fn a_missing_event_is_found_and_other_vouchers_are_passed_by() {
        let mut fold = Fold::of(voucher_id());
        (0..).zip(&log()).filter(|(offset, _)| *offset != 2).for_each(|(offset, event)| fold.take(event, offset));
        assert!(matches!(fold.findings.verdict(), Verdict::Different { counts, .. } if counts[&Kind::VoucherSeqGap] == 1));
        let mut other = Fold::of(domain::testing::a_voucher("other"));
        (0..).zip(&log()).for_each(|(offset, event)| other.take(event, offset));
        assert_eq!((other.state, other.last_event), (State::default(), None));
    }
}
