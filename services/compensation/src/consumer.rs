//! A member of the consumer group on `order-events`, polling on an OS thread of its own.
//!
//! What the group decides is acted on after each poll. What is polled goes to the partition's settle
//! task, whose progress this loop commits. A partition with a full queue is paused, and polling goes on, so that a Redis that is away
//! never costs the membership.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::Context;
use infra::{
    crash,
    kafka::{GroupConsumer, Rebalance},
    shutdown::CancellationToken,
    start,
};
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    error::KafkaError,
};
use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinSet,
};

use crate::{
    partition::{Partition, Service},
    repair,
    settle::{self, Raw},
    sweeper, warden,
};

/// Every so many commits the offsets of all partitions are committed again, changed or not.
const COMMITS_A_ROUND: u64 = 10;
/// Longest wait of one poll: how late a shutdown, a commit or a resume can be.
const POLL: Duration = Duration::from_millis(50);
/// Between looks at queues and positions.
const HOUSEKEEPING: Duration = Duration::from_millis(20);
/// Longest wait for the group's offsets, during which nothing is polled, and pause before they are asked for again. Without them
/// partitions work all the same, but idle ones are not compared with Postgres.
const COMMITTED_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for the consumer to leave the group at the end; clean stops take a tenth of a second.
const CLOSE_DEADLINE: Duration = Duration::from_secs(10);

/// A partition this member owns.
struct Owned {
    state: Arc<Partition>,
    records: UnboundedSender<Raw>,
    tasks: JoinSet<()>,
    paused: bool,
    /// The group's offset is known, or that there is none.
    is_placed: bool,
    committed: i64,
}

struct Member {
    service: Arc<Service>,
    runtime: Handle,
    consumer: GroupConsumer,
    topic: String,
    owned: HashMap<i32, Owned>,
    joined: bool,
    /// When to ask for the group's offsets of partitions that are not placed.
    place_at: Instant,
}

/// Runs one member on a thread of its own until `stop`; an error means that its consumer is beyond repair.
pub(crate) async fn run_on_thread(service: Arc<Service>, number: usize, stop: CancellationToken) -> anyhow::Result<()> {
    let runtime = Handle::current();
    start::on_thread(format!("member-{number}"), move || Member::join(service, runtime)?.run(number, &stop)).await
}

impl Member {
    fn join(service: Arc<Service>, runtime: Handle) -> anyhow::Result<Self> {
        let connections = &service.config.connections;
        let topic = connections.topics.events.clone();
        // A fresh group settles the whole log again: that costs SKIPs, while to begin at the end would pass events by.
        let consumer = GroupConsumer::join(connections, "compensation", &topic, "earliest");
        let consumer = consumer.context("a consumer of order-events cannot be made")?;
        Ok(Self { service, runtime, consumer, topic, owned: HashMap::new(), joined: false, place_at: Instant::now() })
    }

    fn run(mut self, number: usize, stop: &CancellationToken) -> anyhow::Result<()> {
        let beat = self.service.beats.add(format!("member {number}"));
        let (mut looked, mut committed, mut commits) = (Instant::now(), Instant::now(), 0_u64);
        let mut outcome = Ok(());
        while !stop.is_cancelled() && outcome.is_ok() {
            beat.begin("turn");
            outcome = self.poll().and_then(|()| self.follow_group());
            if looked.elapsed() >= HOUSEKEEPING {
                outcome = outcome.and_then(|()| self.check_tasks());
                self.place();
                self.note_progress();
                self.pause_and_resume();
                looked = Instant::now();
            }
            if committed.elapsed() >= self.service.config.commit_interval {
                commits += 1;
                self.commit(commits % COMMITS_A_ROUND == 0);
                committed = Instant::now();
            }
        }
        beat.begin("leaving the group");
        // Also after a failure.
        self.leave();
        outcome
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        match self.consumer.poll(POLL) {
            None => Ok(()),
            Some(Ok(message)) => {
                // Records prefetched before a revoke may still come out; their partition's next owner settles them.
                if let Some(owned) = self.owned.get_mut(&message.partition()) {
                    let raw = Raw { offset: message.offset(), payload: message.payload().unwrap_or_default().to_vec() };
                    owned.state.queued.fetch_add(1, Ordering::AcqRel);
                    // A settle task that stopped for good takes nothing more; the partition is paused below.
                    let _ = owned.records.send(raw);
                    if !owned.paused && owned.state.queued.load(Ordering::Acquire) >= self.service.config.queue {
                        owned.paused = self.consumer.pause(&[message.partition()], true).is_ok();
                    }
                }
                Ok(())
            }
            Some(Err(problem @ KafkaError::MessageConsumptionFatal(_))) => {
                Err(problem).context("the consumer of order-events has failed")
            }
            Some(Err(problem)) => {
                tracing::warn!(%problem, "reading order-events, the client goes on by itself");
                Ok(())
            }
        }
    }

