//! One partition of the log up to the cut: what its events fold into, and whether each request has exactly one of them, in order, and
//! the one that the rules make of it.

use std::{
    collections::{BTreeSet, HashMap},
    ops::{ControlFlow, Range},
    sync::mpsc::sync_channel,
    thread,
    time::{Duration, Instant},
};

use domain::{
    Event, EventBody, LoggedRequest, RULES_VERSION, RefusalReason, RequestKind, State, UserId, Voucher, VoucherId, conservation,
    decide,
};

use crate::{
    ReplayError,
    compare::changes,
    verdict::{Findings, Kind},
    walk::{Log, PartitionRead, Walk},
};

/// Requests read ahead of their events.
const AHEAD: usize = 1000;

/// A partition's events, opened before the snapshot of Postgres is taken.
pub(crate) struct Opened {
    pub(crate) events: Walk,
    /// Where they ended at that moment: what is below was committed in Postgres first.
    pub(crate) published: i64,
}

/// Where a partition is cut.
#[derive(Debug)]
pub(crate) struct Cut<'a> {
    /// The lane's position in the snapshot of Postgres: requests below it are decided there. `None`: no lane ever worked here.
    pub(crate) next_offset: Option<i64>,
    /// The `voucher_seq` at which Redis was read, for each voucher to be compared there.
    pub(crate) redis_seqs: &'a HashMap<VoucherId, i64>,
    /// How long to wait for events that Postgres has already.
    pub(crate) patience: Duration,
}

/// What the events of a voucher, or its rows, add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) orders: i64,
    /// Units of the live ones.
    pub(crate) live: i64,
}

/// One voucher at the `voucher_seq` Redis was read at.
#[derive(Clone, Debug)]
pub(crate) struct AtRedis {
    pub(crate) voucher: Voucher,
    /// Units of live orders, and, in a deep audit, who holds them.
    pub(crate) live: i64,
    pub(crate) held: HashMap<UserId, i64>,
}

/// What one partition's log says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// Without orders where [`sums`](Self::sums) are all that is asked for.
    pub(crate) state: State,
    pub(crate) sums: HashMap<VoucherId, Sum>,
    pub(crate) at_redis: HashMap<VoucherId, AtRedis>,
    pub(crate) events: u64,
    pub(crate) requests: u64,
    /// Events that Postgres has already did not come in time: its rows are of a later moment.
    pub(crate) is_late: bool,
    /// Requests appended but not decided at the cut.
    pub(crate) undecided: i64,
    /// How each partition was read.
    pub(crate) read: Vec<PartitionRead>,
    /// Offsets of requests that were refused as unreadable.
    pub(crate) unreadable: BTreeSet<(i32, i64)>,
    /// Vouchers refused because they live on another partition, which only all partitions together can tell: partition, voucher, offset of
    /// the refusal.
    pub(crate) elsewhere: Vec<(i32, VoucherId, i64)>,
    /// Events that other rules than ours decided.
    other_rules: u64,
    pub(crate) findings: Findings,
}

/// The requests below the cut, in order, as their events come. Of those that have passed only the offsets stay; they hardly have gaps, so
/// the ranges are few whatever the log's length.
struct Requests {
    from: Box<dyn Iterator<Item = Result<LoggedRequest, ReplayError>>>,
    next: Option<LoggedRequest>,
    passed: Vec<Range<i64>>,
    /// Why they could not be read to their end.
    failed: Option<ReplayError>,
}

impl Requests {
    fn new(from: impl Iterator<Item = Result<LoggedRequest, ReplayError>> + 'static) -> Self {
        let mut requests = Self { from: Box::new(from), next: None, passed: Vec::new(), failed: None };
        requests.pass();
        requests
    }

    fn offset(&self) -> Option<i64> {
        self.next.as_ref().map(|request| request.offset)
    }

