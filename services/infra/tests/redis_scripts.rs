//! The contracts at the head of each script, one by one, on a real Redis: answers, ids, damage, races and the fence.

mod redis_world;

use std::time::Duration;

use domain::{EventBody, RejectReason, Timestamp, UserId};
use infra::redis::{Gate, Refusal, Reserve, Settle, StoreError};
use redis_world::{Log, World, keys, order, user, voucher};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_gets_the_first_answer_and_takes_the_release_token_away() {
    let world = World::new().await;
    let log = Log::opened("v", 5, 4);
    world.open(&log).await;
    let (store, v, ann) = (&world.store, &log.voucher, user("ann"));
    let id = order(v, &ann, "1");

    let Reserve::Reserved { requested_at, partition: 3, held: 0 } = store.reserve(v, &id, &ann, 2, "t1").await.unwrap() else {
        panic!("stock was there")
    };
    assert_eq!(store.reserve(v, &id, &ann, 3, "t2").await.unwrap(), Reserve::OtherQuantity { quantity: 2 });
    assert!(!store.release(v, &id, "t2").await.unwrap(), "a token of a try that reserved nothing");
    assert_eq!(store.reserve(v, &id, &ann, 2, "t3").await.unwrap(), Reserve::Same { quantity: 2, requested_at, partition: 3 });
    for token in ["t1", "t3", "-"] {
        assert!(!store.release(v, &id, token).await.unwrap(), "somebody else stands on it: {token}");
    }

    let other = order(v, &ann, "2");
    let Reserve::Reserved { held: 2, .. } = store.reserve(v, &other, &ann, 2, "t4").await.unwrap() else { panic!() };
    assert!(store.release(v, &other, "t4").await.unwrap());
    assert!(!store.release(v, &other, "t4").await.unwrap());
    let read = store.reservation(v, &id).await.unwrap().unwrap();
    assert_eq!((read.order_id, read.user_id, read.quantity, read.requested_at), (id, ann.clone(), 2, requested_at));
    assert_eq!(store.reservation(v, &other).await.unwrap(), None);
    assert_eq!(store.held(v).await.unwrap(), [(ann, 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_what_the_user_holds() {
    let world = World::new().await;
    let mut log = Log::opened("v", 3, 2);
    world.open(&log).await;
    let (v, ann, bob) = (log.voucher.clone(), user("ann"), user("bob"));
    let again =
        async |name: &UserId, quantity| world.store.reserve(&v, &order(&v, name, "again"), name, quantity, "t").await.unwrap();
    let refused = |refusal, held| Reserve::Refused { refusal, held };

    assert_eq!(again(&ann, 3).await, refused(Refusal::LimitReached, 0));
    assert_eq!(again(&ann, i64::MAX).await, refused(Refusal::LimitReached, 0));
    world.store.reserve(&v, &order(&v, &ann, "1"), &ann, 2, "t").await.unwrap();
    assert_eq!(again(&ann, 1).await, refused(Refusal::LimitReached, 2));
    assert_eq!(again(&bob, 2).await, refused(Refusal::SoldOut, 0));
    let expected_terms_version = log.terms_version();
    log.append(domain::RequestBody::VoucherPaused { expected_terms_version });
    world.store.settle(&log.events).await.unwrap();
    assert_eq!(again(&ann, 1).await, refused(Refusal::Paused, 2));
    let expected_terms_version = log.terms_version();
    log.append(domain::RequestBody::VoucherClosed { expected_terms_version });
    world.store.settle(&log.events).await.unwrap();
    assert_eq!(again(&ann, 1).await, refused(Refusal::Closed, 2));
    world.store.freeze(&v, "x").await.unwrap();
    assert_eq!(again(&ann, 1).await, Reserve::NotReady { gate: Gate::Frozen });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_beyond_doubles_stay_distinct_and_byte_equal() {
    let world = World::new().await;
    let ids = ["9007199254740992", "9007199254740993", "9223372036854775807", "007", "7", "7.0", "7e0"];
    let users = ids.into_iter().chain(["0198a2b4-5c6d-8e7f-8123-456789abcdef", " 7", "7 ", "1 2 3 4 5", "-", "nan"]);
    let users: Vec<UserId> = users.map(user).collect();
    for id in ["1234567890123456789", "1234567890123456788", "007", "7"] {
        let mut log = Log::opened(id, 100, 1);
        world.open(&log).await;
        for name in &users {
            let mine = order(&log.voucher, name, "1");
            let answer = world.store.reserve(&log.voucher, &mine, name, 1, "t").await.unwrap();
            assert!(matches!(answer, Reserve::Reserved { held: 0, .. }), "{id}, {name:?}: {answer:?}");
        }
        let mut flying = world.store.reservations(&log.voucher).await.unwrap();
        flying.sort_by(|a, b| a.user_id.cmp(&b.user_id));
        let mut sorted = users.clone();
        sorted.sort();
        assert_eq!(flying.iter().map(|r| r.user_id.clone()).collect::<Vec<_>>(), sorted);
        for name in &users {
            log.request(order(&log.voucher, name, "1"), name, 1);
        }
        world.store.settle(&log.events).await.unwrap();
        let mut held = world.store.held(&log.voucher).await.unwrap();
        held.sort();
        assert_eq!(held, sorted.into_iter().map(|name| (name, 1)).collect::<Vec<_>>());
        let read = world.store.voucher(&log.voucher).await.unwrap().unwrap();
        assert_eq!((read.stock, read.reserved, read.sold), (100 - users.len() as i64, 0, users.len() as i64));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voucher_that_is_not_there_is_answered_and_nothing_is_written() {
    let world = World::new().await;
    let mut log = Log::opened("v", 5, 1);
    let (store, v, ann) = (&world.store, log.voucher.clone(), user("ann"));
    let id = order(&v, &ann, "1");
    log.request(id, &ann, 1);
    assert_eq!(store.reserve(&v, &id, &ann, 1, "t").await.unwrap(), Reserve::UnknownVoucher);
    assert!(!store.release(&v, &id, "t").await.unwrap());
    assert_eq!(store.settle(&log.events[1..]).await.unwrap(), [Settle::UnknownVoucher]);
    let later = domain::Event { voucher_seq: 2, ..log.events[0].0.clone() };
    assert_eq!(store.settle(&[(later, 9)]).await.unwrap(), [Settle::UnknownVoucher], "only the first event opens");
    assert_eq!(store.sweep(&v, &id, Timestamp(1)).await.unwrap(), None);
    assert!(!store.open_gate(&v, "e", 0).await.unwrap());
    store.freeze(&v, "e").await.unwrap();
    assert!(!store.ask_rebuild(&v, "e").await.unwrap());
    assert!(!store.archive(&v, Duration::from_secs(1)).await.unwrap());
    assert_eq!(store.voucher(&v).await.unwrap(), None);
    assert_eq!(store.reservation(&v, &id).await.unwrap(), None);
    assert_eq!((store.reservations(&v).await.unwrap(), store.held(&v).await.unwrap()), (vec![], vec![]));
    assert_eq!(world.dump(&v).await, [None, None, None]);

    // What is left when only the voucher's hash is gone: the opening does not create it over their heads, the fence counts them in.
    world.open(&log).await;
    store.reserve(&v, &order(&v, &user("bob"), "1"), &user("bob"), 1, "t").await.unwrap();
    world.run(&["DEL", &keys(&v)[0]]).await;
    assert_eq!(store.settle(&log.events[..1]).await.unwrap(), [Settle::UnknownVoucher]);
    world.open(&log).await;
    let read = store.voucher(&v).await.unwrap().unwrap();
    assert_eq!((read.total, read.stock, read.reserved, read.sold), (5, 3, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_without_seq_are_skipped_without_a_call() {
    let world = World::new().await;
    let mut log = Log::opened("v", 5, 1);
    let mut events = vec![log.events[0].clone(), log.events[0].clone()];
    events[1].0.voucher_seq = 0;
    events[1].0.voucher_id = None;
    log.request(order(&log.voucher, &user("ann"), "1"), &user("ann"), 1);
    events.push(log.events[1].clone());
    let answers = world.store.settle(&events).await.unwrap();
    assert_eq!(answers, [Settle::Applied, Settle::Skip { seq: 0 }, Settle::Applied]);
    let read = world.store.voucher(&log.voucher).await.unwrap().unwrap();
    assert_eq!((read.gate, read.seq, read.offset), (Gate::Warming, 2, Some(log.events[1].1)));
    assert_eq!(world.store.settle(&[]).await.unwrap(), []);
}

/// Every key of every script with a wrong type, and every number with a wrong text: an error, and not one byte changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_an_error_that_changes_nothing_and_a_reset_heals_it() {
    let world = World::new().await;
    let mut log = Log::opened("v", 9, 4);
    world.open(&log).await;
    let (store, v, ann, bob) = (&world.store, log.voucher.clone(), user("ann"), user("bob"));
    let (bought, flying, wanted) = (order(&v, &ann, "1"), order(&v, &ann, "2"), order(&v, &ann, "3"));
    store.reserve(&v, &bought, &ann, 1, "t").await.unwrap();
    log.request(bought, &ann, 1);
    store.settle(&log.events).await.unwrap();
    store.reserve(&v, &flying, &ann, 1, "t").await.unwrap();
    store.reserve(&v, &order(&v, &bob, "1"), &bob, 1, "t").await.unwrap();
    log.request(flying, &ann, 1);
    let healthy = world.dump(&v).await;
    let stamp = store.reservation(&v, &flying).await.unwrap().unwrap().stamp;
    let next = &log.events[2..];
    let [voucher_key, reservations_key, held_key] = keys(&v);
    let flying_text = flying.to_string();

    let mut damages: Vec<(Vec<&str>, &str)> = Vec::new();
    for (key, script) in [
        (&voucher_key, "reserve release settle open"),
        (&reservations_key, "reserve release settle sweep"),
        (&held_key, "reserve release settle"),
    ] {
        damages.push((vec!["SET", key, "text"], script));
    }
    for bad in ["10.0", "1e1", "", "007", "nan", "0x1", " 1", "9007199254740993", "-", "1\n2"] {
        for field in ["stock", "reserved"] {
            damages.push((vec!["HSET", &voucher_key, field, bad], "reserve release settle open"));
        }
        for field in ["seq", "total", "sold"] {
            damages.push((vec!["HSET", &voucher_key, field, bad], "settle open"));
        }
        for field in ["per_user_limit", "begins_ms", "ends_ms", "partition"] {
            damages.push((vec!["HSET", &voucher_key, field, bad], "reserve open"));
        }
        damages.push((vec!["HSET", &held_key, "ann", bad], "reserve release settle"));
    }
    for field in ["stock", "reserved"] {
        damages.push((vec!["HDEL", &voucher_key, field], "reserve release settle open"));
    }
    for field in ["seq", "total", "sold"] {
        damages.push((vec!["HDEL", &voucher_key, field], "settle open"));
    }
    for field in ["gate", "state"] {
        damages.push((vec!["HDEL", &voucher_key, field], "reserve open"));
        damages.push((vec!["HSET", &voucher_key, field, "ajar"], "reserve open"));
    }
    for bad in ["", "1 2 3", "1 2 x t ann", "1.0 2 1 t ann", "1 2 9007199254740993 t ann"] {
        damages.push((vec!["HSET", &reservations_key, &flying_text, bad], "release settle sweep"));
    }
    for (command, scripts) in &damages {
        for script in scripts.split(' ') {
            world.restore(&v, &healthy).await;
            world.run(command).await;
            let before = world.dump(&v).await;
            let result = match script {
                "reserve" => store.reserve(&v, &wanted, &ann, 1, "t").await.map(|answer| format!("{answer:?}")),
                "release" => store.release(&v, &flying, "t").await.map(|answer| format!("{answer:?}")),
                "settle" => store.settle(next).await.map(|answer| format!("{answer:?}")),
                "sweep" => store.sweep(&v, &flying, stamp).await.map(|answer| format!("{answer:?}")),
                _ => {
                    let raised = store.raise_fence(&v, 3, "other", false).await.map(|answer| format!("{answer:?}"));
                    assert!(matches!(&raised, Err(StoreError::Damaged { .. })), "raise after {command:?}: {raised:?}");
                    store.open_gate(&v, "opening", 0).await.map(|answer| format!("{answer:?}"))
                }
            };
            assert!(
                matches!(&result, Err(StoreError::Damaged { voucher, .. }) if *voucher == v),
                "{script} after {command:?}: {result:?}"
            );
            assert_eq!(world.dump(&v).await, before, "{script} after {command:?} changed something");
        }
        // A reset makes it whole again, whatever it was; a reservation that nobody can read counts as lost.
        store.raise_fence(&v, 3, "heal", true).await.unwrap();
        let answers = store.settle(&log.events).await.unwrap();
        assert!(answers.iter().all(|answer| *answer == Settle::Applied), "after {command:?}: {answers:?}");
        assert!(store.open_gate(&v, "heal", 3).await.unwrap(), "after {command:?}");
        let read = store.voucher(&v).await.unwrap().unwrap();
        let reserved: i64 = store.reservations(&v).await.unwrap().iter().map(|r| r.quantity).sum();
        assert_eq!((read.total, read.sold, read.reserved), (9, 2, reserved), "after {command:?}");
        assert_eq!(read.stock, 9 - 2 - reserved, "after {command:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn freezing_asking_for_a_rebuild_and_archiving_work_on_damage() {
    let world = World::new().await;
    let log = Log::opened("v", 9, 4);
    world.open(&log).await;
    let (v, key) = (&log.voucher, &keys(&log.voucher)[0]);
    world.run(&["HSET", key, "stock", "10.0"]).await;
    world.store.freeze(v, "f").await.unwrap();
    assert!(world.store.ask_rebuild(v, "r").await.unwrap());
    assert!(matches!(world.store.voucher(v).await, Err(StoreError::Damaged { .. })));
    world.run(&["SET", &keys(v)[2], "text"]).await;
    assert!(world.store.archive(v, Duration::from_secs(1000)).await.unwrap());
    let raised = world.store.raise_fence(v, 3, "e", true).await.unwrap();
    assert_eq!((raised.stock, raised.seq, raised.rebuild, raised.gate), (0, 0, false, Gate::Warming));
    assert_eq!(raised.title, log.states[1].vouchers[v].terms.title, "terms that can be read stay to be shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_in_parallel_gets_one_unit() {
    let world = World::new().await;
    let log = Log::opened("v", 100, 1);
    world.open(&log).await;
    let other = redis_world::patient(world.server.endpoint()).await;
    let ann = user("ann");
    let calls: Vec<_> = (0..64)
        .map(|call| {
            let (store, v, ann) = (if call % 2 == 0 { &world.store } else { &other }.clone(), log.voucher.clone(), ann.clone());
            let id = order(&v, &ann, &call.to_string());
            tokio::spawn(async move { store.reserve(&v, &id, &ann, 1, "t").await.unwrap() })
        })
        .collect();
    let mut reserved = 0;
    for call in calls {
        match call.await.unwrap() {
            Reserve::Reserved { held: 0, .. } => reserved += 1,
            Reserve::Refused { refusal: Refusal::LimitReached, held: 1 } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(reserved, 1);
    let read = world.store.voucher(&log.voucher).await.unwrap().unwrap();
    assert_eq!((read.stock, read.reserved), (99, 1));
}

/// Redis loses everything and offers again what is sold: stock goes below zero as the confirmations arrive, and comes back with the
/// rejections of what was offered too much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_below_zero_after_a_loss_returns_with_the_rejections() {
    let world = World::new().await;
    let mut log = Log::opened("v", 2, 1);
    world.open(&log).await;
    let (store, v) = (&world.store, log.voucher.clone());
    let (first, second) = (["ann", "bob"].map(user), ["cat", "dan"].map(user));
    let reserve = async |name: &UserId| store.reserve(&v, &order(&v, name, "1"), name, 1, "t").await.unwrap();
    for name in &first {
        assert!(matches!(reserve(name).await, Reserve::Reserved { .. }));
    }
    for key in keys(&v) {
        world.run(&["DEL", &key]).await;
    }
    world.open(&log).await;
    for name in &second {
        assert!(matches!(reserve(name).await, Reserve::Reserved { .. }));
    }
    for name in first.iter().chain(&second) {
        log.request(order(&v, name, "1"), name, 1);
    }
    assert!(matches!(log.events[4].0.body, EventBody::OrderRejected { reason: RejectReason::SoldOut, .. }));
    let stock = async || store.voucher(&v).await.unwrap().unwrap().stock;
    for (event, expected) in log.events[1..].iter().zip([-1, -2, -1, 0]) {
        assert_eq!(store.settle(std::slice::from_ref(event)).await.unwrap(), [Settle::Applied]);
        assert_eq!(stock().await, expected);
    }
    let read = store.voucher(&v).await.unwrap().unwrap();
    assert_eq!((read.stock, read.reserved, read.sold), (0, 0, 2));
    let mut held = store.held(&v).await.unwrap();
    held.sort();
    assert_eq!(held, first.map(|name| (name, 1)));
}

/// The confirmation may carry another user or quantity than the reservation under the same id; each side keeps its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmation_that_differs_from_its_reservation_counts_both_right() {
    let world = World::new().await;
    let mut log = Log::opened("v", 9, 5);
    world.open(&log).await;
    let (v, ann, bob) = (log.voucher.clone(), user("ann"), user("bob"));
    let id = order(&v, &ann, "1");
    world.store.reserve(&v, &id, &ann, 3, "t").await.unwrap();
    log.request(id, &bob, 2);
    assert_eq!(world.store.settle(&log.events[1..]).await.unwrap(), [Settle::Applied]);
    let read = world.store.voucher(&v).await.unwrap().unwrap();
    assert_eq!((read.stock, read.reserved, read.sold), (7, 0, 2));
    assert_eq!(world.store.held(&v).await.unwrap(), [(bob, 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_raised_the_fence_opens_it() {
    let world = World::new().await;
    let mut log = Log::opened("v", 9, 4);
    let (store, v) = (&world.store, log.voucher.clone());
    log.request(order(&v, &user("ann"), "1"), &user("ann"), 1);
    let raised = store.raise_fence(&v, 5, "mine", false).await.unwrap();
    assert_eq!((raised.gate, raised.seq, raised.partition, raised.offset), (Gate::Warming, 0, 5, None));
    assert!(!store.open_gate(&v, "mine", 0).await.unwrap(), "a stub is never sold");
    store.settle(&log.events[..1]).await.unwrap();
    assert!(!store.open_gate(&v, "mine", 2).await.unwrap(), "behind");
    store.settle(&log.events[1..]).await.unwrap();
    store.raise_fence(&v, 3, "successor's", false).await.unwrap();
    assert!(!store.open_gate(&v, "mine", 2).await.unwrap(), "a frozen opener wakes up");
    assert!(store.open_gate(&v, "successor's", 2).await.unwrap());
    assert!(store.open_gate(&v, "successor's", 2).await.unwrap(), "a repeat, as after an unknown outcome");
    assert!(!store.open_gate(&v, "mine", 2).await.unwrap(), "it is open, but not by this one");

    store.freeze(&v, "alarm").await.unwrap();
    assert_eq!(store.raise_fence(&v, 3, "repair", false).await.unwrap().gate, Gate::Frozen);
    assert!(!store.open_gate(&v, "repair", 0).await.unwrap(), "frozen stays frozen");
    assert!(store.ask_rebuild(&v, "thaw").await.unwrap());
    assert!(store.voucher(&v).await.unwrap().unwrap().rebuild);
    assert!(!store.open_gate(&v, "repair", 0).await.unwrap());
    let raised = store.raise_fence(&v, 3, "again", true).await.unwrap();
    assert_eq!((raised.gate, raised.seq, raised.rebuild, raised.offset), (Gate::Warming, 0, false, None));
    store.settle(&log.events).await.unwrap();
    assert!(store.open_gate(&v, "again", 2).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archived_voucher_expires_whole_and_a_raised_fence_keeps_it() {
    let world = World::new().await;
    let mut log = Log::opened("v", 9, 4);
    let (store, v, ann) = (&world.store, log.voucher.clone(), user("ann"));
    log.request(order(&v, &ann, "1"), &ann, 1);
    world.open(&log).await;
    store.reserve(&v, &order(&v, &ann, "2"), &ann, 1, "t").await.unwrap();
    let ttls = async || {
        let mut pipeline = redis::pipe();
        for key in keys(&v) {
            pipeline.cmd("PTTL").arg(key);
        }
        pipeline.query_async::<[i64; 3]>(&mut world.raw.clone()).await.unwrap()
    };
    assert!(store.archive(&v, Duration::from_secs(1000)).await.unwrap());
    assert!(ttls().await.iter().all(|ttl| (1..=1_000_000).contains(ttl)));
    store.raise_fence(&v, 3, "e", false).await.unwrap();
    assert_eq!(ttls().await, [-1, -1, -1]);
    assert!(store.archive(&v, Duration::from_millis(1)).await.unwrap());
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while world.dump(&v).await != [None, None, None] {
        assert!(std::time::Instant::now() < deadline, "the keys did not expire");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_sweepers_one_takes_a_reservation() {
    let world = World::new().await;
    let log = Log::opened("v", 9, 4);
    world.open(&log).await;
    let (store, v, ann) = (&world.store, &log.voucher, user("ann"));
    let id = order(v, &ann, "1");
    let Reserve::Reserved { requested_at, .. } = store.reserve(v, &id, &ann, 2, "t").await.unwrap() else { panic!() };
    let takes = futures_of_sweeps(&world, v, &id, requested_at).await;
    let taken: Vec<_> = takes.into_iter().flatten().collect();
    assert_eq!(taken.len(), 1);
    assert!(taken[0].stamp > requested_at);
    assert_eq!((taken[0].requested_at, taken[0].quantity), (requested_at, 2));
    assert!(!store.release(v, &id, "t").await.unwrap(), "the sweeper publishes it");
    assert!(store.sweep(v, &id, taken[0].stamp).await.unwrap().is_some());

    // Redis' clock went back: the stamp moves on all the same.
    let ahead = Timestamp(redis_world::now() + 1_000_000);
    let text = format!("{} {} 2 - ann", requested_at.0, ahead.0);
    world.run(&["HSET", &keys(v)[1], &id.to_string(), &text]).await;
    assert_eq!(store.sweep(v, &id, ahead).await.unwrap().unwrap().stamp, ahead.plus(1));
    assert_eq!(store.sweep(v, &id, ahead).await.unwrap(), None);
}

async fn futures_of_sweeps(
    world: &World,
    v: &domain::VoucherId,
    id: &domain::OrderId,
    stamp: Timestamp,
) -> Vec<Option<infra::redis::Reservation>> {
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let (store, v, id) = (world.store.clone(), v.clone(), *id);
            tokio::spawn(async move { store.sweep(&v, &id, stamp).await.unwrap() })
        })
        .collect();
    let mut taken = Vec::new();
    for call in calls {
        taken.push(call.await.unwrap());
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_hashes_are_read_whole() {
    let world = World::new().await;
    let log = Log::opened("v", 100_000, 1);
    world.open(&log).await;
    let v = &log.voucher;
    let mut pipeline = redis::pipe();
    for at in 0..5_000 {
        let name = user(&at.to_string());
        let id = order(v, &name, "1").to_string();
        pipeline.cmd("HSET").arg(&keys(v)[1]).arg(id).arg(format!("1 2 1 - {name}")).ignore();
        pipeline.cmd("HSET").arg(&keys(v)[2]).arg(name.as_str()).arg(1).ignore();
    }
    pipeline.query_async::<()>(&mut world.raw.clone()).await.unwrap();
    assert_eq!(world.store.reservations(v).await.unwrap().len(), 5_000);
    assert_eq!(world.store.held(&voucher("v")).await.unwrap().len(), 5_000);
    let raised = world.store.raise_fence(v, 3, "e", true).await.unwrap();
    assert_eq!((raised.reserved, raised.stock), (5_000, -5_000));
}
