use std::collections::VecDeque;

use infra::redis::Gate;

use super::*;
use crate::scripted::{AT, PARTITION, Script, Scripted, old_voucher, order, order_id, purchases, voucher, voucher_id, wanted};

const RESERVED: Reserve = Reserve::Reserved { requested_at: AT, partition: PARTITION, held: 0 };
const RESERVED_BY_HOLDER: Reserve = Reserve::Reserved { requested_at: AT, partition: PARTITION, held: 1 };
const SAME: Reserve = Reserve::Same { quantity: 1, requested_at: AT, partition: PARTITION };
const ACKED: Delivery = Delivery::Persisted { partition: PARTITION, offset: 0 };

fn lost() -> Delivery {
    Delivery::NotPersisted { reason: "scripted".to_owned() }
}

fn unknown() -> Delivery {
    Delivery::Unknown { reason: "scripted".to_owned() }
}

/// One purchase of one unit on servers that do this, and what they were asked.
struct Run {
    purchases: Arc<Purchases<Scripted>>,
    servers: Scripted,
}

impl Run {
    fn on(script: Script) -> Self {
        let servers = Scripted(Arc::new(Mutex::new(script)));
        Self { purchases: purchases(&servers), servers }
    }

    async fn buy(&self) -> Answer {
        let slot = self.purchases.unacknowledged.admit().unwrap();
        Arc::clone(&self.purchases).purchase(wanted(1), slot).await
    }

    fn calls(&self) -> Vec<String> {
        self.servers.0.lock().called().into_iter().map(str::to_owned).collect()
    }

    fn requested(&self) -> Vec<(OrderId, i64, Timestamp)> {
        self.servers.0.lock().requested()
    }

    /// Waits until nothing is pending behind an answer.
    async fn acknowledged(&self) {
        self.purchases.tasks.close();
        self.purchases.tasks.wait().await;
        assert_eq!(self.purchases.unacknowledged.count(), 0);
    }
}

fn answers<const N: usize>(answers: [Reserve; N]) -> VecDeque<Result<Reserve, StoreError>> {
    answers.into_iter().map(Ok).collect()
}

#[tokio::test]
async fn reserved_and_acknowledged_is_accepted() {
    let run = Run::on(Script { reserve: answers([RESERVED]), deliveries: [ACKED].into(), ..Script::default() });
    assert_eq!(run.buy().await, Answer::Accepted(None));
    assert_eq!(run.calls(), ["reserve", "send"]);
    assert_eq!(run.requested(), [(order_id(), 1, AT)]);
}

#[tokio::test]
async fn not_persisted_is_given_back_with_this_tries_token() {
    for released in [Some(true), Some(false), None] {
        let run = Run::on(Script { reserve: answers([RESERVED]), deliveries: [lost()].into(), released, ..Script::default() });
        assert_eq!(run.buy().await, Answer::Away(Server::Kafka));
        assert_eq!(run.calls(), ["reserve", "send", "release"]);
        let calls = run.servers.0.lock().calls.clone();
        assert_eq!(calls[0].strip_prefix("reserve "), calls[2].strip_prefix("release "));
        assert_eq!(run.purchases.metrics.released.get(), u64::from(released == Some(true)));
    }
}

#[tokio::test]
async fn an_unknown_outcome_is_pending_and_published_until_acknowledged() {
    let deliveries = [unknown(), lost(), unknown(), ACKED].into();
    let run = Run::on(Script { reserve: answers([RESERVED]), deliveries, ..Script::default() });
    assert_eq!(run.buy().await, Answer::Accepted(None));
    run.acknowledged().await;
    assert_eq!(run.calls(), ["reserve", "send", "send", "send", "send"], "never given back");
    assert_eq!(run.requested(), [(order_id(), 1, AT); 4]);
}

#[tokio::test]
async fn no_acknowledgement_in_time_is_pending_and_keeps_its_place() {
    let run = Run::on(Script { reserve: answers([RESERVED]), ..Script::default() });
    assert_eq!(run.buy().await, Answer::Accepted(None));
    assert_eq!(run.purchases.unacknowledged.count(), 1);
    assert_eq!(run.calls(), ["reserve", "send"], "the record is still on its way: it is not sent twice");
}

#[tokio::test]
async fn a_repeat_is_published_again_with_the_stored_quantity_and_instant() {
    let stored = Reserve::Same { quantity: 1, requested_at: AT.plus(-5), partition: PARTITION };
    let run = Run::on(Script { reserve: answers([stored]), deliveries: [ACKED].into(), ..Script::default() });
    assert_eq!(run.buy().await, Answer::Accepted(None));
    assert_eq!(run.requested(), [(order_id(), 1, AT.plus(-5))]);
}