    /// Gives the next request and goes on to the one behind it.
    fn pass(&mut self) -> Option<LoggedRequest> {
        let passed = self.next.take();
        if let Some(offset) = passed.as_ref().map(|request| request.offset) {
            match self.passed.last_mut() {
                Some(last) if last.end == offset => last.end += 1,
                _ => self.passed.push(offset..offset + 1),
            }
        }
        match self.from.next() {
            Some(Ok(request)) => self.next = Some(request),
            Some(Err(error)) => self.failed = Some(error),
            None => {}
        }
        passed
    }

    fn has_passed(&self, offset: i64) -> bool {
        let after = self.passed.partition_point(|r| r.end <= offset);
        self.passed.get(after).is_some_and(|r| r.contains(&offset))
    }

    /// How many there are in all.
    fn count(mut self) -> Result<u64, ReplayError> {
        while self.pass().is_some() {}
        let count = self.passed.iter().map(|r| u64::try_from(r.end - r.start).unwrap_or(0)).sum();
        self.failed.map_or(Ok(count), Err)
    }
}

/// Opens the events of a partition and looks where they end. Blocks.
pub(crate) fn open(log: &Log, partition: i32) -> Result<Opened, ReplayError> {
    let events = log.events(partition)?;
    let published = events.whole()?.stable;
    Ok(Opened { events, published })
}

