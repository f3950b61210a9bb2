//! One partition on a thread of its own: reads up to where everything is decided, looks again, and hands over what it finds.

use std::{
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use infra::{
    config::Connections,
    kafka::{LogError, PartitionReader, Record},
};
use tokio::sync::mpsc::Sender;

use crate::{ReaderError, Start};

/// Pause between two looks at the end of the log.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Kafka may be away for so long: a change of leader takes about 10 s.
const OUTAGE: Duration = Duration::from_secs(20);

/// What a partition hands over.
pub(crate) enum Found {
    Record(Record),
    /// Everything before this offset was handed over: it passes aborted records and the markers of transactions.
    Reached {
        partition: i32,
        offset: i64,
    },
    Failed(ReaderError),
}

/// A partition whose position is one that the log has.
pub(crate) struct Partition {
    reader: PartitionReader,
    topic: String,
    pub(crate) number: i32,
    pub(crate) position: i64,
    /// Where it ended when it was opened: an open transaction, which may stay open, is not waited for.
    pub(crate) end: i64,
}

impl Partition {
    /// `stored`: its position, which goes before `start`. Blocks.
    pub(crate) fn open(connections: &Connections, number: i32, stored: Option<i64>, start: &Start) -> Result<Self, ReaderError> {
        let topic = connections.topics.events.clone();
        let reader = PartitionReader::open(connections, &topic, number)?;
        // Before an instant is looked for: what comes in between must not be passed by.
        let ends = reader.ends()?;
        let position = match (stored, start) {
            (Some(stored), _) => stored,
            (None, Start::Beginning) => 0,
            (None, Start::Offsets(offsets)) => offsets.get(&number).copied().unwrap_or(0),
            (None, Start::Time(at)) => reader.offset_at(*at)?.unwrap_or(ends.stable),
        };
        if position < ends.start || position > ends.high {
            let (start, end) = (ends.start, ends.high);
            return Err(LogError::OutOfRange { topic, partition: number, start, end, wanted: position }.into());
        }
        Ok(Self { reader, topic, number, position, end: ends.stable })
    }

    /// Reads until nobody listens any more, or it fails. The thread ends then, after the call that it is in.
    pub(crate) fn follow(mut self, found: Sender<Found>) -> std::io::Result<()> {
        let name = format!("reader-{}", self.number);
        let run = move || {
            let mut heard = Instant::now();
            while !found.is_closed() {
                match self.read_on(&found) {
                    Ok(()) => heard = Instant::now(),
                    Err(LogError::Kafka(error)) if heard.elapsed() < OUTAGE => {
                        tracing::warn!(partition = self.number, %error, "Kafka did not answer; looking again");
                    }
                    Err(error) => {
                        let _ = found.blocking_send(Found::Failed(error.into()));
                        return;
                    }
                }
                thread::sleep(LOOK_EVERY);
            }
        };
        thread::Builder::new().name(name).spawn(run).map(drop)
    }

    fn read_on(&mut self, found: &Sender<Found>) -> Result<(), LogError> {
        let Self { reader, topic, number, position, .. } = self;
        let (start, stable) = reader.stable()?;
        if *position < start {
            let (topic, partition, wanted) = (topic.clone(), *number, *position);
            return Err(LogError::OutOfRange { topic, partition, start, end: stable, wanted });
        }
        if stable < *position {
            // The stable end may go back for a moment after a failover; where the log itself ends before, it has lost what was read.
            let end = reader.ends()?.high;
            if end < *position {
                let (topic, partition, wanted) = (topic.clone(), *number, *position);
                return Err(LogError::OutOfRange { topic, partition, start, end, wanted });
            }
        }
        if stable <= *position {
            return Ok(());
        }
        let mut is_heard = true;
        reader.read(*position, stable, &mut |record| {
            let next = record.offset + 1;
            is_heard = found.blocking_send(Found::Record(record)).is_ok();
            if !is_heard {
                return ControlFlow::Break(());
            }
            *position = next;
            ControlFlow::Continue(())
        })?;
        if is_heard {
            *position = stable.max(*position);
            let _ = found.blocking_send(Found::Reached { partition: *number, offset: *position });
        }
        Ok(())
    }
}
