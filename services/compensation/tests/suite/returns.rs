//! Units of cancelled orders come back, whatever Redis is up to meanwhile.

use domain::{CancelledBy, RequestBody, VoucherId};
use testkit::voucher_request;

use crate::{
    lane::Lane,
    stage::{Stage, keys},
};

/// Sells one unit to each of these buyers, past the gate.
async fn sell(stage: &Stage, lane: &mut Lane, voucher: &VoucherId, buyers: std::ops::Range<u32>) {
    let mut requests = Vec::new();
    for buyer in buyers {
        let user = format!("u{buyer}");
        requests.push(lane.request(testkit::order_request(voucher, stage.order_id(voucher, &user), &user, 1)).await);
    }
    answer(lane, &requests, "OrderConfirmed").await;
}

async fn cancel(stage: &Stage, lane: &mut Lane, voucher: &VoucherId, buyers: std::ops::Range<u32>) {
    let mut requests = Vec::new();
    for buyer in buyers {
        let order_id = stage.order_id(voucher, &format!("u{buyer}"));
        let body = RequestBody::CancellationRequested { order_id, by: CancelledBy::Seller };
        requests.push(lane.request(voucher_request(voucher, body)).await);
    }
    answer(lane, &requests, "OrderCancelled").await;
}

/// Decides in one transaction, publishes each.
async fn answer(lane: &mut Lane, requests: &[domain::LoggedRequest], wanted: &str) {
    for event in lane.decide(requests).await {
        assert_eq!(event.body.name(), wanted, "{event:?}");
        lane.publish(&event).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancellations_that_come_while_redis_is_away_all_return_their_units() {
    let stage = Stage::new().await;
    let service = stage.run(&[("DOORBUSTER_COMPENSATION_QUEUE", "50"), ("DOORBUSTER_COMPENSATION_BATCH", "7")]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 500, 1).await;
    sell(&stage, &mut lane, &voucher, 0..300).await;
    stage.wait_equal(&lane, &voucher).await;

    stage.redis.kill();
    cancel(&stage, &mut lane, &voucher, 0..250).await;
    stage.redis.restart().expect("it starts again");
    stage.wait_equal(&lane, &voucher).await;
    assert_eq!(stage.voucher(&voucher).await.expect("it is there").stock, 450);
    service.stop().await;
}

/// A voucher that Redis cannot take stands in nobody's way, and once it is whole again nothing of it is missing.
#[tokio::test(flavor = "multi_thread")]
async fn cancellations_of_a_broken_voucher_wait_for_it_and_those_of_others_do_not() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let (broken, other) = (stage.publish(&mut lane, 100, 1).await, stage.publish(&mut lane, 100, 1).await);
    for voucher in [&broken, &other] {
        sell(&stage, &mut lane, voucher, 0..50).await;
        stage.wait_equal(&lane, voucher).await;
    }
    // It stays broken: no reset gets through.
    stage.forbid_resets(true).await;
    let held = keys(&broken)[2].clone();
    stage.command(&["DEL", &held]).await;
    stage.command(&["SET", &held, "no hash"]).await;
    for buyer in 0..40 {
        for voucher in [&broken, &other] {
            cancel(&stage, &mut lane, voucher, buyer..buyer + 1).await;
        }
    }
    stage.wait_equal(&lane, &other).await;
    assert_eq!(stage.voucher(&other).await.expect("it is there").stock, 90);

    stage.forbid_resets(false).await;
    stage.wait_equal(&lane, &broken).await;
    assert_eq!(stage.voucher(&broken).await.expect("it is there").stock, 90);
    service.stop().await;
}
