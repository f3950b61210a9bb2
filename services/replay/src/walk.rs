//! Walks one partition of the log in order, looking unknown schemas up on the way, and waits for what is on its way.

use std::{
    ops::{ControlFlow, Range},
    thread,
    time::{Duration, Instant},
};

use domain::{Event, LoggedRequest, Timestamp, VoucherId};
use events::{Codec, DecodeError};
use futures::{StreamExt, TryStreamExt, stream};
use infra::{
    config::Connections,
    kafka::{Ends, LogError, PartitionReader, Record, partition_count},
    postgres,
};
use serde::Serialize;
use tokio::runtime::Handle;

use crate::ReplayError;

/// Times the registry is asked for an unknown schema while it is away.
const LEARN_TRIES: u32 = 20;

/// Pause between two such tries.
const LEARN_PAUSE: Duration = Duration::from_millis(500);

/// Pause between two looks for events that are on their way. Short: the lanes may be standing still meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Threads that read side by side. Most of their time they wait for answers of a broker.
const THREADS: usize = 8;

/// A point of a partition of `order-events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    Offset(i64),
    /// By the broker's clock, as the event was appended.
    Time(Timestamp),
}

/// How the events of a partition were read: from offset `begin` (0, or where a snapshot ends) to `end`, where they ended at the start, by
/// position, and then on to the cut.
#[derive(Clone, Debug, Serialize)]
pub struct PartitionRead {
    pub partition: i32,
    pub begin: i64,
    pub end: i64,
    pub events: u64,
    /// The request that its next event answers.
    pub next_request: i64,
}

/// The log, and what it takes to read it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) connections: Connections,
    pub(crate) codec: Codec,
    /// Needed only to ask the registry.
    pub(crate) runtime: Handle,
}

impl Log {
    /// Of the present runtime.
    pub(crate) fn of(connections: &Connections, codec: &Codec) -> Self {
        Self { connections: connections.clone(), codec: codec.clone(), runtime: Handle::current() }
    }

    /// One partition of `order-events`.
    pub(crate) fn events(&self, partition: i32) -> Result<Walk, ReplayError> {
        Walk::open(self, &self.connections.topics.events, partition)
    }

    /// One partition of `order-requests`.
    pub(crate) fn requests(&self, partition: i32) -> Result<Walk, ReplayError> {
        Walk::open(self, &self.connections.topics.requests, partition)
    }
}

/// What a reader of records says of each: to go on, that it has enough, or why it fails.
pub(crate) type Next = Result<ControlFlow<()>, ReplayError>;

/// Reads one partition of a topic in order. Blocks.
pub(crate) struct Walk {
    pub(crate) partition: i32,
    pub(crate) topic: String,
    pub(crate) log: Log,
    reader: PartitionReader,
    /// Events and requests that were read so far.
    pub(crate) records_read: u64,
}

impl Walk {
    pub(crate) fn open(log: &Log, topic: &str, partition: i32) -> Result<Self, ReplayError> {
        let reader = PartitionReader::open(&log.connections, topic, partition)?;
        Ok(Self { partition, topic: topic.to_owned(), log: log.clone(), reader, records_read: 0 })
    }

    /// The partition's ends now.
    pub(crate) fn ends(&self) -> Result<Ends, ReplayError> {
        Ok(self.reader.ends()?)
    }

    /// What to say of records that were deleted before offset `start`.
    pub(crate) fn deleted(&self, start: i64) -> String {
        let (topic, partition) = (&self.topic, self.partition);
        format!("partition {partition} of {topic} begins at offset {start}: the records of offsets 0..{start} were deleted")
    }

    /// The partition's ends now. Fails where the beginning of the history is gone.
    pub(crate) fn whole(&self) -> Result<Ends, ReplayError> {
        self.whole_from(0)
    }

    /// The partition's ends now. Fails where something from offset `from` on is gone.
    pub(crate) fn whole_from(&self, from: i64) -> Result<Ends, ReplayError> {
        whole_from(&self.reader, &self.topic, self.partition, from)
    }

