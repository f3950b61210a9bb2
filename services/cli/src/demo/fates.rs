//! What became of each order, and when everybody could see it: read from `order-events` as the sale goes on.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use domain::{Event, EventBody, OrderId};
use events::Codec;
use infra::{
    config::Connections,
    kafka::{LogError, PartitionReader},
};
use load::{Quantiles, Report};

/// A pause without events after which the reading looks up; also how late its end is noticed. Far above a broker's answer.
const IDLE: Duration = Duration::from_secs(1);

/// One order's fate.
#[derive(Clone, Copy, Debug)]
struct Fate {
    confirmed: bool,
    /// Events that decided it: one, if all is well.
    decisions: u32,
    seen: Instant,
}

/// The fates of all orders of one partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Fates(HashMap<OrderId, Fate>);

impl Fates {
    fn take(&mut self, event: &Event, seen: Instant) {
        let confirmed = matches!(event.body, EventBody::OrderConfirmed { .. });
        if let EventBody::OrderConfirmed { order_id, .. } | EventBody::OrderRejected { order_id, .. } = event.body {
            self.0.entry(order_id).or_insert(Fate { confirmed, decisions: 0, seen }).decisions += 1;
        }
    }

    pub(super) fn confirmed(&self) -> u64 {
        self.0.values().filter(|fate| fate.confirmed).count() as u64
    }

    pub(super) fn rejected(&self) -> u64 {
        self.0.len() as u64 - self.confirmed()
    }

    /// Orders that were decided more than once.
    pub(super) fn decided_twice(&self) -> usize {
        self.0.values().filter(|fate| fate.decisions > 1).count()
    }

    /// Accepted orders that have no fate.
    pub(super) fn missing(&self, report: &Report) -> usize {
        accepted(report).filter(|(id, _)| id.is_none_or(|id| !self.0.contains_key(&id))).count()
    }

    /// From the intended click to the event that everybody can read.
    pub(super) fn visible_after(&self, report: &Report) -> Quantiles {
        let mut quantiles = Quantiles::new();
        for (id, intended) in accepted(report) {
            if let Some(fate) = id.and_then(|id| self.0.get(&id)) {
                quantiles.record(fate.seen.saturating_duration_since(intended));
            }
        }
        quantiles
    }
}

/// Every order id that was answered with 202 (`None`: one that is no order id), and when its buyer meant to click.
fn accepted(report: &Report) -> impl Iterator<Item = (Option<OrderId>, Instant)> {
    report.visits.iter().flat_map(|visit| visit.orders.iter().map(|id| (OrderId::parse(id).ok(), visit.intended)))
}

/// Reads one partition of `order-events` from its beginning on a thread of its own.
pub(super) struct Tail {
    fates: Arc<Mutex<Fates>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Tail {
    pub(super) fn start(connections: &Connections, codec: Codec, partition: i32) -> anyhow::Result<Self> {
        let mut reader = PartitionReader::open(connections, &connections.topics.events, partition)?.with_stall_limit(IDLE);
        let (fates, stop) = (Arc::new(Mutex::new(Fates::default())), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (Arc::clone(&fates), Arc::clone(&stop));
        let thread = thread::Builder::new().name("fates".to_owned()).spawn(move || {
            let (mut from, mut unreadable) = (0, None);
            while !ended.load(Ordering::Relaxed) && unreadable.is_none() {
                // To no end: what comes is seen at once, and a pause without events is taken for a stall.
                let mut next = from;
                let read = reader.read(from, i64::MAX, &mut |record| match codec.decode_event(&record.payload, partition) {
                    Ok(event) => {
                        lock(&seen).take(&event, Instant::now());
                        next = record.offset + 1;
                        ControlFlow::Continue(())
                    }
                    Err(error) => {
                        unreadable = Some(error);
                        ControlFlow::Break(())
                    }
                });
                match read {
                    Err(LogError::Stalled { offset, .. }) => next = offset,
                    // As one broker that is late with an answer.
                    Err(error @ LogError::Kafka(_)) => tracing::warn!(%error, "the events are asked for again"),
                    read => read?,
                }
                from = next;
            }
            unreadable.map_or(Ok(()), Err).context("cannot read an event")
        })?;
        Ok(Self { fates, stop, thread })
    }

    /// Accepted orders that have no fate yet.
    pub(super) fn without_fate(&self, report: &Report) -> usize {
        lock(&self.fates).missing(report)
    }

    /// Ends the reading and gives all that was read.
    pub(super) fn finish(self) -> anyhow::Result<Fates> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread that reads order-events failed"))??;
        Ok(lock(&self.fates).clone())
    }
}

fn lock(fates: &Mutex<Fates>) -> MutexGuard<'_, Fates> {
    fates.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