    /// Does what the group decided. An error means that group and client disagree about who owns what: only a new start helps.
    fn follow_group(&mut self) -> anyhow::Result<()> {
        loop {
            let Some(rebalance) = self.consumer.context().next() else { return Ok(()) };
            match rebalance {
                Rebalance::Assign(partitions) => self.assigned(&partitions),
                Rebalance::Revoke { partitions, is_lost } => self.revoked(&partitions, is_lost),
            }
            .context("the group's assignment could not be taken over")?;
        }
    }

    fn assigned(&mut self, partitions: &[i32]) -> Result<(), KafkaError> {
        if !self.joined {
            self.joined = true;
            self.service.joined.fetch_add(1, Ordering::Relaxed);
        }
        tracing::info!(?partitions, "assigned");
        // From where the group stands.
        self.consumer.take(partitions, Offset::Invalid)?;
        self.place_at = Instant::now();
        for partition in partitions {
            let owned = self.start_tasks(*partition);
            self.owned.insert(*partition, owned);
        }
        Ok(())
    }

    /// Asks where the group stands in the partitions for which that is not known yet: everything below is settled, and where nothing is
    /// left to read nothing else tells.
    fn place(&mut self) {
        let unplaced: Vec<i32> = self.owned.iter().filter(|(_, owned)| !owned.is_placed).map(|(p, _)| *p).collect();
        if unplaced.is_empty() || Instant::now() < self.place_at {
            return;
        }
        match self.consumer.committed_offsets(self.consumer.list(&unplaced, Offset::Invalid), COMMITTED_TIMEOUT) {
            Ok(found) => {
                for found in found.elements() {
                    let Some(owned) = self.owned.get_mut(&found.partition()) else { continue };
                    owned.is_placed = found.error().is_ok();
                    if let Offset::Offset(offset) = found.offset() {
                        owned.state.settled_to(offset);
                        owned.committed = offset.max(owned.committed);
                    }
                }
            }
            Err(problem) => tracing::debug!(%problem, "the group's offsets cannot be had, trying again"),
        }
        self.place_at = Instant::now() + COMMITTED_TIMEOUT;
    }

    fn start_tasks(&self, number: i32) -> Owned {
        let state = Arc::new(Partition::new(number, self.service.clone()));
        let (records, queue) = unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn_on(settle::run(state.clone(), queue), &self.runtime);
        tasks.spawn_on(repair::run(state.clone()), &self.runtime);
        tasks.spawn_on(warden::run(state.clone()), &self.runtime);
        tasks.spawn_on(sweeper::run(state.clone()), &self.runtime);
        self.service.partitions.lock().insert(number, state.clone());
        Owned { state, records, tasks, paused: false, is_placed: false, committed: -1 }
    }

    fn revoked(&mut self, partitions: &[i32], lost: bool) -> Result<(), KafkaError> {
        tracing::info!(?partitions, lost, "revoked");
        self.end_tasks(partitions);
        if !lost {
            // Another member may own a lost partition by now, and its progress is not ours to set back.
            self.note_progress();
            self.commit(true);
        }
        for partition in partitions {
            let Some(owned) = self.owned.remove(partition) else { continue };
            // A lost partition may be another member's of this process by now.
            let mut partitions = self.service.partitions.lock();
            if partitions.get(partition).is_some_and(|state| Arc::ptr_eq(state, &owned.state)) {
                partitions.remove(partition);
                self.service.metrics.forget(*partition);
            }
        }
        self.consumer.give_up(partitions)
    }

