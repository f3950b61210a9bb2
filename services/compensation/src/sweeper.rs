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
use infra::{postgres, redis::Reservation};
use publish::Delivery;
use uuid::Uuid;

use crate::{fault::Fault, partition::Partition, settle::Pause};

/// Reservations taken up at once; the rest follows when these are done.
const MOST_AT_ONCE: usize = 500;

/// Old reservations, and what has to be decided and settled before they may be taken.
struct Suspects {
    reservations: Vec<(VoucherId, Reservation)>,
    /// Requests below this offset must be decided.
    decided: i64,
    /// Then: the seq that Redis must have reached, per voucher.
    settled: Option<HashMap<VoucherId, i64>>,
}

struct Sweeper {
    partition: Arc<Partition>,
    suspects: Option<Suspects>,
    tries: HashMap<OrderId, u32>,
}

/// Sweeps until the partition goes.
pub(crate) async fn run(partition: Arc<Partition>) {
    let stop = partition.stop.clone();
    let sweeper = Sweeper { partition, suspects: None, tries: HashMap::new() };
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

    async fn step(&mut self) -> Result<(), Fault> {
        if self.suspects.is_none() {
            self.suspects = self.look().await?;
        }
        let Some(suspects) = self.suspects.as_mut() else { return Ok(()) };
        let service = &self.partition.service;
        if suspects.settled.is_none() {
            let topic = &service.config.connections.topics.requests;
            // In this order: what is decided below the offset is in the rows.
            let next = postgres::next_offset(&service.pool, topic, self.partition.number).await?.unwrap_or(0);
            if next < suspects.decided {
                return Ok(());
            }
            let rows = postgres::vouchers(&service.pool, Some(&[self.partition.number])).await?;
            suspects.settled = Some(rows.into_iter().map(|row| (row.id, row.seq)).collect());
        }
        self.take().await
    }

    /// Looks for reservations that are old enough.
    async fn look(&mut self) -> Result<Option<Suspects>, Fault> {
        let service = &self.partition.service;
        let vouchers = self.partition.reserved.lock().clone();
        if vouchers.is_empty() {
            self.tries.clear();
            return Ok(None);
        }
        let span = service.config.sweep_after_ms();
        let oldest_young = service.store.now().await?.plus(-span);
        let mut old = Vec::new();
        for voucher in vouchers {
            let reservations = service.store.reservations(&voucher).await?;
            old.extend(reservations.into_iter().filter(|r| r.stamp < oldest_young).map(|r| (voucher.clone(), r)));
        }
        old.sort_by_key(|(_, reservation)| reservation.stamp);
        old.truncate(MOST_AT_ONCE);
        // An order without an old reservation has come through; so the counts stay as few as the orders in trouble.
        let in_trouble: HashSet<OrderId> = old.iter().map(|(_, r)| r.order_id).collect();
        self.tries.retain(|order, _| in_trouble.contains(order));
        let Some(latest) = old.iter().map(|(_, r)| r.stamp).max() else { return Ok(None) };
        let decided = service.probe.first_request_after(self.partition.number, latest.plus(span)).await?;
        tracing::debug!(partition = self.partition.number, reservations = old.len(), decided, "reservations without a fate");
        Ok(Some(Suspects { reservations: old, decided, settled: None }))
    }

    /// Takes and publishes the suspects of every voucher that is settled far enough; keeps the others.
    async fn take(&mut self) -> Result<(), Fault> {
        let partition = self.partition.clone();
        let store = &partition.service.store;
        let Some(Suspects { reservations, decided, settled: Some(settled) }) = self.suspects.take() else { return Ok(()) };
        let mut far_enough: HashMap<VoucherId, bool> = HashMap::new();
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for (voucher, reservation) in reservations {
            let ready = match far_enough.get(&voucher) {
                Some(ready) => *ready,
                None => {
                    let found = store.voucher(&voucher).await?;
                    let ready = settled.get(&voucher).zip(found).map(|(needed, found)| found.seq >= *needed);
                    *far_enough.entry(voucher.clone()).or_insert(ready.unwrap_or(false))
                }
            };
            // A voucher that is gone from Redis has no reservations any more; its repair will tell.
            if !ready {
                left.push((voucher, reservation));
                continue;
            }
            if let Some(mine) = store.sweep(&voucher, &reservation.order_id, reservation.stamp).await? {
                taken.push((voucher, mine));
            }
        }
        self.publish(taken).await;
        if !left.is_empty() && left.iter().any(|(voucher, _)| settled.contains_key(voucher)) {
            self.suspects = Some(Suspects { reservations: left, decided, settled: Some(settled) });
        }
        Ok(())
    }

    /// Publishes reservations with their own order ids and instants. What may not have arrived is swept again by its new stamp.
    async fn publish(&mut self, taken: Vec<(VoucherId, Reservation)>) {
        let service = self.partition.service.clone();
        let mut sent = Vec::with_capacity(taken.len());
        for (voucher, reservation) in taken {
            let tries = self.tries.entry(reservation.order_id).or_insert(0);
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
