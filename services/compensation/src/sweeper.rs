//! Publishes reservations that nobody else will: of purchases that died between reserving and the log's acknowledgement.
//!
//! A request that was ever going to reach the log was appended before its reservation's stamp + the producers' delivery time-out + a
//! margin for clocks. So: find old reservations; ask the broker which offset that instant has; wait until everything below it is
//! decided, published and settled; what is then still reserved with the same stamp has no request in the log. Right under any lag.
//! A purchase that was only paused may publish after all: the second request of an order is repeated, never decided twice.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use domain::{OrderId, Request, RequestBody, VoucherId};
use infra::{
    crash, postgres,
    redis::{Reservation, StoreError},
};
use publish::Delivery;
use uuid::Uuid;

use crate::{
    partition::{Partition, Reason},
    settle::Pause,
};

/// Reservations of one voucher taken up at once; the rest follows when these are done.
const MOST_AT_ONCE: usize = 500;

/// Old reservations of one voucher, and what has to be decided and settled before they may be taken.
struct Suspects {
    reservations: Vec<Reservation>,
    /// Requests below this offset must be decided.
    decided: i64,
    /// Then: the seq that Redis must have reached.
    settled: Option<i64>,
}

struct Sweeper {
    partition: Arc<Partition>,
    /// By voucher, so that one that gets nowhere holds up no other.
    suspects: HashMap<VoucherId, Suspects>,
    /// How often a reservation that is still there was published.
    tries: HashMap<(VoucherId, OrderId), u32>,
}

/// Sweeps until the partition goes.
pub(crate) async fn run(partition: Arc<Partition>) {
    let stop = partition.stop.clone();
    let sweeper = Sweeper { partition, suspects: HashMap::new(), tries: HashMap::new() };
    stop.run_until_cancelled(sweeper.run()).await;
}