/// Reads the partition up to the cut. Blocks.
pub(crate) fn told(mut opened: Opened, cut: &Cut<'_>) -> Result<Told, ReplayError> {
    let (mut told, partition) = (Told::default(), opened.events.partition);
    let mut asked = opened.events.log.requests(partition)?;
    let ends = asked.whole()?;
    let position = cut.next_offset.unwrap_or(0);
    if position > ends.high {
        told.findings.differs(Kind::Position, beyond_end(&asked, position, ends.high));
    }
    told.undecided = (ends.high - position).max(0);
    let to = position.min(ends.stable);
    thread::scope(|scope| {
        let (sender, requests) = sync_channel(AHEAD);
        scope.spawn(move || {
            let each = |request| {
                let is_heard = sender.send(Ok(request)).is_ok();
                Ok(if is_heard { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            };
            if let Err(error) = asked.each_request(0..to, each) {
                // Nobody listens any more where the events could not be read.
                let _ = sender.send(Err(error));
            }
        });
        told.walk(&mut opened, cut, (to, position), Requests::new(requests.into_iter()))
    })?;
    told.finish(cut);
    let (end, events) = (opened.published, told.events);
    told.read = vec![PartitionRead { partition, begin: 0, end, events, next_request: position }];
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
    /// Joins what different partitions say, and checks what only all of them together can show.
    pub(crate) fn join(parts: Vec<Self>, deep: bool, findings: &mut Findings) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.requests += part.requests;
            all.events += part.events;
            all.undecided += part.undecided;
            all.read.extend(part.read);
            all.is_late |= part.is_late;
            all.elsewhere.extend(part.elsewhere);
            merge(&mut all.state, part.state, findings);
            all.sums.extend(part.sums);
            all.at_redis.extend(part.at_redis);
            all.unreadable.extend(part.unreadable);
            findings.add(part.findings);
        }
        let opened = |voucher| all.state.vouchers.contains_key(voucher);
        for (partition, voucher, offset) in all.elsewhere.iter().filter(|(_, voucher, _)| !opened(voucher)) {
            let what = format!("partition {partition}: event {offset} refuses voucher {voucher}, which is opened nowhere");
            findings.differs(Kind::VoucherPlace, what);
        }
        let mut breaches = Vec::new();
        if deep {
            breaches = conservation::breaches(&all.state);
        } else {
            all.state.vouchers.values().for_each(|v| conservation::of_voucher(v, all.sum(&v.id).live, &mut breaches));
        }
        for breach in breaches {
            findings.differs(Kind::Conservation, breach.to_string());
        }
        all
    }

    /// Takes the events up to the one that answers the last of the requests, which end at `to`.
    fn walk(
        &mut self,
        opened: &mut Opened,
        cut: &Cut<'_>,
        (to, position): (i64, i64),
        mut requests: Requests,
    ) -> Result<(), ReplayError> {
        let Opened { events, published } = opened;
        let (partition, until) = (events.partition, Instant::now() + cut.patience);
        let early = Early { position, published: *published };
        let mut take = |told: &mut Self, events: &mut Walk, from, to| {
            events.events(from, to, |event, offset| {
                told.take(cut, &early, &mut requests, event, offset);
                Ok(ControlFlow::Continue(()))
            })?;
            Ok::<_, ReplayError>(requests.offset())
        };
        if take(self, events, 0, *published)?.is_some() {
            let ends = events.wait_answered(to, Some(*published), until);
            match self.findings.unless_late(ends)? {
                Some(ends) => {
                    take(self, events, *published, ends.stable)?;
                }
                None => self.is_late = true,
            }
        }
        self.requests = requests.count()?;
        if self.other_rules > 0 {
            let what = format!(
                "partition {partition}: {} events were decided by other rules than version {RULES_VERSION}, which alone can be checked here",
                self.other_rules
            );
            self.findings.doubt(what);
        }
        Ok(())
    }

    fn take(&mut self, cut: &Cut<'_>, early: &Early, requests: &mut Requests, event: Event, offset: i64) {
        let partition = event.partition;
        if event.request_offset >= early.position {
            self.skip(partition, requests, event.request_offset, offset);
            if offset < early.published {
                let what = behind(partition, offset, event.request_offset, early.position);
                self.findings.differs(Kind::PostgresBehind, what);
            }
            return;
        }
        self.events += 1;
        if let Some(request) = self.answer(partition, requests, &event, offset) {
            self.judge(&request, &event, offset);
        }
        self.evolve(cut, &event, offset);
    }

    /// Applies an event of the cut.
    pub(super) fn evolve(&mut self, cut: &Cut<'_>, event: &Event, offset: i64) {
        if matches!(event.body, EventBody::RequestRefused { reason: RefusalReason::Unreadable, .. }) {
            self.unreadable.insert((event.partition, event.request_offset));
        }
        let Some(voucher) = event.voucher_id.as_ref().filter(|_| event.voucher_seq > 0) else { return };
        let before = seq_before(&self.state, voucher, event, offset, &mut self.findings);
        if event.voucher_seq <= before {
            return;
        }
        if before > 0 && cut.redis_seqs.get(voucher) == Some(&before) {
            self.remember(voucher);
        }
        self.state.evolve(event);
        if !self.state.vouchers.contains_key(voucher) {
            return;
        }
        let sum = self.sums.entry(voucher.clone()).or_default();
        match &event.body {
            EventBody::OrderConfirmed { quantity, .. } => {
                sum.orders += 1;
                sum.live = sum.live.saturating_add(*quantity);
            }
            EventBody::OrderRejected { .. } => sum.orders += 1,
            EventBody::OrderCancelled { quantity, .. } | EventBody::OrderExpired { quantity, .. } => {
                sum.live = sum.live.saturating_sub(*quantity);
            }
            _ => {}
        }
    }

    pub(super) fn sum(&self, voucher: &VoucherId) -> Sum {
        self.sums.get(voucher).copied().unwrap_or_default()
    }

    /// Each event must answer the next request that has none yet; gives that request.
    fn answer(&mut self, partition: i32, requests: &mut Requests, event: &Event, offset: i64) -> Option<LoggedRequest> {
        let answers = event.request_offset;
        self.skip(partition, requests, answers, offset);
        if requests.offset() == Some(answers) {
            return requests.pass();
        }
        if requests.has_passed(answers) {
            let what = format!("partition {partition}: event {offset} answers request {answers} again");
            self.findings.differs(Kind::EventRepeated, what);
        } else {
            let what = format!("partition {partition}: event {offset} answers offset {answers}, where there is no request");
            self.findings.differs(Kind::EventUnfounded, what);
        }
        None
    }

    /// The requests before the one that an event answers must have had theirs.
    fn skip(&mut self, partition: i32, requests: &mut Requests, answers: i64, offset: i64) {
        while let Some(skipped) = requests.offset().filter(|next| *next < answers) {
            let what =
                format!("partition {partition}: request {skipped} has no event (event {offset} answers request {answers})");
            self.findings.differs(Kind::RequestUnanswered, what);
            requests.pass();
        }
    }

    /// Whether the event is about this very request, and what the rules make of it in the state that the log has led to.
    fn judge(&mut self, request: &LoggedRequest, event: &Event, offset: i64) {
        let place = format!("partition {}: event {offset}", request.partition);
        let asked = request.request.as_ref().map(|r| r.id).unwrap_or_default();
        if event.request_id != asked {
            let what = format!(
                "{place} answers request {} at offset {}, where there is request {asked}",
                event.request_id, request.offset
            );
            return self.findings.differs(Kind::RequestReplaced, what);
        }
        if event.rules_version != RULES_VERSION {
            self.other_rules += 1;
            return;
        }
        let mut expected = decide(&self.state, request);
        if let Some(voucher) = refused_for_another_partition(event).filter(|v| !self.state.vouchers.contains_key(*v)) {
            self.elsewhere.push((request.partition, voucher.clone(), offset));
            expected = Event { voucher_seq: 0, remaining: 0, held: 0, body: event.body.clone(), ..expected };
        }
        if expected != *event {
            let what = format!("{place}: {}", changes(event, &expected, "by the rules"));
            self.findings.differs(Kind::Decision, what);
        }
    }

    /// Keeps a voucher as it is at the moment Redis was read, just before it moves on.
    fn remember(&mut self, voucher: &VoucherId) {
        let Some(now) = self.state.vouchers.get(voucher).cloned() else { return };
        let of_voucher = self.state.held.iter().filter(|((of, _), _)| of == voucher);
        let held = of_voucher.map(|((_, user), units)| (user.clone(), *units)).collect();
        self.at_redis.insert(voucher.clone(), AtRedis { voucher: now, live: self.sum(voucher).live, held });
    }

    /// Keeps the vouchers that have not moved on since Redis was read: all in one pass, since at rest these are all vouchers.
    pub(super) fn finish(&mut self, cut: &Cut<'_>) {
        for voucher in self.state.vouchers.values().filter(|v| cut.redis_seqs.get(&v.id) == Some(&v.seq)) {
            let live = self.sum(&voucher.id).live;
            self.at_redis.insert(voucher.id.clone(), AtRedis { voucher: voucher.clone(), live, held: HashMap::new() });
        }
        for ((voucher, user), units) in &self.state.held {
            let stands = self.state.vouchers.get(voucher).is_some_and(|v| cut.redis_seqs.get(voucher) == Some(&v.seq));
            if let Some(at) = self.at_redis.get_mut(voucher).filter(|_| stands) {
                at.held.insert(user.clone(), *units);
            }
        }
    }
}

