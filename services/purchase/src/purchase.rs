//! One purchase: reserve in Redis, publish OrderRequested, answer. The rules of `docs/ARCHITECTURE.md` for repeats, refusals and faults are here.
//!
//! - A reservation is given back only where the request is certainly not in the log, nobody was told 202, and nobody else stands on it.
//! - Whoever is told 202 has an acknowledged request behind him, or this process goes on publishing until he has.
//! - A refusal of somebody who holds units is checked against the orders table: he may be asking for what he already got.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{Order, OrderId, OrderStatus, Request, RequestBody, Timestamp, UserId, VoucherId};
use infra::{
    crash,
    redis::{Refusal, Reserve, StoreError},
};
use parking_lot::Mutex;
use publish::Delivery;
use rand::Rng;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::{
    generations::Generations,
    metrics::Metrics,
    servers::{Sending, Servers},
    unacknowledged::{Slot, Unacknowledged},
    vouchers::{Standing, Vouchers},
};

/// Acknowledgements remembered, at least: about 5 MB. A forgotten one only costs a repeated request in the log.
const REMEMBERED: usize = 50_000;

/// First and longest pause before a request is published again in the background.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_MOST: Duration = Duration::from_secs(2);

/// Between two lines about damaged vouchers: in a sale every purchase meets the same damage.
const DAMAGE_LOG_PAUSE: Duration = Duration::from_secs(1);

/// Who the log says asked.
const ACTOR: &str = "purchase";

/// What one call asks for.
#[derive(Clone, Debug)]
pub(crate) struct Try {
    pub(crate) voucher: VoucherId,
    pub(crate) user: UserId,
    pub(crate) order: OrderId,
    pub(crate) quantity: i64,
}

/// What the buyer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// 202: the order exists or will. `None`: not decided yet, as far as this call knows.
    Accepted(Option<OrderStatus>),
    Refused(Refusal),
    /// This order id stands for another quantity.
    OtherQuantity(i64),
    UnknownVoucher,
    /// The voucher cannot be sold at this moment.
    NotReady,
    /// A server gave no answer; the same call can be made again.
    Away(Server),
}

/// The server that was away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Redis,
    Kafka,
    Postgres,
}

/// Carries out purchases.
pub(crate) struct Purchases<S> {
    pub(crate) servers: S,
    pub(crate) vouchers: Vouchers,
    pub(crate) unacknowledged: Arc<Unacknowledged>,
    acknowledged: Mutex<Generations<OrderId, ()>>,
    damage_told: Mutex<Option<Instant>>,
    ack_deadline: Duration,
    tasks: TaskTracker,
    pub(crate) metrics: Metrics,
}

impl<S: Servers> Purchases<S> {
    /// Work that outlives its call is tracked by `tasks`.
    pub(crate) fn new(
        servers: S,
        unacknowledged: Arc<Unacknowledged>,
        ack_deadline: Duration,
        tasks: TaskTracker,
        metrics: Metrics,
    ) -> Self {
        let acknowledged = Mutex::new(Generations::new(REMEMBERED));
        let damage_told = Mutex::default();
        Self { servers, vouchers: Vouchers::new(), unacknowledged, acknowledged, damage_told, ack_deadline, tasks, metrics }
    }

