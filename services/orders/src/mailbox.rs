//! What the consumer and a lane say to each other. One mailbox an assignment of a partition: the consumer puts in batches, metadata and
//! whether to go on; the lane puts in questions, which the consumer answers only after a poll that began later.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use infra::kafka::Record;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rdkafka::consumer::ConsumerGroupMetadata;

/// The consumer's membership at one moment, with a generation that Kafka checks.
pub(crate) type Metadata = Arc<ConsumerGroupMetadata>;

/// Consecutive requests, as the consumer hands them over.
pub(crate) struct Batch {
    pub(crate) seek: u64,
    pub(crate) first: i64,
    pub(crate) records: Vec<Record>,
    /// Of all their payloads.
    pub(crate) bytes: usize,
}

/// What a batch may have at most.
#[derive(Clone, Copy)]
pub(crate) struct BatchLimit {
    pub(crate) records: usize,
    pub(crate) bytes: usize,
}

impl Batch {
    /// The offset after its last record.
    pub(crate) fn end(&self) -> i64 {
        self.records.last().map_or(self.first, |r| r.offset + 1)
    }

    /// When its first request was appended, in milliseconds; 0 without any.
    pub(crate) fn appended_at(&self) -> i64 {
        self.records.first().map_or(0, |r| r.timestamp.0)
    }

    fn fits(&self, room: BatchLimit) -> bool {
        self.records.len() <= room.records && self.bytes <= room.bytes
    }

    /// What it may still take.
    fn room(&self, limit: BatchLimit) -> BatchLimit {
        BatchLimit { records: limit.records.saturating_sub(self.records.len()), bytes: limit.bytes.saturating_sub(self.bytes) }
    }
}

/// What a lane is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Work,
    /// The partition is revoked: finish what is begun, then end.
    Finish,
    /// The partition is lost, or the deadline has passed: end at the next step, whatever is begun.
    Abandon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Is this assignment still mine?
    Stands,
    /// Continue the partition at this offset.
    Seek(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is, and the mailbox has the metadata to go on with.
    Mine,
    /// Batches with this seek number begin at the offset asked for.
    Sought(u64),
}

/// How a lane is, for readiness and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Taking the partition over, or recovering.
    Recovering,
    Working,
    /// Trying again and again, for this reason.
    Troubled(String),
    /// Stopped for good, for this reason; the partition is kept and not processed.
    Stopped(String),
}

struct Inbox {
    told: Told,
    metadata: Metadata,
    queue: VecDeque<Batch>,
    /// With whether the consumer has seen it before its last poll.
    question: Option<(Question, bool)>,
    answer: Option<Answer>,
    /// The log refused to be read where the consumer stood.
    must_recover: bool,
    ended: bool,
    health: Health,
    /// Next request to decide; -1 while that is not known.
    position: i64,
    /// Append time of the first request of the batch in work.
    working_on: Option<i64>,
}

pub(crate) struct Mailbox {
    pub(crate) partition: i32,
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

/// What a lane that waits is woken by.
pub(crate) enum Mail {
    /// One waits: [`Mailbox::take`] it.
    Batch,
    /// Recover: the consumer cannot read on from where it stood.
    Recover,
    /// [`Mailbox::told`] says more than `Work`.
    Told,
    /// Nothing came in time.
    Nothing,
}

impl Mailbox {
    pub(crate) fn new(partition: i32, metadata: Metadata) -> Self {
        let inbox = Inbox {
            told: Told::Work,
            metadata,
            queue: VecDeque::new(),
            question: None,
            answer: None,
            must_recover: false,
            ended: false,
            health: Health::Recovering,
            position: -1,
            working_on: None,
        };
        Self { partition, inbox: Mutex::new(inbox), changed: Condvar::new() }
    }

    // ---- the consumer's side

    fn change(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.inbox.lock());
        self.changed.notify_all();
    }

    /// Raises what the lane is told; it never goes back.
    pub(crate) fn tell(&self, told: Told) {
        self.change(|inbox| inbox.told = inbox.told.max(told));
    }

    pub(crate) fn set_metadata(&self, metadata: &Metadata) {
        self.change(|inbox| inbox.metadata = metadata.clone());
    }

    /// Hands a batch over with the metadata of that moment. Where it goes on from the last one that still waits, and fits, it becomes part of that.
    pub(crate) fn put(&self, mut batch: Batch, limit: BatchLimit, metadata: &Metadata) {
        self.change(|inbox| {
            inbox.metadata = metadata.clone();
            match inbox.queue.back_mut() {
                Some(last) if last.seek == batch.seek && last.end() == batch.first && batch.fits(last.room(limit)) => {
                    last.records.append(&mut batch.records);
                    last.bytes += batch.bytes;
                }
                _ => inbox.queue.push_back(batch),
            }
        });
    }

    /// What the last batch that waits may still take; `None`: nothing, or none waits.
    pub(crate) fn room(&self, limit: BatchLimit) -> Option<BatchLimit> {
        let room = self.inbox.lock().queue.back()?.room(limit);
        (room.records > 0 && room.bytes > 0).then_some(room)
    }

