//! The lanes' fold by hand: what the log answers and Postgres does not have. Safe beside running lanes, which do the same by themselves.

use domain::Event;
use events::{Codec, DecodeError};
use infra::{
    config::Connections,
    kafka::{PartitionReader, Record, partition_count},
    postgres::{self, lane::LaneSession},
};
use tokio::runtime::Handle;

use crate::{fold, next_step::LaneError};

/// Events folded in one transaction. More only keep the position locked for longer.
const CHUNK: usize = 1_000;

/// How far Postgres was behind in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    pub partition: i32,
    /// The next request to decide, by Postgres.
    pub next_offset: i64,
    /// The offset after the last request that the log answers. Not above `next_offset`: nothing is missing.
    pub answered: i64,
}

/// Looks in every partition how many events Postgres lacks; with `apply` folds those in. Repeated, it finds less, and in the end nothing.
///
/// Fails, before anything is written, where a missing event was deleted from the log or an event cannot be read.
pub async fn catch_up(connections: &Connections, codec: &Codec, apply: bool) -> anyhow::Result<Vec<Behind>> {
    let pool = postgres::pool(connections, 1)?;
    postgres::check_schema(&pool).await?;
    let (connections, codec, runtime) = (connections.clone(), codec.clone(), Handle::current());
    let work = move || {
        let topics = &connections.topics;
        let (mut hands, mut found) = (Vec::new(), Vec::new());
        for partition in 0..partition_count(&connections, &topics.requests)? {
            let log = PartitionReader::open(&connections, &topics.events, partition)?;
            let mut hand = Hand { connections: &connections, codec: &codec, runtime: &runtime, partition, log };
            // Before Postgres: what a lane has published was committed there, so what is missing then is lost.
            let answered = hand.answered()?;
            let next_offset = runtime.block_on(postgres::next_offset(&pool, &topics.requests, partition))?.unwrap_or(0);
            found.push(hand.look(answered, next_offset)?);
            hands.push(hand);
        }
        for (hand, behind) in hands.iter_mut().zip(&found).filter(|(_, behind)| apply && behind.answered > behind.next_offset) {
            hand.fold(behind.answered)?;
        }
        anyhow::Ok(found)
    };
    tokio::task::spawn_blocking(work).await?
}

struct Hand<'a> {
    connections: &'a Connections,
    codec: &'a Codec,
    runtime: &'a Handle,
    partition: i32,
    log: PartitionReader,
}

impl Hand<'_> {
    fn answered(&mut self) -> Result<i64, LaneError> {
        let Self { codec, runtime, log, .. } = self;
        let ends = log.ends()?;
        fold::answered(log, ends, &|record: &Record| event_of(codec, runtime, record))
    }

    /// Fails also where the first missing event cannot be had.
    fn look(&mut self, answered: i64, next_offset: i64) -> Result<Behind, LaneError> {
        let Self { codec, runtime, partition, log, .. } = self;
        let read = |record: &Record| event_of(codec, runtime, record);
        if answered > next_offset {
            let ends = log.ends()?;
            let from = fold::find_answer(log, ends, next_offset, &read)?;
            fold::events_from(log, ends, from, (next_offset, answered), 1, &read)?;
        }
        Ok(Behind { partition: *partition, next_offset, answered })
    }

    /// Folds until the position has come to `upto`.
    fn fold(&mut self, upto: i64) -> Result<(), LaneError> {
        let Self { connections, codec, runtime, partition, log } = self;
        let read = |record: &Record| event_of(codec, runtime, record);
        let topic = &connections.topics.requests;
        let mut session = runtime.block_on(LaneSession::connect(connections, topic, *partition))?;
        let mut known = None;
        loop {
            let next_offset = runtime.block_on(session.next_offset())?;
            if next_offset >= upto {
                return Ok(());
            }
            let ends = log.ends()?;
            let from = match known.filter(|(request, _)| *request == next_offset) {
                Some((_, from)) => from,
                None => fold::find_answer(log, ends, next_offset, &read)?,
            };
            let (events, last) = fold::events_from(log, ends, from, (next_offset, upto), CHUNK, &read)?;
            match runtime.block_on(write(&mut session, &events, next_offset)) {
                Ok(()) => known = Some((next_offset + events.len() as i64, last + 1)),
                // A lane was quicker.
                Err(LaneError::PositionDiffers { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

async fn write(session: &mut LaneSession, events: &[Event], next_offset: i64) -> Result<(), LaneError> {
    let transaction = session.begin().await?;
    fold::write(&transaction, events, next_offset).await?;
    Ok(transaction.commit().await?)
}

fn event_of(codec: &Codec, runtime: &Handle, record: &Record) -> Result<Event, LaneError> {
    loop {
        match codec.decode_event(&record.payload, record.partition) {
            Err(DecodeError::UnknownSchema(id)) => runtime.block_on(codec.learn(id))?,
            read => return read.map_err(|error| fold::foreign(record.offset, error)),
        }
    }
}