    /// One purchase to its answer. Must not be dropped half-way.
    pub(crate) async fn purchase(self: Arc<Self>, wanted: Try, slot: Slot) -> Answer {
        crash::point("purchase.asked");
        let token = format!("{:032x}", rand::random::<u128>());
        let reserve = self.servers.reserve(&wanted.voucher, &wanted.order, &wanted.user, wanted.quantity, &token);
        let answer = match self.metrics.time("reserve", reserve).await {
            Ok(answer) => answer,
            Err(error) => return self.store_failed(&error),
        };
        crash::point("purchase.reserved");
        if !matches!(answer, Reserve::UnknownVoucher) {
            self.vouchers.met(&wanted.voucher);
        }
        match answer {
            Reserve::Reserved { requested_at, partition, held: 0 } => {
                self.publish(&wanted, requested_at, partition, Some(&token), slot).await
            }
            Reserve::Reserved { requested_at, partition, held: _ } => {
                self.reserved_by_a_holder(&wanted, requested_at, partition, &token, slot).await
            }
            Reserve::Same { .. } if self.acknowledged.lock().get(&wanted.order).is_some() => {
                self.metrics.remembered.inc();
                Answer::Accepted(None)
            }
            Reserve::Same { quantity, requested_at, partition } => {
                let same = Try { quantity, ..wanted };
                self.publish(&same, requested_at, partition, None, slot).await
            }
            Reserve::OtherQuantity { quantity } => self.reserved_otherwise(&wanted, quantity).await,
            Reserve::Refused { refusal, held: 0 } => Answer::Refused(refusal),
            Reserve::Refused { refusal, held: _ } => self.refused_a_holder(&wanted, refusal).await,
            Reserve::NotReady { .. } => Answer::NotReady,
            // Redis can lose a voucher; only Postgres can say that there never was one.
            Reserve::UnknownVoucher => match self.vouchers.standing(&self.servers, &wanted.voucher).await {
                Ok(Standing::Lost) => Answer::NotReady,
                Ok(Standing::Over { .. }) => self.refused_a_holder(&wanted, Refusal::Ended).await,
                Ok(Standing::None) => Answer::UnknownVoucher,
                Err(error) => database_failed(&error),
            },
        }
    }

    /// Refused, but he holds units (or may): he gets the order that he asks for again, if there is one.
    async fn refused_a_holder(&self, wanted: &Try, refusal: Refusal) -> Answer {
        match self.decided(wanted).await {
            Ok(Some(order)) => from_row(wanted, &order),
            Ok(None) => Answer::Refused(refusal),
            Err(away) => away,
        }
    }

    /// Reserved, for another quantity. Where that is itself a repeat with a wrong quantity of an order decided before, the order stands.
    async fn reserved_otherwise(&self, wanted: &Try, quantity: i64) -> Answer {
        match self.decided(wanted).await {
            Ok(Some(order)) => from_row(wanted, &order),
            Ok(None) | Err(_) => Answer::OtherQuantity(quantity),
        }
    }

    /// Reserved by somebody who already holds units: this may be an order that was decided long ago, asked for again.
    async fn reserved_by_a_holder(
        self: &Arc<Self>,
        wanted: &Try,
        requested_at: Timestamp,
        partition: i32,
        token: &str,
        slot: Slot,
    ) -> Answer {
        match self.decided(wanted).await {
            Ok(None) => self.publish(wanted, requested_at, partition, Some(token), slot).await,
            Ok(Some(order)) => {
                // Published all the same: RequestRepeated gives back the units just reserved.
                let request = request(wanted, requested_at);
                let sending = self.servers.send(partition, &request);
                self.publish_behind(partition, request, Some(sending), slot);
                from_row(wanted, &order)
            }
            Err(away) => {
                // Nothing was handed over yet, so nothing of this try can be in the log.
                self.release(wanted, token).await;
                away
            }
        }
    }

    /// Publishes and waits for the acknowledgement until the answer is due. `token`: the reservation is this try's own.
    async fn publish(
        self: &Arc<Self>,
        wanted: &Try,
        requested_at: Timestamp,
        partition: i32,
        token: Option<&str>,
        slot: Slot,
    ) -> Answer {
        let request = request(wanted, requested_at);
        let mut sending = self.servers.send(partition, &request);
        crash::point("purchase.sent");
        let sent = tokio::time::timeout(self.ack_deadline, &mut sending);
        match self.metrics.time("publish", sent).await {
            Ok(Delivery::Persisted { .. }) => self.remember(wanted.order),
            Ok(Delivery::NotPersisted { reason }) => {
                tracing::debug!(order = %wanted.order, reason, "a request was not persisted");
                if let Some(token) = token {
                    self.release(wanted, token).await;
                }
                return Answer::Away(Server::Kafka);
            }
            Ok(Delivery::Unknown { reason }) => {
                tracing::debug!(order = %wanted.order, reason, "whether a request was persisted is unknown");
                self.publish_behind(partition, request, None, slot);
            }
            Err(_) => self.publish_behind(partition, request, Some(sending), slot),
        }
        crash::point("purchase.published");
        Answer::Accepted(None)
    }