#[tokio::test]
async fn a_repeat_that_is_not_persisted_gives_nothing_back() {
    let run = Run::on(Script { reserve: answers([SAME]), deliveries: [lost()].into(), ..Script::default() });
    assert_eq!(run.buy().await, Answer::Away(Server::Kafka));
    assert_eq!(run.calls(), ["reserve", "send"]);
}

#[tokio::test]
async fn a_remembered_acknowledgement_saves_the_repeat() {
    let reserve = answers([RESERVED, SAME]);
    let run = Run::on(Script { reserve, deliveries: [ACKED].into(), ..Script::default() });
    assert_eq!(run.buy().await, Answer::Accepted(None));
    assert_eq!(run.buy().await, Answer::Accepted(None));
    assert_eq!(run.calls(), ["reserve", "send", "reserve"]);
    assert_eq!(run.purchases.metrics.remembered.get(), 1);
}

#[tokio::test]
async fn a_new_reservation_is_published_whatever_is_remembered() {
    let reserve = answers([RESERVED, RESERVED]);
    let run = Run::on(Script { reserve, deliveries: [ACKED, ACKED].into(), ..Script::default() });
    run.buy().await;
    run.buy().await;
    assert_eq!(run.calls(), ["reserve", "send", "reserve", "send"]);
}

#[tokio::test]
async fn an_acknowledgement_behind_the_answer_is_remembered_too() {
    let reserve = answers([RESERVED, SAME]);
    let run = Run::on(Script { reserve, deliveries: [unknown(), ACKED].into(), ..Script::default() });
    run.buy().await;
    run.acknowledged().await;
    assert_eq!(run.buy().await, Answer::Accepted(None));
    assert_eq!(run.calls(), ["reserve", "send", "send", "reserve"]);
}

#[tokio::test]
async fn another_quantity_is_refused_and_changes_nothing() {
    for (row, answer) in [
        (Some(None), Answer::OtherQuantity(2)),
        (None, Answer::OtherQuantity(2)),
        // The reservation is the repeat with a wrong quantity, the row the order.
        (Some(Some(order(1, OrderStatus::Confirmed))), Answer::Accepted(Some(OrderStatus::Confirmed))),
    ] {
        let reserve = answers([Reserve::OtherQuantity { quantity: 2 }]);
        let run = Run::on(Script { reserve, order: row, ..Script::default() });
        assert_eq!(run.buy().await, answer);
        assert_eq!(run.calls(), ["reserve", "order"]);
    }
}

#[tokio::test]
async fn a_loser_costs_postgres_nothing() {
    let refusals = [Refusal::SoldOut, Refusal::LimitReached, Refusal::Ended, Refusal::Closed, Refusal::Paused];
    for refusal in refusals {
        let run = Run::on(Script { reserve: answers([Reserve::Refused { refusal, held: 0 }]), ..Script::default() });
        assert_eq!(run.buy().await, Answer::Refused(refusal));
        assert_eq!(run.calls(), ["reserve"]);
    }
}

#[tokio::test]
async fn a_winner_who_retries_after_the_sale_gets_his_order() {
    let refused = Reserve::Refused { refusal: Refusal::Ended, held: 1 };
    for (row, answer) in [
        (Some(Some(order(1, OrderStatus::Confirmed))), Answer::Accepted(Some(OrderStatus::Confirmed))),
        (Some(Some(order(2, OrderStatus::Confirmed))), Answer::OtherQuantity(2)),
        (Some(None), Answer::Refused(Refusal::Ended)),
        (None, Answer::Away(Server::Postgres)),
    ] {
        let run = Run::on(Script { reserve: answers([refused.clone()]), order: row, ..Script::default() });
        assert_eq!(run.buy().await, answer);
        assert_eq!(run.calls(), ["reserve", "order"]);
    }
}

#[tokio::test]
async fn a_holders_new_order_is_looked_up_then_published() {
    let script = Script { order: Some(None), deliveries: [ACKED].into(), ..Script::default() };
    let run = Run::on(Script { reserve: answers([RESERVED_BY_HOLDER]), ..script });
    assert_eq!(run.buy().await, Answer::Accepted(None));
    assert_eq!(run.calls(), ["reserve", "order", "send"]);
}

