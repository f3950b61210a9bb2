//! The one consumer of the process. It polls all the time, on a thread of its own, and is the only one who knows what is assigned.
//!
//! What the group decides is acted on after each poll, so that a revoke can wait for a lane without stopping the polling that the group needs.
//! Metadata is read when a rebalance is served, never when a lane wants it: read
//! afresh after this process was put out of the group and rejoined, it would let a lane commit offsets of a partition it lost.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use infra::{
    kafka::{GroupConsumer, Rebalance, Record},
    shutdown::CancellationToken,
    watchdog::Beat,
};
use rdkafka::{
    Message, Offset,
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode},
};

use crate::{
    Membership, Service,
    assignment::{Assignment, Bounds},
    lane,
    mailbox::{Answer, Mailbox, Metadata, Question, Told},
};

/// Longest wait of a poll while nothing is due: how late a lane's question or the end of the process is noticed.
const POLL: Duration = Duration::from_millis(20);
/// The same while a batch waits to be handed over or a partition is being given up.
const SHORT_POLL: Duration = Duration::from_millis(1);
/// Records taken in one turn before batches are handed over.
const RECORDS_PER_TURN: usize = 2_000;
/// Longest wait for the client library's own thread to take a seek.
const SEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the consumer and its lanes until `stop`, then lets the lanes finish, leaves the group and returns. Blocks.
pub(crate) fn run(service: Arc<Service>, stop: &CancellationToken) -> anyhow::Result<()> {
    let connections = &service.config.connections;
    let topic = connections.topics.requests.clone();
    // Positions come from Postgres; the group's offsets are written by the lanes' transactions and never read.
    let consumer = GroupConsumer::join(connections, "orders", &topic, "error").context("the consumer cannot be made")?;
    let mut consumer = Consumer {
        beat: service.beats.add("consumer".to_owned()),
        bounds: Bounds::of(&service.config),
        service,
        consumer,
        topic,
        assigned: BTreeMap::new(),
        threads: Vec::new(),
        metadata: None,
        assignments: 0,
        leaving: None,
        is_closing: false,
        failed: None,
    };
    let outcome = consumer.work(stop);
    consumer.close();
    outcome
}

struct Consumer {
    service: Arc<Service>,
    consumer: GroupConsumer,
    topic: String,
    bounds: Bounds,
    beat: Arc<Beat>,
    assigned: BTreeMap<i32, Assignment>,
    /// Threads of lanes, ended ones included until the next look.
    threads: Vec<JoinHandle<()>>,
    /// As of the last rebalance that was served; never with a generation that Kafka does not check.
    metadata: Option<Metadata>,
    assignments: u64,
    leaving: Option<Leaving>,
    /// Records that still come are nobody's.
    is_closing: bool,
    failed: Option<String>,
}

/// Partitions whose lanes are finishing.
struct Leaving {
    partitions: Vec<i32>,
    deadline: Instant,
}

impl Consumer {
    fn work(&mut self, stop: &CancellationToken) -> anyhow::Result<()> {
        while !stop.is_cancelled() {
            self.turn()?;
        }
        Ok(())
    }

    /// One turn: a poll, the rebalances it brought, batches, answers. In this order: an answer is true only after a poll that began after
    /// the question.
    fn turn(&mut self) -> anyhow::Result<()> {
        self.beat.begin("turn");
        for assignment in self.assigned.values() {
            assignment.mailbox.hear();
        }
        let is_busy = self.leaving.is_some() || self.assigned.values().any(Assignment::is_filling);
        let mut wait = if is_busy { SHORT_POLL } else { POLL };
        let mut is_drained = false;
        for _ in 0..RECORDS_PER_TURN {
            is_drained = !self.poll(wait)?;
            self.serve_rebalances();
            if is_drained {
                break;
            }
            wait = Duration::ZERO;
        }
        self.finish_leaving();
        if let Some(problem) = self.failed.take() {
            bail!(problem);
        }
        let is_member = publish::group_generation(&self.consumer) != -1;
        if is_member {
            self.hand_over();
        } else {
            self.is_outside();
        }
        if is_member {
            self.answer(is_drained);
        }
        Ok(())
    }

    /// Until the next assignment, be it an empty one.
    fn is_outside(&self) {
        let mut membership = self.service.membership.lock();
        if *membership == Membership::Member {
            *membership = Membership::Outside;
        }
    }

