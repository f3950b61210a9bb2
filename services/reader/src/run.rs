//! Gathers what the partitions hand over into batches, gives them to the projection, and notices when all history is read.

use std::{collections::BTreeSet, future::pending, mem, pin::Pin, time::Duration};

use events::DecodeError;
use infra::kafka::{LogError, Record, partition_count};
use tokio::{
    select,
    sync::mpsc::{self, Sender},
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until},
};

use crate::{
    Batch, Log, LoggedEvent, Options, Positions, Projection, ReaderError, Skipped, Start, Summary, WhySkipped,
    partition::{Found, Partition},
};

/// Records that wait for a batch, over all partitions. More would only be memory: a thread hands over its next one in microseconds.
const WAITING: usize = 256;

/// Pause between two questions for a schema while the registry is away.
const LEARN_AGAIN: Duration = Duration::from_millis(500);

/// Between two looks for partitions that were added.
const GROWTH_CHECK: Duration = Duration::from_secs(10);

/// Reads until `stop` completes, calling the projection; then what was read is applied, and the counts are given. Where history was deleted,
/// or a position is not one of this log, it fails before anything is applied. An outage of Kafka of up to 20 s is waited out, one of the
/// registry without limit. `stop` cuts no call of the projection off.
///
/// Each partition has a thread and at most 4 MiB of records fetched ahead, besides the batch. A thread may outlive the run by the call to Kafka
/// that it is in (20 s where Kafka is away).
pub async fn run<P: Projection>(
    log: &Log,
    options: Options,
    projection: &mut P,
    stop: impl Future<Output = ()>,
) -> Result<Summary, ReaderError> {
    let stored = projection.positions().await.map_err(ReaderError::Projection)?;
    let (sender, mut found) = mpsc::channel(WAITING);
    // Threads that have all ended are noticed by the channel's end.
    let growing = sender.downgrade();
    let mut runner = Runner {
        log,
        options,
        projection,
        stored,
        next: Positions::new(),
        applied: Positions::new(),
        behind: Positions::new(),
        batch: Batch::default(),
        bytes: 0,
        due: None,
        told: Summary::default(),
    };
    let (chosen, start) = (runner.chosen().await?, runner.options.start.clone());
    runner.open(chosen, start, sender).await?;
    let mut growth = interval_at(Instant::now() + GROWTH_CHECK, GROWTH_CHECK);
    growth.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        runner.tell_live().await?;
        let due = runner.due;
        let waited = async {
            match due {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        select! {
            biased;
            () = &mut stop => break,
            () = waited => runner.flush().await?,
            _ = growth.tick(), if runner.options.partitions.is_none() => {
                if let Some(sender) = growing.upgrade() {
                    runner.grow(sender).await?;
                }
            }
            next = found.recv() => match next {
                Some(Found::Record(record)) => if !runner.take(&record, stop.as_mut()).await? {
                    break;
                },
                Some(Found::Reached { partition, offset }) => runner.moved(partition, offset),
                Some(Found::Failed(error)) => return Err(error),
                None => return Err(ReaderError::Thread),
            },
        }
    }
    runner.flush().await?;
    Ok(Summary { positions: runner.applied, ..runner.told })
}

struct Runner<'a, P> {
    log: &'a Log,
    options: Options,
    projection: &'a mut P,
    /// What the projection had at the start.
    stored: Positions,
    /// Up to where the partitions were read, and up to where that is applied.
    next: Positions,
    applied: Positions,
    /// Partitions that have not come yet to where they ended at the start, and where that is.
    behind: Positions,
    batch: Batch,
    bytes: usize,
    /// When the batch is to be applied at the latest.
    due: Option<Instant>,
    told: Summary,
}

