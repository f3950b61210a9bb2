//! One partition of the log up to the cut: what its events fold into, and whether each request has exactly one of them, in order.

use std::{
    collections::{BTreeSet, HashMap},
    ops::{ControlFlow, Range},
    thread,
    time::{Duration, Instant},
};

use domain::{Event, EventBody, RefusalReason, State, UserId, Voucher, VoucherId};
use events::Codec;
use infra::{config::Connections, kafka::PartitionReader};
use tokio::runtime::Handle;

use super::verdict::{Findings, Kind};
use crate::{
    ReplayError,
    walk::{EventWalk, whole},
};

/// Pause between two looks for events that Postgres has and the log does not have yet.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A partition's events, opened before the snapshot of Postgres is taken.
pub(super) struct Opened {
    pub(super) events: EventWalk,
    /// Where they ended at that moment: what is below was committed in Postgres first.
    pub(super) published: i64,
}

/// Where a partition is cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    /// The lane's position in the snapshot of Postgres: requests below it are decided there. `None`: no lane ever worked here.
    pub(super) next_offset: Option<i64>,
    /// The `voucher_seq` at which Redis was read, for each voucher to be compared there.
    pub(super) redis_seqs: &'a HashMap<VoucherId, i64>,
    /// How long to wait for events that Postgres has already.
    pub(super) patience: Duration,
}

/// One voucher at the `voucher_seq` Redis was read at.
#[derive(Clone, Debug)]
pub(super) struct AtRedis {
    pub(super) voucher: Voucher,
    pub(super) held: HashMap<UserId, i64>,
}

/// What one partition's log says.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) state: State,
    pub(super) at_redis: HashMap<VoucherId, AtRedis>,
    pub(super) events: u64,
    pub(super) requests: u64,
    /// Requests appended but not decided at the cut.
    pub(super) undecided: i64,
    /// Offsets of requests that were refused as unreadable.
    pub(super) unreadable: BTreeSet<(i32, i64)>,
    pub(super) findings: Findings,
}

/// The offsets at which there are committed requests, in order. They hardly have gaps, so ranges are small whatever the log's length.
#[derive(Debug, Default)]
struct Offsets {
    ranges: Vec<Range<i64>>,
    /// Of the range in which the next one lies.
    at: usize,
    next: Option<i64>,
}

impl Offsets {
    fn push(&mut self, offset: i64) {
        match self.ranges.last_mut() {
            Some(last) if last.end == offset => last.end += 1,
            _ => self.ranges.push(offset..offset + 1),
        }
        self.next.get_or_insert(offset);
    }

    fn len(&self) -> u64 {
        self.ranges.iter().map(|r| u64::try_from(r.end - r.start).unwrap_or(0)).sum()
    }

    fn contains(&self, offset: i64) -> bool {
        let after = self.ranges.partition_point(|r| r.end <= offset);
        self.ranges.get(after).is_some_and(|r| r.contains(&offset))
    }

    fn advance(&mut self) {
        let Some(next) = self.next else { return };
        let end = self.ranges.get(self.at).map_or(next, |r| r.end);
        self.next = if next + 1 < end {
            Some(next + 1)
        } else {
            self.at += 1;
            self.ranges.get(self.at).map(|r| r.start)
        };
    }
}

/// Opens the events of a partition and looks where they end. Blocks.
pub(super) fn open(connections: &Connections, codec: &Codec, runtime: &Handle, partition: i32) -> Result<Opened, ReplayError> {
    let events = EventWalk::open(connections, codec, runtime, partition)?;
    let published = events.whole()?.stable;
    Ok(Opened { events, published })
}

/// Reads the partition up to the cut. Blocks.
pub(super) fn told(connections: &Connections, mut opened: Opened, cut: &Cut<'_>) -> Result<Told, ReplayError> {
    let mut told = Told::default();
    let (topic, partition) = (&connections.topics.requests, opened.events.partition);
    let mut reader = PartitionReader::open(connections, topic, partition)?;
    let ends = whole(&reader, topic, partition)?;
    let position = cut.next_offset.unwrap_or(0);
    if position > ends.high {
        let what = format!("partition {partition}: the lane stands at {position}, beyond the end {} of {topic}", ends.high);
        told.findings.differs(Kind::Position, what);
    }
    let mut requests = Offsets::default();
    reader.read(0, position.min(ends.stable), &mut |record| {
        requests.push(record.offset);
        ControlFlow::Continue(())
    })?;
    told.requests = requests.len();
    told.undecided = (ends.high - position).max(0);
    let started = Instant::now();
    let (mut from, mut end) = (0, opened.published);
    loop {
        let early = Early { position, published: opened.published };
        opened.events.events(from, end, |event, offset| told.take(cut, &early, &mut requests, event, offset))?;
        from = end;
        let Some(missing) = requests.next else { break };
        if started.elapsed() > cut.patience {
            told.findings.doubt(format!(
                "partition {partition}: request {missing} is decided in Postgres, but its event is not in the log: is the orders service running?"
            ));
            break;
        }
        thread::sleep(LOOK_EVERY);
        end = opened.events.whole()?.stable;
    }
    told.finish(cut);
    Ok(told)
}

/// What tells events of the cut from later ones.
struct Early {
    /// Requests below it are decided in the snapshot.
    position: i64,
    /// Events below it were published before the snapshot.
    published: i64,
}

