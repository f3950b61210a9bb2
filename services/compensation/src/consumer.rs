//! A member of the consumer group on `order-events`, polling on an OS thread of its own.
//!
//! The rebalance hook only records what happened; the loop acts on it after each poll. What is polled goes to the partition's settle
//! task, whose progress this loop commits. A partition with a full queue is paused, and polling goes on, so that a Redis that is away
//! never costs the membership.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::Context;
use infra::{
    kafka::{client_config, log_error, log_line},
    shutdown::CancellationToken,
};
use parking_lot::Mutex;
use rdkafka::{
    ClientContext, Message, Offset, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext},
    error::KafkaError,
    types::RDKafkaRespErr,
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

/// What the group decided, as the hook recorded it.
enum Change {
    Assigned(Vec<i32>),
    Revoked { partitions: Vec<i32>, lost: bool },
}

/// Records what the client library tells while it is polled.
#[derive(Default)]
struct Recorder {
    changes: Mutex<VecDeque<Change>>,
}

impl ClientContext for Recorder {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for Recorder {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let partitions = list.elements().iter().map(|e| e.partition()).collect();
        self.changes.lock().push_back(match err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Change::Assigned(partitions),
            _ => Change::Revoked { partitions, lost: consumer.assignment_lost() },
        });
    }
}

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
    consumer: BaseConsumer<Recorder>,
    topic: String,
    owned: HashMap<i32, Owned>,
    joined: bool,
    /// When to ask for the group's offsets of partitions that are not placed.
    place_at: Instant,
}

/// Runs one member on a thread of its own until `stop`; an error means that its consumer is beyond repair.
pub(crate) async fn run_on_thread(service: Arc<Service>, number: usize, stop: CancellationToken) -> anyhow::Result<()> {
    let runtime = Handle::current();
    let (done, ended) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name(format!("member-{number}"))
        .spawn(move || {
            let outcome = Member::join(service, runtime).and_then(|member| member.run(number, &stop));
            let _ = done.send(outcome);
        })
        .context("a thread for a member of the group cannot be started")?;
    ended.await.context("the thread of a member of the group ended by a panic")?
}

impl Member {
    fn join(service: Arc<Service>, runtime: Handle) -> anyhow::Result<Self> {
        let connections = &service.config.connections;
        let heartbeat = connections.session_timeout / 10;
        let mut config = client_config(connections);
        config
            .set("group.id", connections.group("compensation"))
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // A fresh group settles the whole log again: that costs SKIPs, while to begin at the end would pass events by.
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", connections.session_timeout.as_millis().to_string())
            .set("heartbeat.interval.ms", heartbeat.as_millis().to_string())
            .set("fetch.wait.max.ms", "50")
            .set("fetch.queue.backoff.ms", "20")
            .set("queued.min.messages", "10000")
            .set("queued.max.messages.kbytes", "16384");
        let consumer: BaseConsumer<Recorder> =
            config.create_with_context(Recorder::default()).context("a consumer of order-events cannot be made")?;
        let topic = connections.topics.events.clone();
        consumer.subscribe(&[&topic]).with_context(|| format!("cannot subscribe to {topic}"))?;
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
                self.commit(CommitMode::Async, commits % COMMITS_A_ROUND == 0);
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
                        owned.paused = pause(&self.consumer, &self.topic, message.partition());
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
            let Some(change) = self.consumer.context().changes.lock().pop_front() else { return Ok(()) };
            match change {
                Change::Assigned(partitions) => self.assigned(&partitions),
                Change::Revoked { partitions, lost } => self.revoked(&partitions, lost),
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
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition(&self.topic, *partition);
        }
        self.consumer.incremental_assign(&list)?;
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
        let mut list = TopicPartitionList::new();
        for (partition, _) in self.owned.iter().filter(|(_, owned)| !owned.is_placed) {
            list.add_partition(&self.topic, *partition);
        }
        if list.count() == 0 || Instant::now() < self.place_at {
            return;
        }
        match self.consumer.committed_offsets(list, COMMITTED_TIMEOUT) {
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
            self.commit(CommitMode::Sync, true);
        }
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition(&self.topic, *partition);
            let Some(owned) = self.owned.remove(partition) else { continue };
            // A lost partition may be another member's of this process by now.
            let mut partitions = self.service.partitions.lock();
            if partitions.get(partition).is_some_and(|state| Arc::ptr_eq(state, &owned.state)) {
                partitions.remove(partition);
                self.service.metrics.forget(*partition);
            }
        }
        self.consumer.incremental_unassign(&list)
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
                owned.paused = pause(&self.consumer, &self.topic, *partition);
            } else if owned.paused && owned.state.stopped().is_none() && queued <= self.service.config.queue / 4 {
                let mut list = TopicPartitionList::new();
                list.add_partition(&self.topic, *partition);
                owned.paused = self.consumer.resume(&list).is_err();
            }
        }
    }

    /// Commits what was settled since the last time; `all`: also what was committed before. The client library tells nobody that a commit
    /// made without waiting was refused, as those on their way during a rebalance are.
    fn commit(&mut self, mode: CommitMode, all: bool) {
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
        if let Err(problem) = self.consumer.commit(&list, mode) {
            tracing::warn!(%problem, "offsets of the group were not committed; their events are answered SKIP when they come again");
        }
    }

    /// Finishes what is in flight, commits, and leaves the group. Past the deadline the client is leaked: with a hook that only records,
    /// dropping it would poll for ever.
    fn leave(mut self) {
        let mine: Vec<i32> = self.owned.keys().copied().collect();
        self.end_tasks(&mine);
        self.note_progress();
        self.commit(CommitMode::Sync, true);
        if let Err(problem) = self.consumer.close_queue() {
            tracing::warn!(%problem, "the consumer cannot be closed in order");
        }
        let started = Instant::now();
        while !self.consumer.closed() && started.elapsed() < CLOSE_DEADLINE {
            let _ = self.consumer.poll(POLL);
            if let Err(problem) = self.follow_group() {
                tracing::warn!(%problem, "while leaving the group");
            }
        }
        if !self.consumer.closed() {
            tracing::warn!("the group was not left in time; the partitions move after the session time-out");
            std::mem::forget(self.consumer);
        }
    }
}

fn pause(consumer: &BaseConsumer<Recorder>, topic: &str, partition: i32) -> bool {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, partition);
    consumer.pause(&list).is_ok()
}