#[tokio::test]
async fn a_holders_decided_order_answers_and_is_published_all_the_same() {
    for (quantity, answer) in [(1, Answer::Accepted(Some(OrderStatus::Paid))), (2, Answer::OtherQuantity(2))] {
        let row = Some(Some(order(quantity, OrderStatus::Paid)));
        let script = Script { order: row, deliveries: [lost(), ACKED].into(), ..Script::default() };
        let run = Run::on(Script { reserve: answers([RESERVED_BY_HOLDER]), ..script });
        assert_eq!(run.buy().await, answer);
        run.acknowledged().await;
        assert_eq!(run.calls(), ["reserve", "order", "send", "send"], "published until acknowledged, never given back");
    }
}

#[tokio::test]
async fn a_holder_who_cannot_be_looked_up_leaves_nothing_reserved() {
    let run = Run::on(Script { reserve: answers([RESERVED_BY_HOLDER]), released: Some(true), ..Script::default() });
    assert_eq!(run.buy().await, Answer::Away(Server::Postgres));
    assert_eq!(run.calls(), ["reserve", "order", "release"]);
}

#[tokio::test]
async fn a_redis_that_does_not_answer_is_no_refusal() {
    let damaged = StoreError::Damaged { voucher: voucher_id(), problem: "scripted".to_owned() };
    for (error, answer) in [
        (StoreError::Unknown("scripted".to_owned()), Answer::Away(Server::Redis)),
        (StoreError::Unavailable("scripted".to_owned()), Answer::Away(Server::Redis)),
        (damaged, Answer::NotReady),
    ] {
        let run = Run::on(Script { reserve: [Err(error)].into(), ..Script::default() });
        assert_eq!(run.buy().await, answer);
        assert_eq!(run.calls(), ["reserve"]);
    }
    let run = Run::on(Script { reserve: answers([Reserve::NotReady { gate: Gate::Warming }]), ..Script::default() });
    assert_eq!(run.buy().await, Answer::NotReady);
}

#[tokio::test]
async fn a_voucher_that_redis_lost_is_never_unknown() {
    let unknown = || answers([Reserve::UnknownVoucher]);
    for (row, answer) in
        [(Some(Some(voucher())), Answer::NotReady), (Some(None), Answer::UnknownVoucher), (None, Answer::Away(Server::Postgres))]
    {
        let run = Run::on(Script { reserve: unknown(), voucher: row, ..Script::default() });
        assert_eq!(run.buy().await, answer);
        assert_eq!(run.calls(), ["reserve", "voucher"]);
    }
}

#[tokio::test]
async fn a_voucher_that_was_met_is_known_without_postgres() {
    let lost = || [Reserve::NotReady { gate: Gate::Warming }, Reserve::UnknownVoucher, Reserve::UnknownVoucher];
    for row in [None, Some(None), Some(Some(voucher()))] {
        let run = Run::on(Script { reserve: answers(lost()), voucher: row.clone(), ..Script::default() });
        for _ in lost() {
            assert_eq!(run.buy().await, Answer::NotReady);
        }
        let asked = run.calls().iter().filter(|call| *call == "voucher").count();
        assert_eq!(asked, if matches!(row, Some(Some(_))) { 1 } else { 2 });
    }
}

#[tokio::test]
async fn a_voucher_that_redis_forgot_long_after_its_sale_is_over() {
    for (row, answer) in [
        (Some(None), Answer::Refused(Refusal::Ended)),
        (Some(Some(order(1, OrderStatus::Expired))), Answer::Accepted(Some(OrderStatus::Expired))),
        (None, Answer::Away(Server::Postgres)),
    ] {
        let script = Script { voucher: Some(Some(old_voucher())), order: row, ..Script::default() };
        let run = Run::on(Script { reserve: answers([Reserve::UnknownVoucher]), ..script });
        assert_eq!(run.buy().await, answer);
        assert_eq!(run.calls(), ["reserve", "voucher", "order"]);
    }
}

#[tokio::test]
async fn a_flood_for_a_voucher_that_is_not_there_asks_postgres_once() {
    let reserve = std::iter::repeat_with(|| Ok(Reserve::UnknownVoucher)).take(5).collect();
    let run = Run::on(Script { reserve, voucher: Some(None), ..Script::default() });
    for _ in 0..5 {
        assert_eq!(run.buy().await, Answer::UnknownVoucher);
    }
    assert_eq!(run.calls().iter().filter(|call| *call == "voucher").count(), 1);
}
