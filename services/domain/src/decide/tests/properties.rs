//! What must hold for every log, tried on random ones.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::conservation::breaches;
use crate::testing::generators::logs;
use crate::{Event, EventBody, LoggedRequest, OrderStatus, RefusalReason, RejectReason, State, decide};

/// Requests in a log: long enough for a sale to sell out, give back and sell again.
const LEN: usize = 60;

/// Decides a whole log from nothing.
fn decide_all(log: &[LoggedRequest]) -> (State, Vec<Event>) {
    let mut state = State::default();
    let events = log.iter().map(|logged| {
        let event = decide(&state, logged);
        state.evolve(&event);
        event
    });
    let events = events.collect();
    (state, events)
}

fn fold<'a>(events: impl IntoIterator<Item = &'a Event>) -> State {
    let mut state = State::default();
    events.into_iter().for_each(|event| state.evolve(event));
    state
}

/// Half the usual number of logs: each is a long sale of its own.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases / 2, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_log_loses_a_unit_or_sells_one_twice(log in logs(LEN)) {
        let mut state = State::default();
        for logged in &log {
            let event = decide(&state, logged);
            state.evolve(&event);
            prop_assert_eq!(breaches(&state), vec![], "after {:?} made {:?}", logged, event);
        }
    }

    #[test]
    fn a_decision_depends_on_the_facts_that_the_request_names_and_on_nothing_else(log in logs(LEN)) {
        let mut state = State::default();
        for logged in &log {
            let event = decide(&state, logged);
            prop_assert_eq!(&event, &decide(&state, logged));
            prop_assert_eq!(&event, &decide(&state.facts_for(logged), logged));
            state.evolve(&event);
        }
    }

    #[test]
    fn every_request_gives_one_event_that_names_it(log in logs(LEN)) {
        let (_, events) = decide_all(&log);
        for (logged, event) in log.iter().zip(&events) {
            prop_assert_eq!((event.partition, event.request_offset), (logged.partition, logged.offset));
            prop_assert_eq!(event.decided_at, logged.appended_at);
            prop_assert_eq!(event.request_id, logged.request.as_ref().map(|r| r.id).unwrap_or_default());
            prop_assert_eq!(event.voucher_id.as_ref(), logged.request.as_ref().map(|r| &r.voucher_id));
        }
    }

    #[test]
    fn a_voucher_counts_its_events_without_gaps(log in logs(LEN)) {
        let (state, events) = decide_all(&log);
        let mut last = HashMap::new();
        for event in events.iter().filter(|event| event.voucher_seq != 0) {
            let seq = last.entry(event.voucher_id.clone()).or_insert(0);
            *seq += 1;
            prop_assert_eq!(event.voucher_seq, *seq);
        }
        for voucher in state.vouchers.values() {
            prop_assert_eq!(last.get(&Some(voucher.id.clone())), Some(&voucher.seq));
        }
    }

    #[test]
    fn the_events_alone_rebuild_the_state(log in logs(LEN)) {
        let (state, events) = decide_all(&log);
        prop_assert_eq!(fold(&events), state);
    }

    /// Partitions are independent: any interleaving of them that keeps each one's order gives the same state.
    #[test]
    fn the_order_between_partitions_means_nothing(log in logs(LEN)) {
        let (state, events) = decide_all(&log);
        let (first, second): (Vec<_>, Vec<_>) = events.iter().partition(|event| event.partition == 0);
        prop_assert_eq!(fold(second.into_iter().chain(first)), state);
    }

    #[test]
    fn a_suffix_delivered_again_changes_nothing(log in logs(LEN), from in any::<prop::sample::Index>()) {
        let (state, events) = decide_all(&log);
        let from = from.index(events.len());
        let again = fold(events.iter().chain(&events[from..]));
        prop_assert_eq!(again, state);
    }

    #[test]
    fn an_event_says_what_is_left_and_held_after_it(log in logs(LEN)) {
        let (_, events) = decide_all(&log);
        let mut state = State::default();
        for event in &events {
            state.evolve(event);
            let Some(voucher) = event.voucher_id.as_ref().and_then(|id| state.vouchers.get(id)) else { continue };
            if event.voucher_seq == 0 {
                prop_assert_eq!((event.remaining, event.held), (0, 0));
                continue;
            }
            prop_assert_eq!(event.remaining, voucher.remaining);
            // An order refused for its user's sake names a user that no order can have.
            let buyer = event.body.order_id().and_then(|id| state.order_of(&voucher.id, &id)).map(|order| &order.user_id);
            match &event.body {
                EventBody::OrderRejected { reason: crate::RejectReason::Invalid, .. } => {}
                _ => prop_assert_eq!(event.held, buyer.map_or(0, |user| state.held_by(&voucher.id, user)), "{:?}", event),
            }
        }
    }

    /// An order's fate is final: it changes only from confirmed, and from paid to cancelled.
    #[test]
    fn an_orders_fate_is_final(log in logs(LEN)) {
        let (_, events) = decide_all(&log);
        let mut state = State::default();
        for event in &events {
            let before = event.body.order_id().and_then(|id| state.orders.get(&id)).map(|order| order.status);
            state.evolve(event);
            let after = event.body.order_id().and_then(|id| state.orders.get(&id)).map(|order| order.status);
            let allowed = before == after
                || before.is_none()
                || before == Some(OrderStatus::Confirmed)
                || (before, after) == (Some(OrderStatus::Paid), Some(OrderStatus::Cancelled));
            prop_assert!(allowed, "{:?} became {:?} by {:?}", before, after, event);
        }
    }

    #[test]
    fn what_was_sold_is_never_more_than_was_ever_on_sale(log in logs(LEN)) {
        let (state, events) = decide_all(&log);
        for voucher in state.vouchers.values() {
            let units = |event: &&Event| match &event.body {
                EventBody::OrderConfirmed { quantity, .. } => *quantity,
                EventBody::OrderCancelled { quantity, .. } | EventBody::OrderExpired { quantity, .. } => -quantity,
                _ => 0,
            };
            let of_voucher = events.iter().filter(|event| event.voucher_id.as_ref() == Some(&voucher.id));
            let sold: i64 = of_voucher.map(|event| units(&event)).sum();
            prop_assert_eq!(voucher.remaining + sold, voucher.terms.total);
        }
    }
}