pub(super) fn beyond_end(requests: &Walk, position: i64, end: i64) -> String {
    let Walk { partition, topic, .. } = requests;
    format!("partition {partition}: the lane stands at {position}, beyond the end {end} of {topic}")
}

pub(super) fn behind(partition: i32, offset: i64, answers: i64, position: i64) -> String {
    format!("partition {partition}: event {offset} answers request {answers}, but the lane's position is {position}")
}

/// Joins the states of different partitions, which share no voucher.
pub(crate) fn merge(into: &mut State, from: State, findings: &mut Findings) {
    for id in from.vouchers.keys().filter(|id| into.vouchers.contains_key(*id)) {
        findings.differs(Kind::VoucherPlace, format!("voucher {id} was opened on two partitions"));
    }
    into.vouchers.extend(from.vouchers);
    into.orders.extend(from.orders);
    into.held.extend(from.held);
    into.payments.extend(from.payments);
}

/// Each event must answer the request `next`: requests have no gaps, and each has one event. Gives the request that the next one must answer.
pub(crate) fn in_turn(next: i64, event: &Event, offset: i64, findings: &mut Findings) -> i64 {
    let (partition, answers) = (event.partition, event.request_offset);
    if answers > next {
        let what = format!(
            "partition {partition}: requests {next}..{answers} have no event before event {offset}, which answers {answers}"
        );
        findings.differs(Kind::RequestUnanswered, what);
    } else if answers < next {
        let what = format!("partition {partition}: event {offset} answers request {answers} again, or too late");
        findings.differs(Kind::EventRepeated, what);
    }
    answers.saturating_add(1).max(next)
}