    /// Stops the partitions' tasks and waits, but not for ever, until the batches in flight are answered.
    fn end_tasks(&mut self, partitions: &[i32]) {
        for owned in partitions.iter().filter_map(|p| self.owned.get(p)) {
            owned.state.stop.cancel();
        }
        let deadline = self.service.config.drain_deadline;
        let ending = self.owned.iter_mut().filter(|(p, _)| partitions.contains(p)).map(|(_, owned)| &mut owned.tasks);
        let ended = self.runtime.block_on(async {
            tokio::time::timeout(deadline, async {
                for tasks in ending {
                    while tasks.join_next().await.is_some() {}
                }
            })
            .await
        });
        if ended.is_err() {
            tracing::warn!(?partitions, ?deadline, "batches in flight did not end in time; their events are settled again");
        }
    }

    /// Where everything handed over is settled, the partition is settled up to the position, which is past markers and aborted records too.
    fn note_progress(&self) {
        let Ok(positions) = self.consumer.position() else { return };
        for owned in self.owned.values() {
            let queued = owned.state.queued.load(Ordering::Acquire);
            self.service.metrics.queued(owned.state.number, queued);
            if queued > 0 {
                continue;
            }
            let position = positions.find_partition(&self.topic, owned.state.number).map(|e| e.offset());
            if let Some(Offset::Offset(position)) = position {
                owned.state.settled_to(position);
            }
        }
    }

    /// A task that panicked would leave its partition standing still: the process ends instead, and is started again.
    fn check_tasks(&mut self) -> anyhow::Result<()> {
        for (partition, owned) in &mut self.owned {
            while let Some(ended) = owned.tasks.try_join_next() {
                ended.with_context(|| format!("a task of partition {partition} panicked"))?;
            }
        }
        Ok(())
    }

    fn pause_and_resume(&mut self) {
        for (partition, owned) in &mut self.owned {
            let queued = owned.state.queued.load(Ordering::Acquire);
            if !owned.paused && owned.state.stopped().is_some() {
                owned.paused = self.consumer.pause(&[*partition], true).is_ok();
            } else if owned.paused && owned.state.stopped().is_none() && queued <= self.service.config.queue / 4 {
                owned.paused = self.consumer.pause(&[*partition], false).is_err();
            }
        }
    }

    /// Commits what was settled since the last time; `all`: also what was committed before. Never waits: the client library knows no limit for
    /// that, and whatever comes next of ours (a rebalance, the leave) goes the same way behind it. Nobody is told that a commit was refused, as
    /// those on their way during a rebalance are.
    fn commit(&mut self, all: bool) {
        let mut list = TopicPartitionList::new();
        for (partition, owned) in &mut self.owned {
            if all {
                owned.committed = -1;
            }
            let Some(settled) = owned.state.settled().filter(|s| *s > owned.committed) else { continue };
            if list.add_partition_offset(&self.topic, *partition, Offset::Offset(settled)).is_ok() {
                owned.committed = settled;
            }
        }
        if list.count() == 0 {
            return;
        }
        crash::point("compensation.commit");
        if let Err(problem) = self.consumer.commit(&list, CommitMode::Async) {
            tracing::warn!(%problem, "offsets of the group were not committed; their events are answered SKIP when they come again");
        }
    }

    /// Finishes what is in flight, commits, and leaves the group.
    fn leave(mut self) {
        let mine: Vec<i32> = self.owned.keys().copied().collect();
        self.end_tasks(&mine);
        self.note_progress();
        self.commit(true);
        self.consumer.leave();
        let deadline = Instant::now() + CLOSE_DEADLINE;
        while self.consumer.is_leaving(deadline) {
            let _ = self.consumer.poll(POLL);
            if let Err(problem) = self.follow_group() {
                tracing::warn!(%problem, "while leaving the group");
            }
        }
        self.consumer.end();
    }
}
