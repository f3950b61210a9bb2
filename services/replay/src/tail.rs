//! Decoded records of `order-requests` or `order-events`, as they stand in the log.

use std::{collections::BTreeMap, ops::ControlFlow, thread, time::Duration};

use domain::{Event, Request, Timestamp, VoucherId};
use events::Codec;
use infra::{
    config::Connections,
    kafka::{LogError, PartitionReader, Record},
};
use serde::Serialize;
use tokio::runtime::Handle;

use crate::{
    ReplayError,
    walk::{blocking, known, partitions, understand},
};

/// Pause between two looks for new records.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailFrom {
    /// Where the log begins today.
    Start,
    /// Where it ends now.
    End,
    /// It must be there already, or be where the log ends.
    Offset(i64),
    /// The first record that the broker took at or after this instant.
    Time(Timestamp),
}

/// What is shown.
#[derive(Clone, Debug)]
pub struct TailOptions {
    /// Requests instead of events.
    pub requests: bool,
    /// Only records of this voucher, by their key.
    pub voucher: Option<VoucherId>,
    /// Only this partition; without: all, one after the other.
    pub partition: Option<i32>,
    pub from: TailFrom,
    /// Waits for more at the end.
    pub follow: bool,
}

/// One record.
#[derive(Clone, Debug, Serialize)]
pub struct TailRecord {
    pub partition: i32,
    pub offset: i64,
    /// By the broker's clock.
    pub appended_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    /// Why it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Its headers, if it has some: those of a redriven request say where it comes from.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// How far a partition was shown: from the first offset up to the second, where it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailRead {
    pub partition: i32,
    pub from: i64,
    pub end: i64,
}

/// Calls `each` for the records, in order within a partition, until it has had enough or the end as it is now is reached; gives the
/// partitions of which the end was reached.
pub async fn tail(
    connections: &Connections,
    codec: &Codec,
    options: TailOptions,
    each: impl FnMut(TailRecord) -> ControlFlow<()> + Send + 'static,
) -> Result<Vec<TailRead>, ReplayError> {
    let topics = &connections.topics;
    let topic = if options.requests { topics.requests.clone() } else { topics.events.clone() };
    let chosen = match options.partition {
        Some(only) => vec![known(connections, &topic, only).await?],
        None => (0..partitions(connections).await?).collect(),
    };
    let (connections, codec, runtime) = (connections.clone(), codec.clone(), Handle::current());
    blocking(move || read(&connections, &codec, &runtime, &topic, &options, &chosen, each)).await
}

fn read(
    connections: &Connections,
    codec: &Codec,
    runtime: &Handle,
    topic: &str,
    options: &TailOptions,
    partitions: &[i32],
    mut each: impl FnMut(TailRecord) -> ControlFlow<()>,
) -> Result<Vec<TailRead>, ReplayError> {
    let mut readers = Vec::new();
    for partition in partitions {
        let reader = PartitionReader::open(connections, topic, *partition)?;
        let ends = reader.ends()?;
        let from = match options.from {
            TailFrom::Start => ends.start,
            TailFrom::End => ends.stable,
            TailFrom::Offset(wanted) if !(ends.start..=ends.high).contains(&wanted) => {
                let (topic, partition) = (topic.to_owned(), *partition);
                return Err(LogError::OutOfRange { topic, partition, start: ends.start, end: ends.high, wanted }.into());
            }
            TailFrom::Offset(offset) => offset,
            TailFrom::Time(at) => reader.offset_at(at)?.unwrap_or(ends.stable),
        };
        readers.push((reader, from));
    }
    loop {
        let (mut enough, mut read) = (false, Vec::new());
        for (partition, (reader, from)) in partitions.iter().zip(&mut readers) {
            let end = reader.ends()?.stable;
            reader.read(*from, end, &mut |record| {
                if options.voucher.as_ref().is_some_and(|v| record.key.as_deref() != Some(v.as_str().as_bytes())) {
                    return ControlFlow::Continue(());
                }
                let next = each(decoded(codec, runtime, options.requests, &record));
                enough = next.is_break();
                next
            })?;
            if enough {
                return Ok(read);
            }
            read.push(TailRead { partition: *partition, from: *from, end: end.max(*from) });
            *from = end.max(*from);
        }
        if !options.follow {
            return Ok(read);
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn decoded(codec: &Codec, runtime: &Handle, is_request: bool, record: &Record) -> TailRecord {
    let mut told = TailRecord {
        partition: record.partition,
        offset: record.offset,
        appended_at: record.timestamp,
        request: None,
        event: None,
        unreadable: None,
        headers: record.headers.iter().map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned())).collect(),
    };
    let read = if is_request {
        understand(codec, runtime, || codec.decode_request(&record.payload))
            .and_then(|read| read)
            .map(|read| told.request = Some(read))
    } else {
        let decode = || codec.decode_event(&record.payload, record.partition);
        understand(codec, runtime, decode).and_then(|read| read).map(|read| told.event = Some(read))
    };
    told.unreadable = read.err();
    told
}
