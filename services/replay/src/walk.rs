//! Walks the events of one partition in order, looking unknown schemas up on the way.

use std::{
    ops::{ControlFlow, Range},
    thread,
    time::Duration,
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

/// Reads the events of one partition. Blocks; the runtime is needed only to ask the registry.
pub(crate) struct EventWalk {
    pub(crate) partition: i32,
    topic: String,
    reader: PartitionReader,
    pub(crate) codec: Codec,
    pub(crate) runtime: Handle,
}

impl EventWalk {
    pub(crate) fn open(connections: &Connections, codec: &Codec, runtime: &Handle, partition: i32) -> Result<Self, ReplayError> {
        let topic = connections.topics.events.clone();
        let reader = PartitionReader::open(connections, &topic, partition)?;
        Ok(Self { partition, topic, reader, codec: codec.clone(), runtime: runtime.clone() })
    }

    /// The partition's ends now.
    pub(crate) fn ends(&self) -> Result<Ends, ReplayError> {
        Ok(self.reader.ends()?)
    }

    /// What to say of records that were deleted before offset `start`.
    pub(crate) fn deleted(&self, start: i64) -> String {
        deleted(&self.topic, self.partition, start)
    }

    /// The partition's ends now. Fails where the beginning of the history is gone.
    pub(crate) fn whole(&self) -> Result<Ends, ReplayError> {
        self.whole_from(0)
    }

    /// The partition's ends now. Fails where something from offset `from` on is gone.
    pub(crate) fn whole_from(&self, from: i64) -> Result<Ends, ReplayError> {
        whole_from(&self.reader, &self.topic, self.partition, from)
    }

    /// The first offset from which on no event answers a request below `request`. Answers are in the order of requests.
    pub(crate) fn behind_answers(&mut self, ends: Ends, request: i64) -> Result<i64, ReplayError> {
        let (codec, runtime, topic) = (&self.codec, &self.runtime, &self.topic);
        self.reader.partition_point(ends, |record| Ok(decode(codec, runtime, topic, record)?.request_offset < request))
    }

    /// Calls `each` for the committed events in `from..to`, with their offsets, until it has had enough.
    pub(crate) fn events(
        &mut self,
        from: i64,
        to: i64,
        mut each: impl FnMut(Event, i64) -> ControlFlow<()>,
    ) -> Result<(), ReplayError> {
        self.timed_events(from, to, |event, offset, _| each(event, offset))
    }

    /// The same, with the instants at which they were appended.
    pub(crate) fn timed_events(
        &mut self,
        from: i64,
        to: i64,
        mut each: impl FnMut(Event, i64, Timestamp) -> ControlFlow<()>,
    ) -> Result<(), ReplayError> {
        let mut failed = None;
        let (codec, runtime, topic) = (&self.codec, &self.runtime, &self.topic);
        let mut one = |record: Record| match decode(codec, runtime, topic, &record) {
            Ok(event) => each(event, record.offset, record.timestamp),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        };
        self.reader.read(from, to, &mut one)?;
        failed.map_or(Ok(()), Err)
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
        Ok(Some((decode(&self.codec, &self.runtime, &self.topic, &record)?, record.offset)))
    }
}

/// The ends of a partition whose first record must still be there.
pub(crate) fn whole(reader: &PartitionReader, topic: &str, partition: i32) -> Result<Ends, ReplayError> {
    whole_from(reader, topic, partition, 0)
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
    let check = move |p| whole(&PartitionReader::open(&connections, &topic, p)?, &topic, p).map(drop);
    blocking(move || partitions.into_iter().try_for_each(check)).await
}

/// What to say of records that were deleted before offset `start`.
pub(crate) fn deleted(topic: &str, partition: i32, start: i64) -> String {
    format!("partition {partition} of {topic} begins at offset {start}: the records of offsets 0..{start} were deleted")
}

/// Reads the requests of `reader` at these offsets, in order, until `each` has had enough.
pub(crate) fn requests(
    reader: &mut PartitionReader,
    (codec, runtime): (&Codec, &Handle),
    topic: &str,
    offsets: Range<i64>,
    mut each: impl FnMut(Result<LoggedRequest, ReplayError>) -> ControlFlow<()>,
) -> Result<(), ReplayError> {
    let mut one = |record: Record| {
        let request = understand(codec, runtime, || codec.decode_request(&record.payload));
        let logged = |request: Result<_, String>| LoggedRequest {
            partition: record.partition,
            offset: record.offset,
            appended_at: record.timestamp,
            request: request.ok(),
        };
        each(request.map(logged).map_err(|problem| unusable(topic, &record, problem)))
    };
    Ok(reader.read(offsets.start, offsets.end, &mut one)?)
}

fn decode(codec: &Codec, runtime: &Handle, topic: &str, record: &Record) -> Result<Event, ReplayError> {
    let event = understand(codec, runtime, || codec.decode_event(&record.payload, record.partition));
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
    known(connections, partition).await
}

/// The partition, if the log has one of this number.
pub(crate) async fn known(connections: &Connections, partition: i32) -> Result<i32, ReplayError> {
    let count = partitions(connections).await?;
    if (0..count).contains(&partition) {
        return Ok(partition);
    }
    let problem = format!("has {count} partitions, and none of number {partition}");
    let remedy = format!("the first is 0, the last {}", count - 1);
    Err(LogError::Topic { topic: connections.topics.requests.clone(), problem, remedy }.into())
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