    /// Goes on publishing, behind the answer, until there is an acknowledgement.
    fn publish_behind(self: &Arc<Self>, partition: i32, request: Request, sending: Option<Sending>, slot: Slot) {
        let this = Arc::clone(self);
        let pending = self.unacknowledged.pending(slot);
        self.tasks.spawn(async move {
            let mut sending = sending.unwrap_or_else(|| this.servers.send(partition, &request));
            crash::point("purchase.behind");
            let mut pause = AGAIN_FIRST;
            while !matches!(sending.await, Delivery::Persisted { .. }) {
                let jitter = rand::rng().random_range(0.5..1.0);
                tokio::time::sleep(pause.mul_f64(jitter)).await;
                pause = AGAIN_MOST.min(pause * 2);
                this.metrics.published_again.inc();
                sending = this.servers.send(partition, &request);
            }
            drop(pending);
            if let Some(order) = request.body.order_id() {
                this.remember(order);
            }
        });
    }

    fn remember(&self, order: OrderId) {
        let forgotten = self.acknowledged.lock().insert(order, ());
        drop(forgotten);
    }

    /// Gives the reservation back. Where that fails it stays, and the sweeper publishes it.
    async fn release(&self, wanted: &Try, token: &str) {
        crash::point("purchase.release");
        let released = self.servers.release(&wanted.voucher, &wanted.order, token).await;
        crash::point("purchase.released");
        match released {
            Ok(true) => {
                self.metrics.released.inc();
            }
            Ok(false) => tracing::debug!(order = %wanted.order, "somebody else stands on this reservation: it stays"),
            Err(error) => tracing::debug!(order = %wanted.order, %error, "a reservation could not be given back"),
        }
    }

    fn store_failed(&self, error: &StoreError) -> Answer {
        if !matches!(error, StoreError::Damaged { .. }) {
            tracing::debug!(%error, "no purchase without Redis");
            return Answer::Away(Server::Redis);
        }
        let mut told = self.damage_told.lock();
        if told.is_none_or(|at| at.elapsed() >= DAMAGE_LOG_PAUSE) {
            *told = Some(Instant::now());
            tracing::error!(%error, "a voucher needs a rebuild");
        }
        Answer::NotReady
    }

    /// The order of this try, if it was decided before.
    async fn decided(&self, wanted: &Try) -> Result<Option<Order>, Answer> {
        let row = self.metrics.time("look_up", self.servers.order_row(&wanted.order)).await;
        crash::point("purchase.looked_up");
        row.map_err(|error| database_failed(&error))
    }
}

fn request(wanted: &Try, requested_at: Timestamp) -> Request {
    Request {
        id: Uuid::new_v4(),
        voucher_id: wanted.voucher.clone(),
        actor: ACTOR.to_owned(),
        reason: None,
        body: RequestBody::OrderRequested {
            order_id: wanted.order,
            user_id: wanted.user.clone(),
            quantity: wanted.quantity,
            requested_at,
        },
    }
}

fn from_row(wanted: &Try, order: &Order) -> Answer {
    if order.quantity == wanted.quantity { Answer::Accepted(Some(order.status)) } else { Answer::OtherQuantity(order.quantity) }
}

fn database_failed(error: &infra::postgres::DatabaseError) -> Answer {
    tracing::debug!(%error, "an order or voucher could not be looked up");
    Answer::Away(Server::Postgres)
}

#[cfg(test)]
mod tests;