impl Sweeper {
    async fn run(mut self) {
        let partition = self.partition.clone();
        let mut failures = Pause::new();
        loop {
            tokio::time::sleep(partition.service.config.warden_interval).await;
            match self.step().await {
                Ok(()) => failures.reset(),
                Err(problem) => {
                    failures.complain("reservations cannot be swept", &problem);
                    if failures.wait(&partition.stop).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        self.look().await?;
        if self.suspects.values().any(|suspects| suspects.settled.is_none()) {
            let service = &self.partition.service;
            let topic = &service.config.connections.topics.requests;
            // In this order: what is decided below the offset is in the rows.
            let next = postgres::next_offset(&service.pool, topic, self.partition.number).await?.unwrap_or(0);
            for row in postgres::vouchers(&service.pool, Some(&[self.partition.number])).await? {
                if let Some(suspects) = self.suspects.get_mut(&row.id).filter(|s| s.settled.is_none() && s.decided <= next) {
                    suspects.settled = Some(row.seq);
                }
            }
        }
        let mut taken = Vec::new();
        let outcome = self.take(&mut taken).await;
        // Whatever happened meanwhile: with its new stamp, what was taken would wait as long again.
        self.publish(taken).await;
        outcome
    }

    /// Looks for reservations that are old enough, of vouchers that have no suspects.
    async fn look(&mut self) -> anyhow::Result<()> {
        let service = &self.partition.service;
        let vouchers = self.partition.reserved.lock().clone();
        self.tries.retain(|(voucher, _), _| vouchers.contains(voucher));
        let span = service.config.sweep_after_ms();
        let oldest_young = service.store.now().await?.plus(-span);
        let mut found = Vec::new();
        for voucher in vouchers.into_iter().filter(|voucher| !self.suspects.contains_key(voucher)) {
            let mut old = match service.store.reservations(&voucher).await {
                Ok(reservations) => reservations,
                Err(StoreError::Damaged { .. }) => {
                    self.partition.ask_repair(&voucher, Reason::Damaged);
                    continue;
                }
                Err(problem) => return Err(problem.into()),
            };
            // An order without a reservation has come through.
            let reserved: HashSet<OrderId> = old.iter().map(|r| r.order_id).collect();
            self.tries.retain(|(of, order), _| *of != voucher || reserved.contains(order));
            old.retain(|reservation| reservation.stamp < oldest_young);
            old.sort_by_key(|reservation| reservation.stamp);
            old.truncate(MOST_AT_ONCE);
            if !old.is_empty() {
                found.push((voucher, old));
            }
        }
        let Some(latest) = found.iter().filter_map(|(_, old)| old.last()).map(|r| r.stamp).max() else { return Ok(()) };
        let number = self.partition.number;
        let decided = self.partition.probe(move |probe| probe.first_request_after(number, latest.plus(span))).await?;
        tracing::debug!(partition = self.partition.number, vouchers = found.len(), decided, "reservations without a fate");
        let suspects = found.into_iter().map(|(v, reservations)| (v, Suspects { reservations, decided, settled: None }));
        self.suspects.extend(suspects);
        Ok(())
    }

    /// Takes the suspects of every voucher that is settled far enough.
    async fn take(&mut self, taken: &mut Vec<(VoucherId, Reservation)>) -> anyhow::Result<()> {
        let ready: Vec<(VoucherId, i64)> = self.suspects.iter().filter_map(|(v, s)| Some((v.clone(), s.settled?))).collect();
        for (voucher, needed) in ready {
            match self.take_of(&voucher, needed, taken).await {
                Ok(false) => continue,
                Ok(true) => {}
                Err(StoreError::Damaged { .. }) => self.partition.ask_repair(&voucher, Reason::Damaged),
                Err(problem) => return Err(problem.into()),
            }
            self.suspects.remove(&voucher);
        }
        Ok(())
    }

    /// Takes one voucher's suspects; `false`: Redis has not come to `needed` yet.
    async fn take_of(
        &self,
        voucher: &VoucherId,
        needed: i64,
        taken: &mut Vec<(VoucherId, Reservation)>,
    ) -> Result<bool, StoreError> {
        let store = &self.partition.service.store;
        // One that is gone from Redis has no reservations any more; its repair will tell.
        let Some(found) = store.voucher(voucher).await? else { return Ok(true) };
        if found.seq < needed {
            return Ok(false);
        }
        for suspect in self.suspects.get(voucher).into_iter().flat_map(|suspects| &suspects.reservations) {
            if let Some(mine) = store.sweep(voucher, &suspect.order_id, suspect.stamp).await? {
                crash::point("compensation.taken");
                taken.push((voucher.clone(), mine));
            }
        }
        Ok(true)
    }

    /// Publishes reservations with their own order ids and instants. What may not have arrived is swept again by its new stamp.
    async fn publish(&mut self, taken: Vec<(VoucherId, Reservation)>) {
        let service = self.partition.service.clone();
        let mut sent = Vec::with_capacity(taken.len());
        for (voucher, reservation) in taken {
            let tries = self.tries.entry((voucher.clone(), reservation.order_id)).or_insert(0);
            *tries += 1;
            if *tries >= service.config.sweep_alarm {
                tracing::error!(order = %reservation.order_id, %voucher, tries, "an order is published again and again without a fate");
                service.metrics.alarm("sweep");
            }
            let order = reservation.order_id;
            let delivery = service.producer.send(self.partition.number, &request(voucher, reservation));
            sent.push((order, tokio::spawn(delivery)));
        }
        for (order, delivery) in sent {
            match delivery.await {
                Ok(Delivery::Persisted { partition, offset }) => {
                    crash::point("compensation.swept");
                    service.metrics.swept.inc();
                    tracing::info!(%order, partition, offset, "an orphaned reservation was published");
                }
                Ok(outcome) => tracing::warn!(%order, ?outcome, "an orphaned reservation was not published for certain"),
                Err(problem) => tracing::error!(%order, %problem, "publishing an orphaned reservation panicked"),
            }
        }
    }
}

fn request(voucher_id: VoucherId, reservation: Reservation) -> Request {
    let Reservation { order_id, user_id, quantity, requested_at, stamp: _ } = reservation;
    Request {
        id: Uuid::new_v4(),
        voucher_id,
        actor: "sweeper".to_owned(),
        reason: Some("reserved, but never published".to_owned()),
        body: RequestBody::OrderRequested { order_id, user_id, quantity, requested_at },
    }
}