    pub(crate) fn must_recover(&self) {
        self.change(|inbox| inbox.must_recover = true);
    }

    pub(crate) fn queued(&self) -> usize {
        self.inbox.lock().queue.len()
    }

    /// Marks the lane's question as seen; only a poll after this makes an answer true.
    pub(crate) fn hear(&self) {
        if let Some((_, heard)) = &mut self.inbox.lock().question {
            *heard = true;
        }
    }

    /// The question that was heard before the last poll.
    pub(crate) fn question(&self) -> Option<Question> {
        self.inbox.lock().question.filter(|(_, heard)| *heard).map(|(question, _)| question)
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.change(|inbox| {
            inbox.question = None;
            inbox.answer = Some(answer);
        });
    }

    /// After a seek: what was queued belongs to another place in the log.
    pub(crate) fn forget_batches(&self) {
        self.inbox.lock().queue.clear();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.inbox.lock().ended
    }

    pub(crate) fn health(&self) -> Health {
        self.inbox.lock().health.clone()
    }

    /// Next request to decide, and the append time of the oldest one in work; `None` while the lane does not know its position.
    pub(crate) fn progress(&self) -> Option<(i64, Option<i64>)> {
        let inbox = self.inbox.lock();
        (inbox.position >= 0).then_some((inbox.position, inbox.working_on))
    }

    // ---- the lane's side

    pub(crate) fn told(&self) -> Told {
        self.inbox.lock().told
    }

    pub(crate) fn metadata(&self) -> Metadata {
        self.inbox.lock().metadata.clone()
    }

    /// Waits for a batch, or whatever else the lane must look at first.
    pub(crate) fn next(&self, longest: Duration) -> Mail {
        let until = Instant::now() + longest;
        let mut inbox = self.inbox.lock();
        loop {
            if inbox.told > Told::Work {
                return Mail::Told;
            }
            if std::mem::take(&mut inbox.must_recover) {
                return Mail::Recover;
            }
            if !inbox.queue.is_empty() {
                return Mail::Batch;
            }
            if self.changed.wait_until(&mut inbox, until).timed_out() {
                return Mail::Nothing;
            }
        }
    }

    /// The first batch that waits, with all that has come to it by now.
    pub(crate) fn take(&self) -> Option<Batch> {
        self.inbox.lock().queue.pop_front()
    }

    /// The batch with this seek number that begins at `offset`, if it waits already and there is nothing that the lane must look at first.
    pub(crate) fn next_at(&self, seek: u64, offset: i64) -> Option<Batch> {
        let mut inbox = self.inbox.lock();
        if inbox.told > Told::Work || inbox.must_recover {
            return None;
        }
        let is_next = inbox.queue.front().is_some_and(|batch| batch.seek == seek && batch.first == offset);
        if is_next { inbox.queue.pop_front() } else { None }
    }

    /// Asks and waits for the answer; `None`: told to end meanwhile.
    pub(crate) fn ask(&self, question: Question) -> Option<Answer> {
        let mut inbox = self.inbox.lock();
        inbox.answer = None;
        inbox.question = Some((question, false));
        let answer = self.wait_told(inbox, None, |inbox| inbox.answer.take());
        self.inbox.lock().question = None;
        answer
    }

    /// Waits for at most `longest` (`None`: without limit) until told to end.
    pub(crate) fn pause(&self, longest: Option<Duration>) {
        let until = longest.map(|longest| Instant::now() + longest);
        let _: Option<()> = self.wait_told(self.inbox.lock(), until, |_| None);
    }

    fn wait_told<T>(
        &self,
        mut inbox: MutexGuard<'_, Inbox>,
        until: Option<Instant>,
        mut found: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Option<T> {
        while inbox.told == Told::Work {
            if let Some(found) = found(&mut inbox) {
                return Some(found);
            }
            match until {
                None => self.changed.wait(&mut inbox),
                Some(until) => {
                    if self.changed.wait_until(&mut inbox, until).timed_out() {
                        return None;
                    }
                }
            }
        }
        None
    }

    pub(crate) fn set_health(&self, health: Health) {
        self.inbox.lock().health = health;
    }

    /// Where a lane keeps failing, its steps in between do not make it well.
    pub(crate) fn set_health_unless_troubled(&self, health: Health) {
        let mut inbox = self.inbox.lock();
        if !matches!(inbox.health, Health::Troubled(_)) {
            inbox.health = health;
        }
    }

    pub(crate) fn set_position(&self, position: i64) {
        let mut inbox = self.inbox.lock();
        inbox.position = position;
        inbox.working_on = None;
    }

    pub(crate) fn set_working_on(&self, appended_at: i64) {
        self.inbox.lock().working_on = Some(appended_at);
    }

    /// The lane's last word.
    pub(crate) fn end(&self) {
        self.change(|inbox| inbox.ended = true);
    }
}
