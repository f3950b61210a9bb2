//! The stream: applies a partition's events to Redis in order, batch by batch.
//!
//! An event that Redis cannot take (events before it are missing, the voucher is gone or damaged) is passed by, and the repair of that
//! voucher reads it from the log. So a batch always ends, unless Redis is away: then it is tried again for as long as it takes, while
//! the member pauses the partition and goes on polling.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use domain::{Event, EventBody, VoucherId};
use events::{Codec, DecodeError};
use infra::{
    crash,
    redis::{Settle, Store, StoreError},
    shutdown::CancellationToken,
};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::partition::{Partition, Reason};

/// First and longest pause between tries while a server is away.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A record of `order-events` as polled.
pub(crate) struct Raw {
    pub(crate) offset: i64,
    pub(crate) payload: Vec<u8>,
}

/// What became of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Settled(Settle),
    /// The voucher's keys are damaged; nothing was changed.
    Damaged,
}

/// Why a batch did not end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Halt {
    #[error("the partition goes")]
    Stopping,
    /// The record is no event this version understands. A lane wrote it: a defect, or a newer version.
    #[error("the event at offset {offset}: {problem}")]
    Undecodable { offset: i64, problem: String },
}

/// Settles what the member hands over until the partition goes.
pub(crate) async fn run(partition: Arc<Partition>, mut records: UnboundedReceiver<Raw>) {
    let limit = partition.service.config.batch;
    let mut batch = Vec::with_capacity(limit);
    loop {
        tokio::select! {
            biased;
            () = partition.stop.cancelled() => return,
            taken = records.recv_many(&mut batch, limit) => if taken == 0 { return },
        }
        match settle_batch(&partition, &batch).await {
            Ok(()) => {}
            Err(Halt::Stopping) => return,
            Err(halt @ Halt::Undecodable { .. }) => {
                partition.stop_for_good(halt.to_string());
                return;
            }
        }
        partition.queued.fetch_sub(batch.len(), Ordering::AcqRel);
        batch.clear();
    }
}

async fn settle_batch(partition: &Partition, batch: &[Raw]) -> Result<(), Halt> {
    let mut events = Vec::with_capacity(batch.len());
    let mut undecodable = None;
    for raw in batch {
        match decode(&partition.service.codec, &raw.payload, partition.number, raw.offset, &partition.stop).await {
            Ok(event) => events.push((event, raw.offset)),
            Err(halt) => {
                undecodable = Some(halt);
                break;
            }
        }
    }
    crash::point("compensation.read");
    let answers = settle_all(&partition.service.store, &events, &partition.stop).await?;
    crash::point("compensation.settled");
    for ((event, _), answer) in events.iter().zip(&answers) {
        take_note(partition, event, answer);
    }
    if let Some((event, offset)) = events.last() {
        partition.tail_to(event.request_offset + 1);
        partition.settled_to(offset + 1);
    }
    undecodable.map_or(Ok(()), Err)
}

fn take_note(partition: &Partition, event: &Event, answer: &Answer) {
    let metrics = &partition.service.metrics;
    let Some(voucher) = event.voucher_id.as_ref().filter(|_| event.voucher_seq > 0) else {
        metrics.settled("unsequenced");
        return;
    };
    let word = match answer {
        Answer::Settled(Settle::Applied) => {
            partition.saw(voucher, event.voucher_seq);
            if matches!(event.body, EventBody::VoucherOpened(_)) {
                partition.ask_repair(voucher, Reason::Opened);
            }
            "applied"
        }
        Answer::Settled(Settle::Skip { seq }) => {
            partition.saw(voucher, *seq);
            "skip"
        }
        Answer::Settled(Settle::Gap { .. }) => {
            partition.passed_by(voucher, event.voucher_seq, Reason::Behind);
            "gap"
        }
        Answer::Settled(Settle::UnknownVoucher) => {
            partition.passed_by(voucher, event.voucher_seq, Reason::Missing);
            "unknown"
        }
        Answer::Damaged => {
            partition.passed_by(voucher, event.voucher_seq, Reason::Damaged);
            "damaged"
        }
    };
    metrics.settled(word);
}

/// Decodes one event, asking the registry for as long as it takes where the schema is not known yet.
pub(crate) async fn decode(
    codec: &Codec,
    payload: &[u8],
    partition: i32,
    offset: i64,
    stop: &CancellationToken,
) -> Result<Event, Halt> {
    let mut pause = Pause::new();
    loop {
        let id = match codec.decode_event(payload, partition) {
            Ok(event) => return Ok(event),
            Err(DecodeError::UnknownSchema(id)) => id,
            Err(problem) => return Err(Halt::Undecodable { offset, problem: problem.to_string() }),
        };
        if let Err(problem) = codec.learn(id).await {
            pause.complain("the schema of an event cannot be looked up", &problem);
            pause.wait(stop).await?;
        }
    }
}

/// Settles events of any vouchers of a partition, those of each voucher in order, and tells what became of each. Tries again while Redis
/// is away; a damaged voucher does not keep the others' events from being applied.
pub(crate) async fn settle_all(store: &Store, events: &[(Event, i64)], stop: &CancellationToken) -> Result<Vec<Answer>, Halt> {
    let mut damaged: Vec<VoucherId> = Vec::new();
    let mut pause = Pause::new();
    loop {
        let is_damaged = |event: &Event| event.voucher_id.as_ref().is_some_and(|v| damaged.contains(v));
        let answered = if damaged.is_empty() {
            store.settle(events).await
        } else {
            let rest: Vec<_> = events.iter().filter(|(event, _)| !is_damaged(event)).cloned().collect();
            store.settle(&rest).await
        };
        match answered {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                let of = |(event, _): &(Event, i64)| match is_damaged(event) {
                    true => Some(Answer::Damaged),
                    false => answers.next().map(Answer::Settled),
                };
                return Ok(events.iter().map_while(of).collect());
            }
            Err(StoreError::Damaged { voucher, problem }) if !damaged.contains(&voucher) => {
                tracing::error!(%voucher, problem, "a voucher is damaged in Redis; its events are passed by until it is repaired");
                damaged.push(voucher);
            }
            Err(problem) => {
                pause.complain("events cannot be settled", &problem);
                pause.wait(stop).await?;
            }
        }
    }
}

/// Pauses that double up to a bound, with jitter, and end when the partition goes.
pub(crate) struct Pause {
    next: Duration,
    tries: u32,
}

impl Pause {
    pub(crate) fn new() -> Self {
        Self { next: PAUSES.0, tries: 0 }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Logs the first failure of a row, and every twentieth.
    pub(crate) fn complain(&self, what: &str, problem: &dyn std::fmt::Display) {
        if self.tries.is_multiple_of(20) {
            tracing::warn!(%problem, tries = self.tries + 1, "{what}, trying again");
        }
    }

    pub(crate) async fn wait(&mut self, stop: &CancellationToken) -> Result<(), Halt> {
        let pause = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = (self.next * 2).min(PAUSES.1);
        self.tries += 1;
        tokio::select! {
            () = stop.cancelled() => Err(Halt::Stopping),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }
}
