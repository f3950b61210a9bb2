//! Events become what Redis sells: each once, in order, whatever the way.

use domain::{CancelledBy, EventBody, RequestBody};
use infra::redis::Gate;
use testkit::voucher_request;

use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn a_published_voucher_opens_and_sells_and_settles() {
    let stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 3, 1).await;
    for user in ["a", "b"] {
        let request = stage.reserve(&voucher, user, 1).await;
        assert!(matches!(lane.answer(request).await.body, EventBody::OrderConfirmed { .. }));
    }
    stage.wait_equal(&lane, &voucher).await;
    let found = stage.voucher(&voucher).await.expect("it is there");
    assert_eq!((found.stock, found.sold, found.gate), (1, 2, Gate::Ready));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_counts_once_however_often_it_is_delivered() {
    let stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 2, 1).await;
    let order_id = stage.order_id(&voucher, "a");
    let order = stage.reserve(&voucher, "a", 1).await;
    let cancel = |by| voucher_request(&voucher, RequestBody::CancellationRequested { order_id, by });
    let requests = [
        order.clone(),
        cancel(CancelledBy::Buyer),
        cancel(CancelledBy::Seller),
        voucher_request(&voucher, RequestBody::PaymentWindowElapsed { order_id }),
        order,
    ];
    let mut events = Vec::new();
    for request in requests {
        let logged = lane.request(request).await;
        events.extend(lane.decide(&[logged]).await);
    }
    let kinds: Vec<_> = events.iter().map(|e| e.body.name()).collect();
    assert_eq!(kinds, ["OrderConfirmed", "OrderCancelled", "RequestRefused", "RequestRefused", "RequestRepeated"]);
    for event in &events {
        for _ in 0..3 {
            lane.publish(event).await;
        }
    }
    // And the whole once more, as after a crash before the offsets were committed.
    for event in &events {
        lane.publish(event).await;
    }
    stage.wait_equal(&lane, &voucher).await;
    assert_eq!(stage.voucher(&voucher).await.expect("it is there").stock, 2);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_order_gives_its_units_back_once() {
    let stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 1, 1).await;
    // The log sells the only unit to a buyer whose reservation Redis does not know.
    let stranger = testkit::order_request(&voucher, stage.order_id(&voucher, "stranger"), "stranger", 1);
    let logged = [lane.request(stranger).await, lane.request(stage.reserve(&voucher, "late", 1).await).await];
    let events = lane.decide(&logged).await;
    assert!(matches!(events[1].body, EventBody::OrderRejected { .. }));
    for event in [&events[0], &events[1], &events[1], &events[1]] {
        lane.publish(event).await;
    }
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_without_an_order_changes_nothing_and_the_late_order_gets_its_own_fate() {
    let stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(0).await;
    let voucher = stage.publish(&mut lane, 5, 1).await;
    let order_id = stage.order_id(&voucher, "a");
    let cancel = voucher_request(&voucher, RequestBody::CancellationRequested { order_id, by: CancelledBy::Buyer });
    assert_eq!(lane.answer(cancel.clone()).await.body.name(), "RequestRefused");
    stage.wait_equal(&lane, &voucher).await;
    assert_eq!(stage.voucher(&voucher).await.expect("it is there").stock, 5);
    let late = stage.reserve(&voucher, "a", 1).await;
    assert_eq!(lane.answer(late).await.body.name(), "OrderConfirmed");
    assert_eq!(lane.answer(cancel).await.body.name(), "OrderCancelled");
    stage.wait_equal(&lane, &voucher).await;
    // The same try again: the gate lets it in, the log knows its fate, the unit returns.
    let again = stage.reserve(&voucher, "a", 1).await;
    assert_eq!(lane.answer(again).await.body.name(), "RequestRepeated");
    stage.wait_equal(&lane, &voucher).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_terms_reach_the_gate() {
    let stage = Stage::new().await;
    let service = stage.run(&[]);
    let mut lane = stage.lane(1).await;
    let voucher = stage.publish(&mut lane, 5, 1).await;
    lane.answer(voucher_request(&voucher, RequestBody::StockChanged { delta: 3, expected_terms_version: 1 })).await;
    lane.answer(voucher_request(&voucher, RequestBody::VoucherPaused { expected_terms_version: 2 })).await;
    stage.wait_equal(&lane, &voucher).await;
    assert_eq!(stage.voucher(&voucher).await.expect("it is there").stock, 8);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vouchers_published_in_a_row_all_open_without_the_wardens_help() {
    let stage = Stage::new().await;
    let service = stage.run(&[("DOORBUSTER_COMPENSATION_WARDEN_MS", "60000")]);
    let mut lane = stage.lane(0).await;
    stage.publish(&mut lane, 1, 1).await;
    let mut vouchers = Vec::new();
    for _ in 0..60 {
        let voucher = stage.world.voucher_id();
        let terms = stage.world.terms(1, 1, 0);
        lane.answer(voucher_request(&voucher, RequestBody::VoucherPublished(terms))).await;
        vouchers.push(voucher);
    }
    for voucher in &vouchers {
        stage.wait_equal(&lane, voucher).await;
    }
    service.stop().await;
}
