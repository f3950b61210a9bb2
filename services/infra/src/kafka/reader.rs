//! Reads one partition outside any group, committed records only.
//!
//! Offsets have gaps (transaction markers, aborted records), so counting records never finds the end. Reading ends by the consumer's
//! position, which passes the markers on a later poll. "The end" is the last stable offset: a `read_committed` client is told that one, a
//! `read_uncommitted` one the high watermark; hence two clients, the second made when it is first asked for.

use std::{
    ops::ControlFlow,
    sync::OnceLock,
    time::{Duration, Instant},
};

use domain::Timestamp;
use rdkafka::{
    Message, Offset, TopicPartitionList,
    config::FromClientConfigAndContext,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{CALL_TIMEOUT, ClientLog, Ends, LogError, Record, client_config, search::first_answer};
use crate::config::Connections;

/// A read that has got nowhere for this long fails. A change of leader takes about 10 s.
const STALL_LIMIT: Duration = Duration::from_secs(20);
/// Between two looks at the position while no record comes; also how late the end is noticed.
const POLL: Duration = Duration::from_millis(5);
/// How long a broker waits for new records before it answers: markers at the end arrive with such an answer.
const FETCH_WAIT_MS: &str = "10";
/// Bytes fetched ahead at most, in KiB: a process has a reader for each of its partitions.
const QUEUED_KIB: &str = "4096";
/// First step of looking backwards, in offsets; each further step is [`STEP_GROWTH`] times as long.
const FIRST_STEP: i64 = 64;
const STEP_GROWTH: i64 = 8;

/// Reads one partition of a topic outside any group, committed records only.
///
/// Cheap: a few threads and at most 4 MiB of records fetched ahead.
pub struct PartitionReader {
    topic: String,
    partition: i32,
    stall_limit: Duration,
    committed: BaseConsumer<ClientLog>,
    connections: Connections,
    uncommitted: OnceLock<BaseConsumer<ClientLog>>,
}

impl PartitionReader {
    /// Makes the clients; asks no broker yet.
    pub fn open(connections: &Connections, topic: &str, partition: i32) -> Result<Self, LogError> {
        Ok(Self {
            topic: topic.to_owned(),
            partition,
            stall_limit: STALL_LIMIT,
            committed: client(connections, "read_committed")?,
            connections: connections.clone(),
            uncommitted: OnceLock::new(),
        })
    }

    /// Gives up a read that has got nowhere for `limit` (20 s where nobody says otherwise).
    pub fn with_stall_limit(mut self, limit: Duration) -> Self {
        self.stall_limit = limit;
        self
    }

    /// Where the partition begins and ends now. `stable` is read first: where it equals `high`, no transaction was open at the moment of `high`.
    pub fn ends(&self) -> Result<Ends, LogError> {
        let (start, stable) = self.watermarks(&self.committed)?;
        let (_, high) = self.watermarks(self.uncommitted()?)?;
        Ok(Ends { start, stable, high })
    }

    /// Where the partition begins, and its last stable offset, now: half the questions of [`ends`](Self::ends).
    pub fn stable(&self) -> Result<(i64, i64), LogError> {
        self.watermarks(&self.committed)
    }

    /// The first offset whose record was appended at or after `at`; `None`: there is none yet.
    pub fn offset_at(&self, at: Timestamp) -> Result<Option<i64>, LogError> {
        offset_at(&self.committed, &self.topic, self.partition, at)
    }

    /// Reads from the next committed record at or after `from` up to (not including) offset `to`, calling `each` in order;
    /// ends by position, so markers and aborted records at the end do not confuse it. Fails with `Stalled` rather than hang.
    pub fn read(&mut self, from: i64, to: i64, each: &mut dyn FnMut(Record) -> ControlFlow<()>) -> Result<(), LogError> {
        if from >= to {
            return Ok(());
        }
        let (start, stable) = self.watermarks(&self.committed)?;
        if from < start {
            return Err(self.out_of_range(start, stable, from));
        }
        if from > stable && from > self.ends()?.high {
            return Err(self.out_of_range(start, stable, from));
        }
        self.committed.assign(&self.at(from)?)?;
        let read = self.read_assigned(from, to, each);
        // Else the client would go on fetching ahead.
        self.committed.unassign()?;
        read
    }

    fn read_assigned(&self, from: i64, to: i64, each: &mut dyn FnMut(Record) -> ControlFlow<()>) -> Result<(), LogError> {
        let mut position = from;
        let mut progress = Instant::now();
        loop {
            match self.committed.poll(POLL) {
                Some(Ok(message)) => {
                    let offset = message.offset();
                    if offset >= to || each(Record::of(&message)).is_break() {
                        return Ok(());
                    }
                    (position, progress) = (offset + 1, Instant::now());
                    continue;
                }
                Some(Err(error)) => self.judge(error, position)?,
                None => {}
            }
            if let Some(moved) = self.position()?.filter(|moved| *moved > position) {
                (position, progress) = (moved, Instant::now());
            }
            if position >= to {
                return Ok(());
            }
            if progress.elapsed() >= self.stall_limit {
                return Err(LogError::Stalled {
                    topic: self.topic.clone(),
                    partition: self.partition,
                    offset: position,
                    seconds: self.stall_limit.as_secs(),
                });
            }
        }
    }

    /// The last committed record below the stable end, looked for backwards in growing steps past markers and aborted records; `None`: there is none.
    pub fn last(&mut self) -> Result<Option<Record>, LogError> {
        let (start, stable) = self.watermarks(&self.committed)?;
        let (mut to, mut step) = (stable, FIRST_STEP);
        while to > start {
            let from = start.max(to.saturating_sub(step));
            let mut last = None;
            self.read(from, to, &mut |record| {
                last = Some(record);
                ControlFlow::Continue(())
            })?;
            if last.is_some() {
                return Ok(last);
            }
            (to, step) = (from, step.saturating_mul(STEP_GROWTH));
        }
        Ok(None)
    }

    /// An offset of `ends` from which on events answer requests at or beyond `request`, as `answers` says of a record: the first one, unless the
    /// log has an answer twice. Looks at `hint` first, and reads a few events on the way however long the log is; [`search`](super::search) says
    /// how, and of what the log must be made.
    pub fn first_answer<E: From<LogError>>(
        &mut self,
        ends: Ends,
        request: i64,
        hint: i64,
        mut answers: impl FnMut(&Record) -> Result<i64, E>,
    ) -> Result<i64, E> {
        first_answer(request, (ends.start, ends.stable), hint, |from, to| {
            let mut found = None;
            self.read(from, to, &mut |record| {
                found = Some(record);
                ControlFlow::Break(())
            })?;
            found.map(|record| Ok((record.offset, answers(&record)?))).transpose()
        })
    }

    fn uncommitted(&self) -> Result<&BaseConsumer<ClientLog>, LogError> {
        if let Some(client) = self.uncommitted.get() {
            return Ok(client);
        }
        let made = client(&self.connections, "read_uncommitted")?;
        Ok(self.uncommitted.get_or_init(|| made))
    }

    fn watermarks(&self, client: &BaseConsumer<ClientLog>) -> Result<(i64, i64), LogError> {
        watermarks(client, &self.topic, self.partition)
    }

    fn at(&self, offset: i64) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition_offset(&self.topic, self.partition, Offset::Offset(offset))?;
        Ok(list)
    }

    fn position(&self) -> Result<Option<i64>, LogError> {
        Ok(self.committed.position()?.elements().iter().find_map(|found| match found.offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        }))
    }

    /// Lost connections mend themselves (or end as a stall); what cannot get better ends the read.
    fn judge(&self, error: KafkaError, position: i64) -> Result<(), LogError> {
        use RDKafkaErrorCode as Code;
        match error.rdkafka_error_code() {
            Some(Code::AutoOffsetReset | Code::OffsetOutOfRange) => {
                let (start, end) = self.watermarks(&self.committed)?;
                Err(self.out_of_range(start, end, position))
            }
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => Err(error.into()),
            Some(Code::TopicAuthorizationFailed) => Err(error.into()),
            _ if matches!(error, KafkaError::MessageConsumptionFatal(_)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn out_of_range(&self, start: i64, end: i64, wanted: i64) -> LogError {
        LogError::OutOfRange { topic: self.topic.clone(), partition: self.partition, start, end, wanted }
    }
}

/// First offset still there, and the end as the client's isolation level sees it: the last stable offset, or the high watermark. Blocks.
pub(super) fn watermarks(client: &BaseConsumer<ClientLog>, topic: &str, partition: i32) -> Result<(i64, i64), LogError> {
    with_metadata(client, topic, || client.fetch_watermarks(topic, partition, CALL_TIMEOUT))
}

/// The first offset whose record was appended at or after `at`, decided or not; `None`: there is none yet. Blocks.
pub(super) fn offset_at(
    client: &BaseConsumer<ClientLog>,
    topic: &str,
    partition: i32,
    at: Timestamp,
) -> Result<Option<i64>, LogError> {
    let mut instants = TopicPartitionList::with_capacity(1);
    instants.add_partition_offset(topic, partition, Offset::Offset(at.0.max(0)))?;
    for found in with_metadata(client, topic, || client.offsets_for_times(instants.clone(), CALL_TIMEOUT))?.elements() {
        found.error()?;
        if let Offset::Offset(offset) = found.offset() {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}

/// A client whose first look fell into a moment in which the partition had no leader goes on saying "unknown partition" from its cache until
/// the next refresh, half a minute later; so it is made to look again.
fn with_metadata<T>(
    client: &BaseConsumer<ClientLog>,
    topic: &str,
    ask: impl Fn() -> Result<T, KafkaError>,
) -> Result<T, LogError> {
    use RDKafkaErrorCode as Code;
    let answer = ask();
    let code = answer.as_ref().err().and_then(KafkaError::rdkafka_error_code);
    if matches!(code, Some(Code::UnknownPartition | Code::UnknownTopic | Code::LeaderNotAvailable)) {
        client.fetch_metadata(Some(topic), CALL_TIMEOUT)?;
        return Ok(ask()?);
    }
    Ok(answer?)
}

fn client(connections: &Connections, isolation: &str) -> Result<BaseConsumer<ClientLog>, LogError> {
    let mut config = client_config(connections);
    config
        // `assign` needs a group's name; nobody joins it and nothing is ever committed to it.
        .set("group.id", connections.group("reader"))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // Deleted history is an error, never a silent jump to where the log begins today.
        .set("auto.offset.reset", "error")
        .set("isolation.level", isolation)
        .set("enable.partition.eof", "false")
        .set("fetch.wait.max.ms", FETCH_WAIT_MS)
        .set("fetch.queue.backoff.ms", "10")
        .set("queued.max.messages.kbytes", QUEUED_KIB);
    Ok(BaseConsumer::from_config_and_context(&config, ClientLog)?)
}
