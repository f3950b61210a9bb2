//! Any log, in batches of any size: the tables say what one pass over a whole state says, and nothing delivered again changes them.

use std::cell::RefCell;

use domain::{Event, LoggedRequest, State, decide, testing::generators::logs};
use infra::postgres::lane::{LaneSession, Wanted};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use testkit::World;

use crate::support::{session, sql, tables};

/// Random logs; each takes some tenths of a second.
const CASES: u32 = 24;
const PARTITIONS: i32 = 2;

#[test]
fn batches_decide_as_a_whole_state_does_and_redelivery_changes_nothing() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lanes: Vec<_> = (0..PARTITIONS).map(|p| runtime.block_on(session(&world, p))).collect();
    let lanes = RefCell::new(lanes);
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let strategy = (logs(60), vec(1..12usize, 80), any::<prop::sample::Index>());
    runner
        .run(&strategy, |(log, sizes, redeliver_from)| {
            runtime.block_on(one_log(&world, &mut lanes.borrow_mut(), log, sizes, redeliver_from));
            Ok(())
        })
        .unwrap();
}

/// One batch as it was written, to be delivered again.
struct Written {
    partition: usize,
    state: State,
    events: Vec<Event>,
    from: i64,
    to: i64,
}

async fn one_log(
    world: &World,
    lanes: &mut [LaneSession],
    log: Vec<LoggedRequest>,
    sizes: Vec<usize>,
    redeliver_from: prop::sample::Index,
) {
    sql(world, "TRUNCATE orders, vouchers; UPDATE lane_positions SET next_offset = 0, records = ''").await;
    let (mut whole, mut written) = (State::default(), Vec::new());
    let mut log = log.as_slice();
    for size in sizes {
        let (chunk, rest) = log.split_at(size.min(log.len()));
        log = rest;
        for partition in 0..PARTITIONS {
            let batch: Vec<_> = chunk.iter().filter(|r| r.partition == partition).cloned().collect();
            if !batch.is_empty() {
                written.push(deliver(&mut lanes[partition as usize], &mut whole, &batch).await);
            }
        }
    }
    let before = tables(world).await;
    assert_eq!(before, whole);

    for again in &written[redeliver_from.index(written.len())..] {
        let transaction = lanes[again.partition].begin().await.unwrap();
        let refused = transaction.write(&again.state, &again.events, again.from, again.to, &[]).await;
        assert!(refused.is_err(), "the position has moved on");
        // Committed all the same: the rows' own guards must hold, too.
        transaction.commit().await.unwrap();
        // After each of them: a whole suffix in order would end where it began even without guards.
        assert_eq!(tables(world).await, before);
    }
}

/// Decides a batch on the facts of the tables, checks each event against the whole state, writes and commits.
async fn deliver(lane: &mut LaneSession, whole: &mut State, batch: &[LoggedRequest]) -> Written {
    let (from, to) = (batch[0].offset, batch[batch.len() - 1].offset + 1);
    let transaction = lane.begin().await.unwrap();
    let (next_offset, mut state) = transaction.lock_and_read(&Wanted::by_requests(batch)).await.unwrap();
    assert_eq!(next_offset, from);
    let mut events = Vec::new();
    for request in batch {
        let event = decide(&state, request);
        assert_eq!(event, decide(whole, request));
        state.evolve(&event);
        whole.evolve(&event);
        events.push(event);
    }
    transaction.write(&state, &events, from, to, &[]).await.unwrap();
    transaction.commit().await.unwrap();
    Written { partition: batch[0].partition as usize, state, events, from, to }
}
