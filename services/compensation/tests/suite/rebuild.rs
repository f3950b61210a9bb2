//! Whatever Redis loses or gets wrong, it becomes again what the log says.

use domain::{EventBody, RequestBody, VoucherId};
use infra::redis::Gate;
use testkit::voucher_request;

use crate::{
    lane::Lane,
    stage::{Stage, keys},
};

/// Sells one unit to each of `users`, from the gate to the event.
async fn sell(stage: &Stage, lane: &mut Lane, voucher: &VoucherId, users: std::ops::Range<u32>) {
    for user in users {
        let request = stage.reserve(voucher, &format!("u{user}"), 1).await;
        assert!(matches!(lane.answer(request).await.body, EventBody::OrderConfirmed { .. }));
    }
}

/// Sells one unit to each of `users` past the gate: requests that were in flight when Redis lost everything.
async fn sell_unseen(stage: &Stage, lane: &mut Lane, voucher: &VoucherId, users: std::ops::Range<u32>) {
    for user in users {
        let name = format!("u{user}");
        lane.answer(testkit::order_request(voucher, stage.order_id(voucher, &name), &name, 1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_redis_is_rebuilt_while_the_sale_goes_on() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let (voucher, idle) = (stage.publish(&mut lane, 100, 1).await, stage.publish(&mut lane, 7, 1).await);
    sell(&stage, &mut lane, &voucher, 0..20).await;
    sell(&stage, &mut lane, &idle, 0..3).await;
    stage.command(&["FLUSHALL"]).await;
    sell_unseen(&stage, &mut lane, &voucher, 20..40).await;
    stage.wait_ready(&voucher).await;
    sell(&stage, &mut lane, &voucher, 40..45).await;
    stage.wait_equal(&lane, &voucher).await;
    stage.wait_equal(&lane, &idle).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_went_back_is_brought_forward() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 50, 1).await;
    sell(&stage, &mut lane, &voucher, 0..5).await;
    stage.wait_equal(&lane, &voucher).await;
    let old = stage.snapshot(&voucher).await;
    sell(&stage, &mut lane, &voucher, 5..15).await;
    stage.wait_equal(&lane, &voucher).await;
    stage.restore(&voucher, &old).await;
    // Nothing new happens: only the warden can tell.
    stage.wait_equal(&lane, &voucher).await;
    // The same under events, so that the stream meets a gap.
    stage.restore(&voucher, &old).await;
    sell_unseen(&stage, &mut lane, &voucher, 15..20).await;
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_went_back_before_the_start_is_found_by_comparing_with_postgres() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 50, 1).await;
    sell(&stage, &mut lane, &voucher, 0..3).await;
    stage.wait_equal(&lane, &voucher).await;
    let old = stage.snapshot(&voucher).await;
    sell(&stage, &mut lane, &voucher, 3..6).await;
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
    stage.restore(&voucher, &old).await;
    // The group's offset is at the end: this process sees no event at all.
    let service = stage.run(&[]);
    stage.wait_equal(&lane, &voucher).await;
    stage.command(&["FLUSHALL"]).await;
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_claims_more_than_the_log_holds_starts_over() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 50, 1).await;
    sell(&stage, &mut lane, &voucher, 0..5).await;
    stage.wait_equal(&lane, &voucher).await;
    stage.command(&["HSET", &keys(&voucher)[0], "seq", "2", "offset", "999999"]).await;
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_lost_or_wrong_key_is_mended_and_others_go_on() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let other = stage.publish(&mut lane, 50, 1).await;
    for (at, wrong_type) in [(0, false), (0, true), (1, false), (1, true), (2, false), (2, true)] {
        // A voucher each: the second breach of one stays frozen.
        let voucher = stage.publish(&mut lane, 50, 1).await;
        let key = keys(&voucher)[at].clone();
        sell(&stage, &mut lane, &voucher, 0..3).await;
        stage.wait_equal(&lane, &voucher).await;
        let in_flight = stage.reserve(&voucher, "in-flight", 1).await;
        stage.command(&["DEL", &key]).await;
        if wrong_type {
            stage.command(&["SET", &key, "no hash"]).await;
        }
        let user = u32::try_from(at).expect("few") * 2 + u32::from(wrong_type);
        sell(&stage, &mut lane, &other, user..user + 1).await;
        stage.wait_equal(&lane, &other).await;
        lane.answer(in_flight).await;
        stage.wait_equal(&lane, &voucher).await;
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_away_gets_everything_when_it_is_back() {
    let stage = Stage::new().await;
    let service = stage.run(&[("DOORBUSTER_COMPENSATION_QUEUE", "20"), ("DOORBUSTER_COMPENSATION_BATCH", "7")]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 200, 1).await;
    sell(&stage, &mut lane, &voucher, 0..5).await;
    stage.wait_equal(&lane, &voucher).await;
    stage.redis.kill();
    sell_unseen(&stage, &mut lane, &voucher, 5..105).await;
    stage.redis.restart().expect("it starts again");
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_was_asked_for_replays_the_voucher_from_its_opening() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 50, 1).await;
    sell(&stage, &mut lane, &voucher, 0..5).await;
    lane.answer(voucher_request(&voucher, RequestBody::StockChanged { delta: 3, expected_terms_version: 1 })).await;
    stage.wait_equal(&lane, &voucher).await;
    let in_flight = stage.reserve(&voucher, "in-flight", 1).await;
    // Wrong in a way that nobody can see: the title.
    stage.command(&["HSET", &keys(&voucher)[0], "title", "something else"]).await;
    assert!(stage.store.ask_rebuild(&voucher, "asked by hand").await.expect("Redis answers"));
    stage.wait_ready(&voucher).await;
    let found = stage.voucher(&voucher).await.expect("it is there");
    assert_eq!((found.title.as_str(), found.reserved, found.sold), ("A test's voucher", 1, 5));
    lane.answer(in_flight).await;
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breach_is_rebuilt_once_and_the_second_stays_frozen_until_thawed() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 50, 1).await;
    sell(&stage, &mut lane, &voucher, 0..5).await;
    stage.wait_equal(&lane, &voucher).await;
    let key = keys(&voucher)[0].clone();
    stage.command(&["HINCRBY", &key, "stock", "1"]).await;
    stage.wait_equal(&lane, &voucher).await;
    // Balanced in Redis, but not what Postgres says.
    stage
        .command(&["EVAL", "redis.call('HINCRBY', KEYS[1], 'stock', 1) redis.call('HINCRBY', KEYS[1], 'sold', -1)", "1", &key])
        .await;
    stage.wait("the gate to freeze", async || stage.voucher(&voucher).await.is_some_and(|v| v.gate == Gate::Frozen)).await;
    // Events go on being settled behind the frozen gate; a sentinel on another voucher shows that rounds went by.
    sell_unseen(&stage, &mut lane, &voucher, 5..8).await;
    let sentinel = stage.publish(&mut lane, 1, 1).await;
    stage.command(&["DEL", &keys(&sentinel)[0]]).await;
    stage.wait_equal(&lane, &sentinel).await;
    let found = stage.voucher(&voucher).await.expect("it is there");
    assert_eq!((found.gate, found.seq), (Gate::Frozen, 9));
    // Damage on top of it does not lift the freeze, whoever finds it: the stream or the warden.
    stage.command(&["HSET", &key, "stock", "a lot"]).await;
    sell_unseen(&stage, &mut lane, &voucher, 8..9).await;
    stage.command(&["DEL", &keys(&sentinel)[0]]).await;
    stage.wait_equal(&lane, &sentinel).await;
    assert!(stage.store.is_frozen(&voucher).await.expect("Redis answers"));
    assert!(stage.store.ask_rebuild(&voucher, "thawed by hand").await.expect("Redis answers"));
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breach_whose_finder_ends_before_the_repair_is_repaired_by_the_next() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 50, 1).await;
    sell(&stage, &mut lane, &voucher, 0..3).await;
    stage.wait_equal(&lane, &voucher).await;
    stage.forbid_resets(true).await;
    stage.command(&["HINCRBY", &keys(&voucher)[0], "stock", "1"]).await;
    stage.wait("the gate to close", async || stage.voucher(&voucher).await.is_some_and(|v| v.gate != Gate::Ready)).await;
    service.stop().await;
    stage.forbid_resets(false).await;
    let service = stage.run(&[]);
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_stays_closed_until_what_was_in_flight_is_decided_and_settled() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[("DOORBUSTER_COMPENSATION_WARMING_MS", "60000")]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 2, 1).await;
    let first = lane.request(stage.reserve(&voucher, "first", 1).await).await;
    stage.command(&["FLUSHALL"]).await;
    stage.wait("the fence", async || stage.voucher(&voucher).await.is_some_and(|v| v.gate == Gate::Warming && v.seq == 1)).await;
    // A sentinel that is published later, and opens, shows that the repair could have opened.
    let sentinel = stage.world.voucher_id();
    let published = voucher_request(&sentinel, RequestBody::VoucherPublished(stage.world.terms(1, 1, 0)));
    let published = lane.request(published).await;
    let mut other = stage.lane(1).await;
    stage.publish(&mut other, 1, 1).await;
    assert_eq!(stage.voucher(&voucher).await.expect("it is there").gate, Gate::Warming);
    for event in lane.decide(&[first, published]).await {
        lane.publish(&event).await;
    }
    stage.wait_equal(&lane, &voucher).await;
    stage.wait_equal(&lane, &sentinel).await;
    assert_eq!(stage.voucher(&voucher).await.expect("it is there").stock, 1);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_group_settles_the_whole_log_again_and_changes_nothing() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 50, 1).await;
    sell(&stage, &mut lane, &voucher, 0..10).await;
    stage.wait_equal(&lane, &voucher).await;
    let before = stage.voucher(&voucher).await;
    service.stop().await;
    let service = stage.run(&[("DOORBUSTER_PREFIX", &stage.fresh_prefix())]);
    // The sentinel comes after everything that is read again.
    stage.publish(&mut lane, 1, 1).await;
    assert_eq!(stage.voucher(&voucher).await, before);
    service.stop().await;
    // And with nothing in Redis at all.
    stage.command(&["FLUSHALL"]).await;
    let service = stage.run(&[("DOORBUSTER_PREFIX", &stage.fresh_prefix())]);
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_forgets_a_voucher_that_ended_long_ago() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[("DOORBUSTER_COMPENSATION_ARCHIVE_HOURS", "1")]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.world.voucher_id();
    let mut terms = stage.world.terms(5, 1, 0);
    terms.begins_at = terms.begins_at.plus(-7_200_000);
    terms.ends_at = terms.begins_at.plus(1);
    lane.answer(voucher_request(&voucher, RequestBody::VoucherPublished(terms))).await;
    let key = keys(&voucher)[0].clone();
    stage.wait("the keys to expire some day", async || stage.time_to_live(&key).await > 0).await;
    assert_eq!(stage.voucher(&voucher).await.expect("not yet").gate, Gate::Warming);
    // Once gone, it stays gone: a late event and the warden's rounds, which a sentinel shows to go on, rebuild nothing.
    stage.command(&["DEL", &key]).await;
    lane.answer(voucher_request(&voucher, RequestBody::VoucherClosed { expected_terms_version: 1 })).await;
    let sentinel = stage.publish(&mut lane, 1, 1).await;
    stage.command(&["DEL", &keys(&sentinel)[0]]).await;
    stage.wait_equal(&lane, &sentinel).await;
    assert_eq!(stage.voucher(&voucher).await, None);
    service.stop().await;
}