/// The `voucher_seq` that the event's voucher has reached; the event must have the next one.
pub(crate) fn seq_before(state: &State, voucher: &VoucherId, event: &Event, offset: i64, findings: &mut Findings) -> i64 {
    let before = state.vouchers.get(voucher).map_or(0, |v| v.seq);
    if event.voucher_seq != before + 1 {
        let what = format!("voucher {voucher}: event {offset} has voucher_seq {} after {before}", event.voucher_seq);
        findings.differs(Kind::VoucherSeqGap, what);
    }
    before
}

/// The voucher of a publication that was refused because the voucher lives elsewhere.
fn refused_for_another_partition(event: &Event) -> Option<&VoucherId> {
    let refused = matches!(
        event.body,
        EventBody::RequestRefused { kind: RequestKind::VoucherPublished, reason: RefusalReason::AlreadyPublished, .. }
    );
    event.voucher_id.as_ref().filter(|_| refused && event.voucher_seq == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreadable(offset: i64) -> LoggedRequest {
        LoggedRequest { partition: 0, offset, appended_at: domain::Timestamp(0), request: None }
    }

    fn requests(offsets: &[i64]) -> Requests {
        Requests::new(offsets.iter().map(|offset| Ok(unreadable(*offset))).collect::<Vec<_>>().into_iter())
    }

    #[test]
    fn offsets_with_gaps_are_passed_in_order() {
        let offsets = [0, 1, 2, 5, 6, 9];
        let mut requests = requests(&offsets);
        let mut passed = Vec::new();
        while let Some(request) = requests.pass() {
            passed.push(request.offset);
        }
        assert_eq!((passed, requests.passed.len()), (offsets.to_vec(), 3));
        assert!(requests.has_passed(5) && !requests.has_passed(4) && !requests.has_passed(10));
        assert_eq!(requests.count().unwrap(), 6);
    }

    #[test]
    fn requests_that_cannot_be_read_to_their_end_are_not_counted() {
        let broken = [Ok(unreadable(0)), Err(ReplayError::Thread)];
        assert!(matches!(Requests::new(broken.into_iter()).count(), Err(ReplayError::Thread)));
    }

    fn refusal_of(request_offset: i64) -> Event {
        decide(&State::default(), &unreadable(request_offset))
    }

    fn found(answered: &[i64]) -> Vec<Kind> {
        let mut told = Told::default();
        let mut requests = requests(&[0, 1, 3]);
        for (offset, request) in answered.iter().enumerate() {
            let _ = told.answer(0, &mut requests, &refusal_of(*request), i64::try_from(offset).unwrap());
        }
        match told.findings.verdict() {
            crate::Verdict::Different { first, .. } => first.into_iter().map(|d| d.kind).collect(),
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

    #[test]
    fn what_an_event_beyond_the_cut_leaves_out_is_missed() {
        let cut = Cut { next_offset: Some(4), redis_seqs: &HashMap::new(), patience: Duration::ZERO };
        let (mut told, mut requests) = (Told::default(), requests(&[0, 1, 3]));
        for (offset, answers) in [(0, 0), (1, 4)] {
            told.take(&cut, &Early { position: 4, published: 0 }, &mut requests, refusal_of(answers), offset);
        }
        let counts = [(Kind::RequestUnanswered, 2)].into();
        assert!(matches!(told.findings.verdict(), crate::Verdict::Different { counts: found, .. } if found == counts));
        assert_eq!(requests.offset(), None);
    }
}