impl<P: Projection> Runner<'_, P> {
    /// The partitions to read that there are now. Whoever names one that is not there speaks of another log.
    async fn chosen(&self) -> Result<BTreeSet<i32>, ReaderError> {
        let connections = self.log.connections.clone();
        let topic = connections.topics.events.clone();
        let count = blocking(move || Ok(partition_count(&connections, &connections.topics.events)?)).await?;
        let mut named: BTreeSet<i32> = self.stored.keys().copied().collect();
        if let Start::Offsets(offsets) = &self.options.start {
            named.extend(offsets.keys());
        }
        named.extend(self.options.partitions.iter().flatten());
        match named.into_iter().find(|partition| !(0..count).contains(partition)) {
            Some(partition) => Err(ReaderError::NoPartition { topic, partition, last: count - 1 }),
            None => Ok(self.options.partitions.as_ref().map_or((0..count).collect(), |some| some.iter().copied().collect())),
        }
    }

    /// Opens all of them before the first one is read.
    async fn open(&mut self, numbers: BTreeSet<i32>, start: Start, sender: Sender<Found>) -> Result<(), ReaderError> {
        let (connections, stored) = (self.log.connections.clone(), self.stored.clone());
        let open = move |number: i32| Partition::open(&connections, number, stored.get(&number).copied(), &start);
        let opened = blocking(move || numbers.into_iter().map(open).collect::<Result<Vec<_>, _>>()).await?;
        for partition in opened {
            self.next.insert(partition.number, partition.position);
            self.applied.insert(partition.number, partition.position);
            if partition.position < partition.end {
                self.behind.insert(partition.number, partition.end);
            }
            partition.follow(sender.clone()).map_err(|_| ReaderError::Thread)?;
        }
        Ok(())
    }

    /// Reads partitions that were added, from their beginning.
    async fn grow(&mut self, sender: Sender<Found>) -> Result<(), ReaderError> {
        let opened = match self.chosen().await {
            Ok(all) => {
                let new: BTreeSet<i32> = all.into_iter().filter(|number| !self.next.contains_key(number)).collect();
                self.open(new, Start::Beginning, sender).await
            }
            Err(error) => Err(error),
        };
        match opened {
            Err(ReaderError::Log(error @ (LogError::Kafka(_) | LogError::Unreachable { .. }))) => {
                tracing::warn!(%error, "cannot see whether partitions were added; looking again");
                Ok(())
            }
            opened => opened,
        }
    }

    /// Takes a record into the batch. `false`: `stop` completed while the registry was away, and the record was not taken.
    async fn take(&mut self, record: &Record, mut stop: Pin<&mut impl Future<Output = ()>>) -> Result<bool, ReaderError> {
        let (partition, offset) = (record.partition, record.offset);
        let why = loop {
            match self.log.codec.decode_event(&record.payload, partition) {
                Ok(event) => {
                    self.batch.events.push(LoggedEvent { offset, appended_at: record.timestamp, event });
                    break None;
                }
                Err(DecodeError::UnknownKind(kind)) => break Some(WhySkipped::UnknownKind(kind)),
                Err(DecodeError::Unreadable(problem)) => break Some(WhySkipped::Unreadable(problem)),
                Err(DecodeError::UnknownSchema(id)) => {
                    let Err(error) = self.log.codec.learn(id).await else { continue };
                    tracing::warn!(%error, "the schema registry is needed to go on");
                    self.flush().await?;
                    select! {
                        biased;
                        () = stop.as_mut() => return Ok(false),
                        () = sleep(LEARN_AGAIN) => {}
                    }
                }
            }
        };
        if let Some(why) = why {
            tracing::warn!(partition, offset, ?why, "a record of order-events is skipped");
            self.batch.skipped.push(Skipped { partition, offset, why });
        }
        self.moved(partition, offset + 1);
        self.bytes += record.payload.len();
        self.due.get_or_insert_with(|| Instant::now() + self.options.max_wait);
        let records = self.batch.events.len() + self.batch.skipped.len();
        if records >= self.options.max_records || self.bytes >= self.options.max_bytes {
            self.flush().await?;
        }
        Ok(true)
    }

    fn moved(&mut self, partition: i32, offset: i64) {
        self.next.insert(partition, offset);
        if self.behind.get(&partition).is_some_and(|end| offset >= *end) {
            self.behind.remove(&partition);
        }
    }

    /// Applies what was read.
    async fn flush(&mut self) -> Result<(), ReaderError> {
        (self.bytes, self.due) = (0, None);
        let mut batch = mem::take(&mut self.batch);
        for ((partition, from), to) in self.applied.iter().zip(self.next.values()).filter(|((_, from), to)| from != to) {
            batch.from.insert(*partition, *from);
            batch.to.insert(*partition, *to);
        }
        if batch.to.is_empty() {
            return Ok(());
        }
        let unknown = batch.skipped.iter().filter(|skipped| matches!(skipped.why, WhySkipped::UnknownKind(_))).count();
        let (events, unreadable) = (batch.events.len(), batch.skipped.len() - unknown);
        self.projection.apply(batch).await.map_err(ReaderError::Projection)?;
        self.applied.clone_from(&self.next);
        self.told.events += events as u64;
        self.told.unknown_kinds += unknown as u64;
        self.told.unreadable += unreadable as u64;
        Ok(())
    }

    /// Tells the projection, once, that all history is applied.
    async fn tell_live(&mut self) -> Result<(), ReaderError> {
        if !self.told.is_live && self.behind.is_empty() {
            self.flush().await?;
            self.projection.live().await.map_err(ReaderError::Projection)?;
            self.told.is_live = true;
        }
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, ReaderError> + Send + 'static) -> Result<T, ReaderError> {
    spawn_blocking(work).await.map_err(|_| ReaderError::Thread)?
}