    /// Waits, but not beyond `until`, for the answers to all requests below `request`; gives where the events end then. Fails where something
    /// from offset `from` on is gone; without, whatever is gone is of no matter.
    pub(crate) fn wait_answered(&mut self, request: i64, from: Option<i64>, until: Instant) -> Result<Ends, ReplayError> {
        loop {
            let answered = self.last()?.map_or(0, |(event, _)| event.request_offset + 1);
            // Asked for afterwards: all that is answered lies below.
            let ends = from.map_or_else(|| self.ends(), |from| self.whole_from(from))?;
            if answered >= request {
                return Ok(ends);
            }
            if Instant::now() >= until {
                let what = "is decided in Postgres, but its event is not in the log: is the orders service running?";
                return Err(ReplayError::NotNow(format!("partition {}: request {answered} {what}", self.partition)));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// An offset of `ends` from which on no event answers a request below `request`, the first one where each is answered once; looked for at
    /// `hint` first.
    pub(crate) fn first_answer(&mut self, ends: Ends, request: i64, hint: i64) -> Result<i64, ReplayError> {
        let Self { log, topic, reader, records_read, .. } = self;
        reader.first_answer(ends, request, hint, |record| {
            *records_read += 1;
            Ok(event_of(log, topic, record)?.request_offset)
        })
    }

    /// Calls `each` for the committed records in `from..to`, until it has had enough.
    pub(crate) fn records(
        &mut self,
        from: i64,
        to: i64,
        mut each: impl FnMut(&Log, &str, Record) -> Next,
    ) -> Result<(), ReplayError> {
        let Self { log, topic, reader, records_read, .. } = self;
        let mut failed = None;
        reader.read(from, to, &mut |record| {
            *records_read += 1;
            each(log, topic, record).unwrap_or_else(|error| {
                failed = Some(error);
                ControlFlow::Break(())
            })
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Calls `each` for the committed events in `from..to`, with their offsets.
    pub(crate) fn events(&mut self, from: i64, to: i64, mut each: impl FnMut(Event, i64) -> Next) -> Result<(), ReplayError> {
        self.timed_events(from, to, |event, offset, _| each(event, offset))
    }

    /// The same, with the instants at which they were appended.
    pub(crate) fn timed_events(
        &mut self,
        from: i64,
        to: i64,
        mut each: impl FnMut(Event, i64, Timestamp) -> Next,
    ) -> Result<(), ReplayError> {
        self.records(from, to, |log, topic, record| each(event_of(log, topic, &record)?, record.offset, record.timestamp))
    }

    /// Calls `each` for the requests at these offsets.
    pub(crate) fn each_request(
        &mut self,
        offsets: Range<i64>,
        mut each: impl FnMut(LoggedRequest) -> Next,
    ) -> Result<(), ReplayError> {
        self.records(offsets.start, offsets.end, |log, topic, record| {
            let request = understand(&log.codec, &log.runtime, || log.codec.decode_request(&record.payload));
            let request = request.map_err(|problem| unusable(topic, &record, problem))?.ok();
            let (partition, offset, appended_at) = (record.partition, record.offset, record.timestamp);
            each(LoggedRequest { partition, offset, appended_at, request })
        })
    }

    /// The first offset that was appended at or after `at`, by the broker's clock; `None`: there is none yet.
    pub(crate) fn offset_at(&self, at: Timestamp) -> Result<Option<i64>, ReplayError> {
        Ok(self.reader.offset_at(at)?)
    }

    /// The offset behind the last event of this point: the one at the offset, or those appended by then. An offset must be there already; an
    /// instant may lie ahead.
    pub(crate) fn behind(&self, point: Point, ends: &Ends) -> Result<i64, ReplayError> {
        match point {
            Point::Offset(wanted) if !(ends.start..ends.stable).contains(&wanted) => {
                let (topic, partition) = (self.topic.clone(), self.partition);
                Err(LogError::OutOfRange { topic, partition, start: ends.start, end: ends.stable, wanted }.into())
            }
            Point::Offset(offset) => Ok(offset + 1),
            Point::Time(at) => Ok(self.offset_at(at.plus(1))?.map_or(ends.stable, |offset| offset.min(ends.stable))),
        }
    }

    /// The last event below the stable end, with its offset; `None`: there is none.
    pub(crate) fn last(&mut self) -> Result<Option<(Event, i64)>, ReplayError> {
        let Some(record) = self.reader.last()? else { return Ok(None) };
        Ok(Some((event_of(&self.log, &self.topic, &record)?, record.offset)))
    }
}

/// The ends of a partition in which everything from offset `from` on must still be there.
fn whole_from(reader: &PartitionReader, topic: &str, partition: i32, from: i64) -> Result<Ends, ReplayError> {
    let ends = reader.ends()?;
    let (start, high) = (ends.start, ends.high);
    let what = if start > from {
        format!("begins at offset {start}: the records of offsets {from}..{start} were deleted")
    } else if high < from {
        format!("ends at offset {high}, but was read up to {from} before: it was made anew, or lost its end")
    } else {
        return Ok(ends);
    };
    Err(ReplayError::Deleted(format!("partition {partition} of {topic} {what}")))
}

/// Fails where one of these partitions of `order-events` no longer begins at offset 0, and says which records are gone.
pub async fn check_history(connections: &Connections, partitions: Vec<i32>) -> Result<(), ReplayError> {
    let connections = connections.clone();
    let topic = connections.topics.events.clone();
    let check = move |p| whole_from(&PartitionReader::open(&connections, &topic, p)?, &topic, p, 0).map(drop);
    blocking(move || partitions.into_iter().try_for_each(check)).await
}

fn event_of(log: &Log, topic: &str, record: &Record) -> Result<Event, ReplayError> {
    let event = understand(&log.codec, &log.runtime, || log.codec.decode_event(&record.payload, record.partition));
    event.and_then(|event| event).map_err(|problem| unusable(topic, record, problem))
}

fn unusable(topic: &str, record: &Record, problem: String) -> ReplayError {
    ReplayError::Record { topic: topic.to_owned(), partition: record.partition, offset: record.offset, problem }
}

/// Decodes, looking unknown schemas up on the way. `Ok(Err(_))`: nobody can read this record, as a lane would find, too.
pub(crate) fn understand<T>(
    codec: &Codec,
    runtime: &Handle,
    decode: impl Fn() -> Result<T, DecodeError>,
) -> Result<Result<T, String>, String> {
    let mut tries = LEARN_TRIES;
    loop {
        let id = match decode() {
            Ok(read) => return Ok(Ok(read)),
            Err(DecodeError::UnknownSchema(id)) => id,
            Err(error @ DecodeError::Unreadable(_)) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error.to_string()),
        };
        match runtime.block_on(codec.learn(id)) {
            Ok(()) => {}
            Err(error) if tries == 0 => return Err(error.to_string()),
            Err(error) => {
                tracing::warn!(%error, "the schema registry is needed to go on");
                tries -= 1;
                thread::sleep(LEARN_PAUSE);
            }
        }
    }
}

/// Runs `work`, which blocks, on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReplayError> + Send + 'static,
) -> Result<T, ReplayError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ReplayError::Thread)?
}

/// Runs `work`, which blocks, for each item, a few side by side, and gives the results in the order of the items.
pub(crate) async fn side_by_side<I: Send + 'static, T: Send + 'static>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> Result<T, ReplayError> + Clone + Send + 'static,
) -> Result<Vec<T>, ReplayError> {
    let start = |item| {
        let work = work.clone();
        blocking(move || work(item))
    };
    stream::iter(items).map(start).buffered(THREADS).try_collect().await
}

/// Opens every partition; where history is gone, says so of all partitions that lack some.
pub(crate) async fn open_all<T: Send + 'static>(
    partitions: i32,
    open: impl Fn(i32) -> Result<T, ReplayError> + Clone + Send + 'static,
) -> Result<Vec<T>, ReplayError> {
    let open = move |partition| match open(partition) {
        Err(ReplayError::Deleted(what)) => Ok(Err(what)),
        opened => opened.map(Ok),
    };
    let (mut whole, mut gone) = (Vec::new(), Vec::new());
    for opened in side_by_side(0..partitions, open).await? {
        match opened {
            Ok(opened) => whole.push(opened),
            Err(what) => gone.push(what),
        }
    }
    if gone.is_empty() { Ok(whole) } else { Err(ReplayError::Deleted(gone.join("; "))) }
}