    /// Takes one record; `false`: there was none.
    fn poll(&mut self, wait: Duration) -> anyhow::Result<bool> {
        let error = match self.consumer.poll(wait) {
            None => return Ok(false),
            Some(Ok(message)) => {
                let partition = message.partition();
                // Records of a partition that is being given up, or was, can still come out of the local queue.
                let is_leaving = self.is_closing || self.leaving.as_ref().is_some_and(|l| l.partitions.contains(&partition));
                if let Some(assignment) = self.assigned.get_mut(&partition).filter(|_| !is_leaving) {
                    assignment.take(Record::of(&message));
                }
                return Ok(true);
            }
            Some(Err(error)) => error,
        };
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange | RDKafkaErrorCode::NoOffset) => {
                // The error does not say which partition: each lane looks for itself.
                tracing::warn!(%error, "a partition cannot be read where the consumer stands: its lanes recover");
                for assignment in self.assigned.values() {
                    assignment.mailbox.must_recover();
                }
            }
            _ if matches!(error, KafkaError::MessageConsumptionFatal(_)) => bail!("the consumer is beyond repair: {error}"),
            // Told to the hook's context as well, which says what is worth saying.
            _ => tracing::debug!(%error, "poll"),
        }
        Ok(true)
    }

    fn serve_rebalances(&mut self) {
        // While lanes are finishing, what comes after waits; only a loss ends the waiting (see `finish_leaving`).
        while self.leaving.is_none() {
            let Some(rebalance) = self.consumer.context().next() else { return };
            self.read_metadata();
            match rebalance {
                Rebalance::Assign(partitions) => self.assign(&partitions),
                Rebalance::Revoke { partitions, is_lost: true } => self.lose(partitions),
                Rebalance::Revoke { partitions, is_lost: false } => {
                    tracing::info!(?partitions, "revoked: the lanes finish");
                    self.leave(partitions, self.service.config.revoke_deadline);
                }
            }
        }
    }

    /// Keeps the metadata of this moment, unless the group would not check it. The generation is read before and after: were it left or
    /// entered in between, the metadata could be of outside.
    fn read_metadata(&mut self) {
        let mut before = publish::group_generation(&self.consumer);
        while before != -1 {
            let metadata = self.consumer.group_metadata();
            let after = publish::group_generation(&self.consumer);
            if before == after {
                self.metadata = metadata.map(Arc::new).or_else(|| self.metadata.take());
                return;
            }
            before = after;
        }
    }

    fn share_metadata(&self) {
        let Some(metadata) = &self.metadata else { return };
        for assignment in self.assigned.values() {
            assignment.mailbox.set_metadata(metadata);
        }
    }

    fn assign(&mut self, partitions: &[i32]) {
        if let Err(error) = self.consumer.take(partitions, Offset::End) {
            self.fail(format!("the assignment of {partitions:?} cannot be taken: {error}"));
            return;
        }
        // Nothing may be read before the lane knows from where.
        self.pause(partitions, true);
        if let Some(metadata) = self.metadata.clone() {
            for partition in partitions {
                self.start_lane(*partition, &metadata);
            }
            // The assignment of the others stands: they go on in this generation.
            self.share_metadata();
        } else if !partitions.is_empty() {
            // Put out of the group before this was served: the loss of these partitions comes next.
            tracing::warn!(?partitions, "assigned outside of any generation");
        }
        if !partitions.is_empty() {
            tracing::info!(?partitions, "assigned");
        }
        *self.service.membership.lock() = Membership::Member;
    }

    fn start_lane(&mut self, partition: i32, metadata: &Metadata) {
        self.forget(partition, Told::Abandon);
        self.assignments += 1;
        let mailbox = Arc::new(Mailbox::new(partition, metadata.clone()));
        self.service.lanes.lock().insert(partition, mailbox.clone());
        match lane::start(self.service.clone(), mailbox.clone(), self.assignments) {
            Ok(thread) => {
                self.threads.retain(|t| !t.is_finished());
                self.threads.push(thread);
                self.assigned.insert(partition, Assignment::new(self.assignments, mailbox));
            }
            Err(error) => self.fail(format!("the thread of lane {partition} cannot be started: {error}")),
        }
    }

    /// Everything begun on these partitions may be somebody else's by now.
    fn lose(&mut self, partitions: Vec<i32>) {
        tracing::warn!(?partitions, "lost: the lanes throw everything away");
        self.is_outside();
        for partition in &partitions {
            self.forget(*partition, Told::Abandon);
        }
        self.unassign(&partitions);
    }

    fn leave(&mut self, partitions: Vec<i32>, within: Duration) {
        // All of them: whose partition stays goes on in this generation, too.
        self.share_metadata();
        for partition in &partitions {
            if let Some(assignment) = self.assigned.get(partition) {
                assignment.mailbox.tell(Told::Finish);
            }
        }
        self.leaving = Some(Leaving { partitions, deadline: Instant::now() + within });
        self.finish_leaving();
    }

    /// Gives the partitions up once their lanes have ended, the deadline has passed, or the group has put us out meanwhile.
    fn finish_leaving(&mut self) {
        let Some(leaving) = &self.leaving else { return };
        let working = leaving.partitions.iter().filter(|p| self.assigned.get(p).is_some_and(|a| !a.mailbox.has_ended()));
        let working: Vec<i32> = working.copied().collect();
        let is_over = Instant::now() >= leaving.deadline || self.consumer.assignment_lost();
        if !working.is_empty() && !is_over {
            return;
        }
        if !working.is_empty() {
            tracing::warn!(partitions = ?working, "lanes did not finish in time; the next owner publishes what they committed");
        }
        let Some(leaving) = self.leaving.take() else { return };
        for partition in &leaving.partitions {
            self.forget(*partition, Told::Abandon);
        }
        self.unassign(&leaving.partitions);
        self.serve_rebalances();
    }

    fn forget(&mut self, partition: i32, told: Told) {
        let Some(assignment) = self.assigned.remove(&partition) else { return };
        tracing::debug!(partition, assignment = assignment.number, "given up");
        assignment.mailbox.tell(told);
        let mut lanes = self.service.lanes.lock();
        if lanes.get(&partition).is_some_and(|m| Arc::ptr_eq(m, &assignment.mailbox)) {
            lanes.remove(&partition);
            self.service.metrics.forget(partition);
        }
    }

    fn unassign(&mut self, partitions: &[i32]) {
        if let Err(error) = self.consumer.give_up(partitions) {
            self.fail(format!("{partitions:?} cannot be given up: {error}"));
        }
    }

    /// From now on the group believes something else than this process does, and nothing would mend that: only a new start helps.
    fn fail(&mut self, problem: String) {
        self.failed.get_or_insert(problem);
    }

    fn hand_over(&mut self) {
        let Some(metadata) = &self.metadata else { return };
        let leaving = self.leaving.as_ref().map(|l| l.partitions.as_slice()).unwrap_or_default();
        let mut changes = Vec::new();
        for (partition, assignment) in &mut self.assigned {
            if leaving.contains(partition) {
                continue;
            }
            while assignment.is_due(self.bounds) {
                assignment.hand_over(self.bounds, metadata);
            }
            changes.extend(assignment.pause_change(self.bounds).map(|pause| (*partition, pause)));
        }
        for (partition, pause) in changes {
            self.pause(&[partition], pause);
        }
    }

    fn pause(&self, partitions: &[i32], pause: bool) {
        if partitions.is_empty() {
            return;
        }
        if let Err(error) = self.consumer.pause(partitions, pause) {
            tracing::error!(%error, ?partitions, pause, "pausing or resuming failed");
        }
    }

    /// Answers what was asked before the last poll. "Yours" only where no rebalance waits to be served, be it behind records (`is_drained`).
    fn answer(&mut self, is_drained: bool) {
        if self.leaving.is_some() || !self.consumer.context().is_empty() {
            return;
        }
        let asked: Vec<_> = self.assigned.iter().filter_map(|(p, a)| Some((*p, a.mailbox.question()?))).collect();
        for (partition, question) in asked {
            let answer = match question {
                Question::Stands => is_drained.then_some(Answer::Mine),
                Question::Seek(offset) => self.seek(partition, offset),
            };
            let Some(assignment) = self.assigned.get(&partition) else { continue };
            if let (Some(answer), Some(metadata)) = (answer, &self.metadata) {
                assignment.mailbox.set_metadata(metadata);
                assignment.mailbox.answer(answer);
            }
        }
    }

    /// `None`: not possible yet, the next turn tries again.
    fn seek(&mut self, partition: i32, offset: i64) -> Option<Answer> {
        if let Err(error) = self.consumer.seek(&self.topic, partition, Offset::Offset(offset), SEEK_TIMEOUT) {
            tracing::debug!(%error, partition, offset, "cannot seek yet");
            return None;
        }
        let number = self.assigned.get_mut(&partition)?.sought();
        self.pause(&[partition], false);
        Some(Answer::Sought(number))
    }

    /// Lets the lanes finish and leaves the group.
    fn close(mut self) {
        let deadline = Instant::now() + self.service.config.shutdown_deadline;
        self.is_closing = true;
        self.read_metadata();
        let leaving = self.leaving.take();
        let partitions: Vec<i32> = self.assigned.keys().copied().collect();
        self.share_metadata();
        for assignment in self.assigned.values() {
            assignment.mailbox.tell(Told::Finish);
        }
        while self.assigned.values().any(|a| !a.mailbox.has_ended()) && Instant::now() < deadline {
            self.beat.begin("waiting for lanes");
            let _ = self.poll(SHORT_POLL);
        }
        for partition in partitions {
            self.forget(partition, Told::Abandon);
        }
        if let Some(leaving) = leaving {
            self.unassign(&leaving.partitions);
        }
        self.consumer.leave();
        while self.consumer.is_leaving(deadline + self.service.config.revoke_deadline) {
            self.beat.begin("closing");
            let _ = self.poll(SHORT_POLL);
            self.serve_rebalances();
            self.finish_leaving();
        }
        self.beat.end();
        self.consumer.end();
        for thread in self.threads {
            if thread.is_finished() && thread.join().is_err() {
                tracing::error!("a lane's thread panicked");
            }
        }
    }
}
