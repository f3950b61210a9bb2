//! Reservations that nobody published get their fate, and no others are touched.

use domain::{Request, RequestBody, VoucherId};

use crate::stage::Stage;

/// The requests of this voucher's orders in the log, with their offsets.
fn orders(stage: &Stage, partition: i32, voucher: &VoucherId) -> Vec<(Request, i64)> {
    let codec = stage.world.codec();
    let records = stage.world.records(&stage.world.connections().topics.requests, partition).into_iter();
    let decode = |r: infra::kafka::Record| (codec.decode_request(&r.payload).expect("a request"), r.offset);
    let of_voucher = |r: &Request| r.voucher_id == *voucher && matches!(r.body, RequestBody::OrderRequested { .. });
    records.map(decode).filter(|(r, _)| of_voucher(r)).collect()
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
        for (request, offset) in orders(&stage, 1, &sentinel).into_iter().skip(before) {
            let logged = other.logged(offset, request);
            for event in other.decide(&[logged]).await {
                other.publish(&event).await;
            }
        }
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