/// The partition in which a voucher lives: the one `given`, else the one that its row names.
pub(crate) async fn home(connections: &Connections, voucher: &VoucherId, given: Option<i32>) -> Result<i32, ReplayError> {
    let partition = match given {
        Some(partition) => partition,
        None => {
            let row = postgres::voucher(&postgres::pool(connections, 1)?, voucher).await?;
            row.ok_or_else(|| ReplayError::UnknownVoucher(voucher.clone()))?.terms.partition
        }
    };
    known(connections, &connections.topics.events, partition).await
}

/// The partition, if the topic has one of this number.
pub(crate) async fn known(connections: &Connections, topic: &str, partition: i32) -> Result<i32, ReplayError> {
    let (asked, topic) = (connections.clone(), topic.to_owned());
    blocking(move || {
        let count = partition_count(&asked, &topic)?;
        if (0..count).contains(&partition) {
            return Ok(partition);
        }
        let problem = format!("has {count} partitions, and none of number {partition}");
        Err(LogError::Topic { topic, problem, remedy: format!("the first is 0, the last {}", count - 1) }.into())
    })
    .await
}

/// How many partitions the log has.
pub(crate) async fn partitions(connections: &Connections) -> Result<i32, ReplayError> {
    let connections = connections.clone();
    blocking(move || Ok(partition_count(&connections, &connections.topics.requests)?)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_come_in_order_and_the_first_failure_is_told() {
        let doubled = side_by_side(0..100, |n| Ok(n * 2)).await.unwrap();
        assert_eq!(doubled, (0..100).map(|n| n * 2).collect::<Vec<_>>());
        let fails = |n: i32| if n % 50 == 1 { Err(ReplayError::Deleted(n.to_string())) } else { Ok(n) };
        assert!(matches!(side_by_side(0..100, fails).await, Err(ReplayError::Deleted(first)) if first == "1"));
        assert!(matches!(open_all(100, fails).await, Err(ReplayError::Deleted(all)) if all == "1; 51"));
    }
}
