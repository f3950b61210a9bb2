//! One assignment of a partition, on the consumer's side: its number, its seek number, the requests that fill the next batch, and the lane.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use infra::kafka::Record;

use crate::{
    config::OrdersConfig,
    mailbox::{Batch, BatchLimit, Mailbox, Metadata},
};

/// Queued batches at which a paused partition goes on: before the lane runs dry, as fetching starts anew.
const LOW_MARK: usize = 1;

pub(crate) struct Assignment {
    /// Counts assignments of this process; a partition that comes back gets a new one, and a new lane.
    pub(crate) number: u64,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Counts this assignment's seeks; 0: the lane has not said yet where to begin.
    seek: u64,
    open: VecDeque<Record>,
    open_bytes: usize,
    open_since: Instant,
    is_paused: bool,
}

/// Bounds of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    batch: BatchLimit,
    wait: Duration,
    queue: usize,
}

impl Bounds {
    pub(crate) fn of(config: &OrdersConfig) -> Self {
        let batch = BatchLimit { records: config.batch_records, bytes: config.batch_bytes };
        Self { batch, wait: config.batch_wait, queue: config.queue_batches }
    }
}

impl Assignment {
    pub(crate) fn new(number: u64, mailbox: Arc<Mailbox>) -> Self {
        let open = VecDeque::new();
        Self { number, mailbox, seek: 0, open, open_bytes: 0, open_since: Instant::now(), is_paused: true }
    }

    /// Takes a record that the consumer polled. What comes before the first seek is not wanted.
    pub(crate) fn take(&mut self, record: Record) {
        if self.seek == 0 {
            return;
        }
        if self.open.is_empty() {
            self.open_since = Instant::now();
        }
        self.open_bytes += record.payload.len();
        self.open.push_back(record);
    }

    /// The consumer has moved to another offset: gives the new seek number.
    pub(crate) fn sought(&mut self) -> u64 {
        self.open.clear();
        self.open_bytes = 0;
        self.mailbox.forget_batches();
        self.seek += 1;
        self.is_paused = false;
        self.seek
    }

