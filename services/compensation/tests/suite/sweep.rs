//! Reservations that nobody published get their fate, and no others are touched.

use domain::{Request, RequestBody, VoucherId};

use crate::{
    lane::Lane,
    stage::{Stage, keys},
};

/// The requests of this voucher's orders in the log, with their offsets.
fn orders(stage: &Stage, partition: i32, voucher: &VoucherId) -> Vec<(Request, i64)> {
    let codec = stage.world.codec();
    let records = stage.world.records(&stage.world.connections().topics.requests, partition).into_iter();
    let decode = |r: infra::kafka::Record| (codec.decode_request(&r.payload).expect("a request"), r.offset);
    let of_voucher = |r: &Request| r.voucher_id == *voucher && matches!(r.body, RequestBody::OrderRequested { .. });
    records.map(decode).filter(|(r, _)| of_voucher(r)).collect()
}

/// Answers the orders of this voucher from the `from`th on; gives how many there are.
async fn answer(stage: &Stage, lane: &mut Lane, voucher: &VoucherId, from: usize) -> usize {
    let found = orders(stage, lane.partition, voucher);
    let count = found.len();
    for (request, offset) in found.into_iter().skip(from) {
        let logged = lane.logged(offset, request);
        for event in lane.decide(&[logged]).await {
            lane.publish(&event).await;
        }
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_reservation_is_published_once_with_its_own_instant() {
    let stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 5, 2).await;
    let reserved = stage.reserve(&voucher, "orphan", 2).await;
    stage.wait("the sweep", async || !orders(&stage, 0, &voucher).is_empty()).await;
    let mut found = orders(&stage, 0, &voucher);
    let (request, offset) = found.remove(0);
    assert_eq!(request.body, reserved.body);
    // Not before the producers' time-out and the margin have passed.
    let RequestBody::OrderRequested { requested_at, .. } = request.body else { panic!("{request:?}") };
    let records = stage.world.records(&stage.world.connections().topics.requests, 0);
    let appended_at = records.iter().find(|record| record.offset == offset).expect("it is in the log").timestamp;
    assert!(appended_at >= requested_at.plus(1_200), "{appended_at:?} {requested_at:?}");
    // The stamp was renewed before it was published: a second sweep needs as long again, and the lane is quicker.
    let logged = lane.logged(offset, request);
    for event in lane.decide(&[logged]).await {
        lane.publish(&event).await;
    }
    stage.wait_equal(&lane, &voucher).await;
    assert_eq!(found.len(), 0);
    assert_eq!(orders(&stage, 0, &voucher).len(), 1);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_swept_while_its_request_may_be_in_the_log_undecided() {
    let stage = Stage::new().await;
    let service = stage.run(&[]);
    let (mut lane, mut other) = (stage.lane(0).await, stage.lane(1).await);
    let (voucher, sentinel) = (stage.publish(&mut lane, 5, 1).await, stage.publish(&mut other, 5, 1).await);
    let undecided = lane.request(stage.reserve(&voucher, "patient", 1).await).await;
    // Twice the same sentinel, so that whole rounds of sweeping lie between.
    for user in ["orphan-1", "orphan-2"] {
        let before = orders(&stage, 1, &sentinel).len();
        stage.reserve(&sentinel, user, 1).await;
        stage.wait("the sentinel's sweep", async || orders(&stage, 1, &sentinel).len() > before).await;
        answer(&stage, &mut other, &sentinel, before).await;
    }
    assert_eq!(orders(&stage, 0, &voucher).len(), 1);
    for event in lane.decide(&[undecided]).await {
        lane.publish(&event).await;
    }
    stage.wait_equal(&lane, &voucher).await;
    stage.wait_equal(&other, &sentinel).await;
    assert_eq!(orders(&stage, 0, &voucher).len(), 1);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voucher_that_gets_nowhere_holds_up_no_other_ones_sweep() {
    let mut stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let (late, healthy) = (stage.publish(&mut lane, 5, 1).await, stage.publish(&mut lane, 5, 1).await);
    // Decided, but not in the log, so not settled either.
    stage.reserve(&late, "orphan", 1).await;
    let decided = lane.request(stage.reserve(&late, "decided", 1).await).await;
    let unpublished = lane.decide(&[decided]).await.remove(0);
    for (count, user) in ["orphan-1", "orphan-2"].into_iter().enumerate() {
        stage.reserve(&healthy, user, 1).await;
        stage.wait("the sweep", async || orders(&stage, 0, &healthy).len() > count).await;
        answer(&stage, &mut lane, &healthy, count).await;
    }
    stage.wait_equal(&lane, &healthy).await;
    assert_eq!(orders(&stage, 0, &late).len(), 1);
    lane.publish(&unpublished).await;
    stage.wait("the late sweep", async || orders(&stage, 0, &late).len() > 1).await;
    answer(&stage, &mut lane, &late, 1).await;
    stage.wait_equal(&lane, &late).await;
    // Reservations that nobody can read, which Redis does not let anybody mend.
    stage.reserve(&late, "stuck", 1).await;
    stage.forbid_resets(true).await;
    stage.command(&["HSET", &keys(&late)[1], "no order", "no reservation"]).await;
    stage.reserve(&healthy, "orphan-3", 1).await;
    stage.wait("the sweep", async || orders(&stage, 0, &healthy).len() > 2).await;
    answer(&stage, &mut lane, &healthy, 2).await;
    stage.wait_equal(&lane, &healthy).await;
    stage.forbid_resets(false).await;
    stage.wait("the mended voucher's sweep", async || orders(&stage, 0, &late).len() > 2).await;
    answer(&stage, &mut lane, &late, 2).await;
    stage.wait_equal(&lane, &late).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_swept_again_and_again_raises_an_alarm() {
    let stage = Stage::new().await;
    let folder = stage.redis.folder().join("ready.json");
    let service = stage.run(&[("DOORBUSTER_READY_FILE", &folder.to_string_lossy())]);
    let mut lane = stage.lane(0).await;
    let (voucher, other) = (stage.publish(&mut lane, 5, 1).await, stage.publish(&mut lane, 5, 1).await);
    // An order whose id says another voucher's: the lane refuses it without a fate, so that its reservation stays.
    let (order, user) = (stage.order_id(&other, "lost"), domain::UserId::parse("lost").expect("a good name"));
    stage.store.reserve(&voucher, &order, &user, 1, "token").await.expect("Redis answers");
    let port = crate::stage::port(&folder);
    let alarm = || devstack::http_get(port, "/metrics").is_ok_and(|(_, text)| text.contains("alarms_total{kind=\"sweep\"}"));
    let mut answered = 0;
    stage
        .wait("the alarm", async || {
            answered = answer(&stage, &mut lane, &voucher, answered).await;
            alarm()
        })
        .await;
    assert!(answered >= 2);
    service.stop().await;
}
