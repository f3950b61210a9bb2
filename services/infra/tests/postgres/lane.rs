//! The lane's transaction: fence, guards and what it refuses.

use std::time::Duration;

use domain::{EventBody, OrderStatus};
use infra::postgres::{DatabaseError, Fault, OutRecord, lane::Wanted, order};
use testkit::World;

use crate::support::{cancelled, confirmed, event, opened, pool, session, sql, tables, write};

#[tokio::test]
async fn created_and_cancelled_in_one_batch_is_one_row() {
    let world = World::new();
    let voucher = world.voucher_id();
    let id = world.order_id(&voucher, "ann", None);
    let batch = [
        opened(&world, &voucher, 5, 1),
        event(&voucher, 2, 4, confirmed(id, "ann", 0)),
        event(&voucher, 3, 5, cancelled(id, "ann")),
    ];
    let state = write(&mut session(&world, 0).await, &batch, 0, 3).await.unwrap();
    assert_eq!(order(&pool(&world), &id).await.unwrap(), state.orders.get(&id).cloned());
    assert_eq!(state.orders[&id].status, OrderStatus::Cancelled);
    assert_eq!(tables(&world).await, state);
}

#[tokio::test]
async fn a_cancelled_order_makes_room_for_the_next_of_the_same_user_in_one_batch() {
    let world = World::new();
    let voucher = world.voucher_id();
    // Whichever of them sorts first by id.
    let (one, two) = (world.order_id(&voucher, "ann", Some("1")), world.order_id(&voucher, "ann", Some("2")));
    let mut lane = session(&world, 0).await;
    let (mut from, mut seq) = (0, 2);
    for (live, next) in [(one, two), (two, one)] {
        sql(&world, "TRUNCATE orders, vouchers").await;
        let begin = [opened(&world, &voucher, 5, 1), event(&voucher, 2, 4, confirmed(live, "ann", 0))];
        write(&mut lane, &begin, from, from + 2).await.unwrap();
        let batch = [event(&voucher, seq + 1, 5, cancelled(live, "ann")), event(&voucher, seq + 2, 4, confirmed(next, "ann", 0))];
        write(&mut lane, &batch, from + 2, from + 4).await.unwrap();
        assert_eq!(order(&pool(&world), &next).await.unwrap().map(|o| o.status), Some(OrderStatus::Confirmed));
        (from, seq) = (from + 4, 2);
    }
}

#[tokio::test]
async fn a_second_live_order_of_one_user_is_refused_by_the_database_itself() {
    let world = World::new();
    let voucher = world.voucher_id();
    let (one, two) = (world.order_id(&voucher, "ann", Some("1")), world.order_id(&voucher, "ann", Some("2")));
    let mut lane = session(&world, 0).await;
    let batch = [opened(&world, &voucher, 5, 1), event(&voucher, 2, 4, confirmed(one, "ann", 0))];
    let before = write(&mut lane, &batch, 0, 2).await.unwrap();
    // No decision makes this: it is what a defect would do.
    let forged = [event(&voucher, 3, 3, confirmed(two, "ann", 0))];
    let error = write(&mut lane, &forged, 2, 3).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Constraint);
    assert!(error.to_string().contains("orders_live"), "{error}");
    assert_eq!(tables(&world).await, before);
    assert_eq!(lane.next_offset().await.unwrap(), 2);
}

#[tokio::test]
async fn remaining_never_leaves_its_bounds() {
    let world = World::new();
    let voucher = world.voucher_id();
    let mut lane = session(&world, 0).await;
    write(&mut lane, &[opened(&world, &voucher, 1, 1)], 0, 1).await.unwrap();
    for remaining in [-1, 2] {
        let forged = [event(&voucher, 2, remaining, confirmed(world.order_id(&voucher, "ann", None), "ann", 0))];
        let error = write(&mut lane, &forged, 1, 2).await.unwrap_err();
        assert!(error.to_string().contains("vouchers_conservation"), "{error}");
    }
}