impl Told {
    fn take(&mut self, cut: &Cut<'_>, early: &Early, requests: &mut Offsets, event: Event, offset: i64) {
        let partition = event.partition;
        if event.request_offset >= early.position {
            if offset < early.published {
                let what = format!(
                    "partition {partition}: event {offset} answers request {}, but the lane's position is {}",
                    event.request_offset, early.position
                );
                self.findings.differs(Kind::PostgresBehind, what);
            }
            return;
        }
        self.events += 1;
        self.answer(partition, requests, &event, offset);
        if matches!(event.body, EventBody::RequestRefused { reason: RefusalReason::Unreadable, .. }) {
            self.unreadable.insert((partition, event.request_offset));
        }
        let Some(voucher) = event.voucher_id.as_ref().filter(|_| event.voucher_seq > 0) else { return };
        let before = self.state.vouchers.get(voucher).map_or(0, |v| v.seq);
        if event.voucher_seq != before + 1 {
            let what = format!("voucher {voucher}: event {offset} has voucher_seq {} after {before}", event.voucher_seq);
            self.findings.differs(Kind::VoucherSeqGap, what);
        }
        if before > 0 && cut.redis_seqs.get(voucher) == Some(&before) {
            self.remember(voucher);
        }
        self.state.evolve(&event);
    }

    /// Each event must answer the next request that has none yet.
    fn answer(&mut self, partition: i32, requests: &mut Offsets, event: &Event, offset: i64) {
        let answers = event.request_offset;
        while let Some(skipped) = requests.next.filter(|next| *next < answers) {
            let what =
                format!("partition {partition}: request {skipped} has no event (event {offset} answers request {answers})");
            self.findings.differs(Kind::RequestUnanswered, what);
            requests.advance();
        }
        if requests.next == Some(answers) {
            requests.advance();
        } else if requests.contains(answers) {
            let what = format!("partition {partition}: event {offset} answers request {answers} again");
            self.findings.differs(Kind::EventRepeated, what);
        } else {
            let what = format!("partition {partition}: event {offset} answers offset {answers}, where there is no request");
            self.findings.differs(Kind::EventUnfounded, what);
        }
    }

    /// Keeps a voucher as it is at the moment Redis was read, just before it moves on.
    fn remember(&mut self, voucher: &VoucherId) {
        let Some(now) = self.state.vouchers.get(voucher).cloned() else { return };
        let of_voucher = self.state.held.iter().filter(|((of, _), _)| of == voucher);
        let held = of_voucher.map(|((_, user), units)| (user.clone(), *units)).collect();
        self.at_redis.insert(voucher.clone(), AtRedis { voucher: now, held });
    }

    /// Keeps the vouchers that have not moved on since Redis was read: all in one pass, since at rest these are all vouchers.
    fn finish(&mut self, cut: &Cut<'_>) {
        for voucher in self.state.vouchers.values().filter(|v| cut.redis_seqs.get(&v.id) == Some(&v.seq)) {
            self.at_redis.insert(voucher.id.clone(), AtRedis { voucher: voucher.clone(), held: HashMap::new() });
        }
        for ((voucher, user), units) in &self.state.held {
            let stands = self.state.vouchers.get(voucher).is_some_and(|v| cut.redis_seqs.get(voucher) == Some(&v.seq));
            if let Some(at) = self.at_redis.get_mut(voucher).filter(|_| stands) {
                at.held.insert(user.clone(), *units);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(of: impl IntoIterator<Item = i64>) -> Offsets {
        let mut offsets = Offsets::default();
        of.into_iter().for_each(|o| offsets.push(o));
        offsets
    }

    #[test]
    fn offsets_with_gaps_are_walked_in_order() {
        let mut requests = offsets([0, 1, 2, 5, 6, 9]);
        assert_eq!((requests.len(), requests.ranges.len()), (6, 3));
        let mut walked = Vec::new();
        while let Some(next) = requests.next {
            walked.push(next);
            requests.advance();
        }
        assert_eq!(walked, [0, 1, 2, 5, 6, 9]);
        assert!(requests.contains(5) && !requests.contains(4) && !requests.contains(10));
    }

    fn refusal_of(request_offset: i64) -> Event {
        let request =
            domain::LoggedRequest { partition: 0, offset: request_offset, appended_at: domain::Timestamp(0), request: None };
        domain::decide(&State::default(), &request)
    }

    fn found(answered: &[i64]) -> Vec<Kind> {
        let mut told = Told::default();
        let mut requests = offsets([0, 1, 3]);
        for (offset, request) in answered.iter().enumerate() {
            told.answer(0, &mut requests, &refusal_of(*request), i64::try_from(offset).unwrap());
        }
        match told.findings.verdict() {
            super::super::Verdict::Different { first, .. } => first.into_iter().map(|d| d.kind).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn one_event_a_request_in_order_is_right_and_all_else_is_named() {
        assert_eq!(found(&[0, 1, 3]), []);
        assert_eq!(found(&[0, 1, 1, 3]), [Kind::EventRepeated]);
        assert_eq!(found(&[0, 3]), [Kind::RequestUnanswered]);
        assert_eq!(found(&[0, 1, 2, 3]), [Kind::EventUnfounded]);
        assert_eq!(found(&[1, 0]), [Kind::RequestUnanswered, Kind::EventRepeated]);
    }
}