/// Without this the properties could hold because nothing ever happens.
#[test]
fn random_logs_reach_every_event_and_every_reason() {
    let mut runner = TestRunner::deterministic();
    let mut reached = HashSet::new();
    for _ in 0..300 {
        let log = logs(LEN).new_tree(&mut runner).unwrap().current();
        for event in decide_all(&log).1 {
            let reason = match &event.body {
                EventBody::OrderRejected { reason, .. } => reason.as_str(),
                EventBody::RequestRefused { reason, .. } => reason.as_str(),
                EventBody::RequestRepeated { status, .. } => status.as_str(),
                _ => "",
            };
            reached.insert((event.body.name(), reason));
        }
    }
    let refused = RefusalReason::ALL.iter().map(|reason| ("RequestRefused", reason.as_str()));
    let rejected = RejectReason::ALL.iter().map(|reason| ("OrderRejected", reason.as_str()));
    let repeated = OrderStatus::ALL.iter().map(|status| ("RequestRepeated", status.as_str()));
    let plain = ["VoucherOpened", "VoucherChanged", "OrderConfirmed", "OrderPaid", "OrderCancelled", "OrderExpired"];
    let expected = refused.chain(rejected).chain(repeated).chain(plain.map(|name| (name, "")));
    let missing: Vec<_> = expected.filter(|expected| !reached.contains(expected)).collect();
    assert_eq!(missing, []);
}