#[tokio::test]
async fn text_that_cannot_be_stored_is_no_matter_of_trying_again() {
    let world = World::new();
    let voucher = world.voucher_id();
    let mut lane = session(&world, 0).await;
    let forged =
        [opened(&world, &voucher, 1, 1), event(&voucher, 2, 0, confirmed(world.order_id(&voucher, "a", None), "a\0", 0))];
    let error = write(&mut lane, &forged, 0, 2).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Wrong, "{error}");
}

#[tokio::test]
async fn a_position_that_moved_refuses_the_batch() {
    let world = World::new();
    let voucher = world.voucher_id();
    let (mut lane, mut frozen) = (session(&world, 0).await, session(&world, 0).await);
    write(&mut lane, &[opened(&world, &voucher, 1, 1)], 0, 1).await.unwrap();
    let late = world.voucher_id();
    let refused = write(&mut frozen, &[opened(&world, &late, 1, 1)], 0, 1).await;
    assert!(matches!(refused, Err(DatabaseError::Rows { table: "lane_positions", expected: 1, written: 0 })), "{refused:?}");
    assert!(!tables(&world).await.vouchers.contains_key(&late));
}

#[tokio::test]
async fn whoever_waits_for_the_position_reads_facts_from_after_the_wait() {
    let world = World::new();
    let voucher = world.voucher_id();
    let (mut first, mut second) = (session(&world, 0).await, session(&world, 0).await);
    let holding = first.begin().await.unwrap();
    let events = [opened(&world, &voucher, 7, 1)];
    let wanted = Wanted::by_events(&events);
    let (_, mut state) = holding.lock_and_read(&wanted).await.unwrap();
    state.evolve(&events[0]);
    let waiting = async {
        let transaction = second.begin().await.unwrap();
        transaction.lock_and_read(&wanted).await.unwrap()
    };
    let committing = async {
        // Until the other one is seen to wait.
        let client = world.postgres().await;
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        testkit::wait_until_async(Duration::from_secs(10), "the other lane to wait", async || {
            client.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) == 1
        })
        .await;
        holding.write(&state, &events, 0, 1, &[]).await.unwrap();
        holding.commit().await.unwrap();
    };
    let ((next_offset, facts), ()) = tokio::join!(waiting, committing);
    assert_eq!(next_offset, 1);
    assert_eq!(facts.vouchers.get(&voucher).map(|v| v.remaining), Some(7));
}

#[tokio::test]
async fn a_voucher_of_another_partition_is_neither_overwritten_nor_opened_twice() {
    let world = World::new();
    let voucher = world.voucher_id();
    write(&mut session(&world, 0).await, &[opened(&world, &voucher, 5, 1)], 0, 1).await.unwrap();
    let before = tables(&world).await;
    // Decided on facts from before the other one committed.
    let mut other = opened(&world, &voucher, 9, 9);
    other.partition = 1;
    if let EventBody::VoucherOpened(terms) = &mut other.body {
        terms.partition = 1;
    }
    let mut state = domain::State::default();
    state.evolve(&other);
    let mut lane = session(&world, 1).await;
    let transaction = lane.begin().await.unwrap();
    let refused = transaction.write(&state, &[other], 0, 1, &[]).await;
    assert!(matches!(refused, Err(DatabaseError::VoucherTaken)), "{refused:?}");
    drop(transaction);
    assert_eq!(tables(&world).await, before);
}

#[tokio::test]
async fn the_records_to_send_come_back_as_they_were_stored() {
    let world = World::new();
    let lane = &mut session(&world, 0).await;
    assert_eq!(lane.position().await.unwrap().records, []);
    let record = |offset: i64, key: Option<&str>| OutRecord {
        topic: "events".into(),
        partition: 0,
        request_offset: offset,
        key: key.map(|k| k.as_bytes().to_vec()),
        payload: vec![0, 255, 0],
        headers: vec![("name".into(), b"value".to_vec())],
    };
    let records = vec![record(0, None), record(1, Some("")), record(2, Some("v"))];
    let transaction = lane.begin().await.unwrap();
    transaction.write(&domain::State::default(), &[], 0, 3, &records).await.unwrap();
    transaction.commit().await.unwrap();
    let position = session(&world, 0).await.position().await.unwrap();
    assert_eq!((position.next_offset, position.records), (3, records));
}