    /// Whether requests wait here for their lane.
    pub(crate) fn is_filling(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether requests are to be handed over now: a full batch while there is room, any to an idle lane once they have waited, and any that
    /// the last batch before a busy lane can still take.
    pub(crate) fn is_due(&self, bounds: Bounds) -> bool {
        let queued = self.mailbox.queued();
        let is_wanted = match queued {
            0 => self.is_full(bounds) || self.open_since.elapsed() >= bounds.wait,
            _ => queued < bounds.queue && (self.is_full(bounds) || self.mailbox.room(bounds.batch).is_some()),
        };
        self.is_filling() && is_wanted
    }

    fn is_full(&self, bounds: Bounds) -> bool {
        self.open.len() >= bounds.batch.records || self.open_bytes >= bounds.batch.bytes
    }

    /// Hands one batch over: consecutive offsets within the bounds, at least one record.
    pub(crate) fn hand_over(&mut self, bounds: Bounds, metadata: &Metadata) {
        let Some(first) = self.open.front().map(|r| r.offset) else { return };
        let room = self.mailbox.room(bounds.batch).unwrap_or(bounds.batch);
        let mut records = Vec::with_capacity(self.open.len().min(room.records));
        let mut bytes = 0;
        while let Some(record) = self.open.front() {
            let belongs = records.is_empty()
                || (record.offset == first + records.len() as i64
                    && records.len() < room.records
                    && bytes + record.payload.len() <= room.bytes);
            if !belongs {
                break;
            }
            bytes += record.payload.len();
            records.extend(self.open.pop_front());
        }
        self.open_bytes = self.open_bytes.saturating_sub(bytes);
        self.open_since = Instant::now();
        self.mailbox.put(Batch { seek: self.seek, first, records, bytes }, bounds.batch, metadata);
    }

    /// Whether the partition is to be paused (`Some(true)`) or resumed (`Some(false)`) now; the caller does it.
    pub(crate) fn pause_change(&mut self, bounds: Bounds) -> Option<bool> {
        if self.seek == 0 {
            return None;
        }
        let queued = self.mailbox.queued();
        let is_full = self.is_full(bounds);
        let change = match self.is_paused {
            false if is_full && queued >= bounds.queue => true,
            true if !is_full && queued <= LOW_MARK => false,
            _ => return None,
        };
        self.is_paused = change;
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use domain::Timestamp;
    use rdkafka::{
        ClientConfig,
        consumer::{BaseConsumer, Consumer},
    };

    use super::*;

    const BOUNDS: Bounds = Bounds { batch: BatchLimit { records: 3, bytes: 100 }, wait: Duration::ZERO, queue: 2 };

    /// Of a consumer outside of any group, which no lane would ever get.
    fn metadata() -> Metadata {
        let consumer: BaseConsumer = ClientConfig::new().set("group.id", "none").create().unwrap();
        Arc::new(consumer.group_metadata().unwrap())
    }

    fn record(offset: i64, bytes: usize) -> Record {
        let (key, payload, headers) = (None, vec![0; bytes], vec![]);
        Record { partition: 0, offset, timestamp: Timestamp(0), key, payload, headers }
    }

    fn sought() -> (Assignment, Metadata) {
        let metadata = metadata();
        let mut assignment = Assignment::new(1, Arc::new(Mailbox::new(0, metadata.clone())));
        assignment.sought();
        (assignment, metadata)
    }

    /// What the lane gets: the seek number and the offsets of the next batch.
    fn next(assignment: &Assignment) -> Option<(u64, Vec<i64>)> {
        let batch = assignment.mailbox.take()?;
        assert_eq!(batch.first, batch.records[0].offset);
        assert_eq!(batch.bytes, batch.records.iter().map(|r| r.payload.len()).sum::<usize>());
        Some((batch.seek, batch.records.iter().map(|r| r.offset).collect()))
    }

    #[test]
    fn records_from_before_the_first_seek_and_before_a_later_one_are_dropped() {
        let metadata = metadata();
        let mut assignment = Assignment::new(1, Arc::new(Mailbox::new(0, metadata.clone())));
        assignment.take(record(0, 1));
        assert!(!assignment.is_filling());
        assert_eq!(assignment.sought(), 1);
        assignment.take(record(5, 1));
        assignment.hand_over(BOUNDS, &metadata);
        assignment.take(record(6, 1));
        assert_eq!(assignment.sought(), 2);
        assert_eq!((assignment.is_filling(), next(&assignment)), (false, None));
        assignment.take(record(5, 1));
        assignment.hand_over(BOUNDS, &metadata);
        assert_eq!(next(&assignment), Some((2, vec![5])));
    }

    #[test]
    fn a_batch_ends_at_its_bounds_and_at_a_gap() {
        let (mut assignment, metadata) = sought();
        for (offset, bytes) in [(0, 1), (1, 1), (2, 1), (3, 60), (4, 60), (5, 500), (6, 1), (8, 1)] {
            assignment.take(record(offset, bytes));
        }
        while assignment.is_filling() {
            assignment.hand_over(BOUNDS, &metadata);
        }
        let batches: Vec<_> = std::iter::from_fn(|| next(&assignment)).map(|(_, offsets)| offsets).collect();
        assert_eq!(batches, [vec![0, 1, 2], vec![3], vec![4], vec![5], vec![6], vec![8]]);
    }

    #[test]
    fn an_idle_lane_gets_what_there_is_and_what_waits_for_a_busy_one_grows_until_it_is_full() {
        let (mut assignment, metadata) = sought();
        assert!(!assignment.is_due(BOUNDS));
        assignment.take(record(0, 1));
        assert!(assignment.is_due(BOUNDS));
        assert!(!assignment.is_due(Bounds { wait: Duration::from_secs(60), ..BOUNDS }), "it has not waited yet");
        assignment.hand_over(BOUNDS, &metadata);
        for offset in [1, 2, 3] {
            assignment.take(record(offset, 1));
        }
        assert!(assignment.is_due(BOUNDS));
        assignment.hand_over(BOUNDS, &metadata);
        assert!(!assignment.is_due(BOUNDS), "the batch that waits is full, and the next one is not");
        assignment.take(record(4, 1));
        assignment.take(record(5, 1));
        assert!(assignment.is_due(BOUNDS));
        assignment.hand_over(BOUNDS, &metadata);
        assert_eq!(next(&assignment), Some((1, vec![0, 1, 2])));
        assert_eq!(next(&assignment), Some((1, vec![3, 4, 5])));
        assert_eq!(next(&assignment), None);
    }

    #[test]
    fn a_partition_is_paused_when_its_lane_is_full_and_goes_on_at_the_low_mark() {
        let (mut assignment, metadata) = sought();
        for offset in 0..9 {
            assert_eq!(assignment.pause_change(BOUNDS), None, "at {offset}");
            assignment.take(record(offset, 1));
            while assignment.is_due(BOUNDS) {
                assignment.hand_over(BOUNDS, &metadata);
            }
        }
        assert_eq!(assignment.mailbox.queued(), BOUNDS.queue, "no more than the bound is queued");
        assert_eq!(assignment.pause_change(BOUNDS), Some(true));
        assert_eq!(assignment.pause_change(BOUNDS), None, "once is enough");
        next(&assignment);
        next(&assignment);
        assert_eq!(assignment.pause_change(BOUNDS), None, "a full batch still waits to be handed over");
        assignment.hand_over(BOUNDS, &metadata);
        assert_eq!(assignment.pause_change(BOUNDS), Some(false));
    }
}
