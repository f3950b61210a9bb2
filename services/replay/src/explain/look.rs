//! Looks for an order's requests, and the events that answer them, in one partition.

use std::{
    collections::BTreeSet,
    ops::{ControlFlow, Range},
};

use domain::{LoggedRequest, OrderId, Timestamp};

use super::{Answer, Looked, Step};
use crate::{
    ReplayError,
    walk::{Log, Walk},
};

/// Where to look through requests: from `offset` or, where that is not known, from those appended at `since`; at least to those of `until`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) offset: Option<i64>,
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
}

/// What was found in one partition.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) steps: Vec<Step>,
    pub(super) looked_through: Vec<Looked>,
    /// Of both topics.
    pub(super) records_read: u64,
    pub(super) wrong: Vec<String>,
    /// What was asked for and is no longer in the log.
    pub(super) deleted: BTreeSet<String>,
}

/// Both topics of one partition. Everything here blocks.
pub(super) struct Partition {
    requests: Walk,
    events: Walk,
    found: Found,
}

impl Partition {
    pub(super) fn open(log: &Log, partition: i32) -> Result<Self, ReplayError> {
        Ok(Self { requests: log.requests(partition)?, events: log.events(partition)?, found: Found::default() })
    }

    /// Looks through `look` requests from each place, or (`deep`) through all from the first one on.
    pub(super) fn look(mut self, order: OrderId, places: &[Place], (look, deep): (i64, bool)) -> Result<Found, ReplayError> {
        let ends = self.requests.ends()?;
        let mut begins = Vec::new();
        for place in places {
            let offset = match place.offset {
                Some(offset) => offset,
                None => self.requests.offset_at(place.since)?.unwrap_or(ends.stable),
            };
            begins.push((offset, place.until));
        }
        begins.sort();
        let mut passed = 0;
        for (begin, until) in begins {
            if begin < ends.start {
                self.found.deleted.insert(self.requests.deleted(ends.start));
            }
            let from = begin.max(ends.start).max(passed);
            let enough = |request: &LoggedRequest| !deep && request.offset - begin >= look && request.appended_at > until;
            let requests = self.requests_about(order, from..ends.stable, enough, &mut passed)?;
            if passed > from {
                self.found.looked_through.push(Looked { partition: self.requests.partition, from, to: passed, end: ends.stable });
            }
            self.pair(requests)?;
        }
        self.found.records_read = self.requests.records_read + self.events.records_read;
        Ok(self.found)
    }

    /// Those of these requests that are about the order, until there is `enough`; `passed` is the offset up to which they were read.
    fn requests_about(
        &mut self,
        order: OrderId,
        offsets: Range<i64>,
        enough: impl Fn(&LoggedRequest) -> bool,
        passed: &mut i64,
    ) -> Result<Vec<LoggedRequest>, ReplayError> {
        let mut about = Vec::new();
        self.requests.each_request(offsets, |request| {
            if enough(&request) {
                return Ok(ControlFlow::Break(()));
            }
            *passed = request.offset + 1;
            if request.request.as_ref().and_then(|r| r.body.order_id()) == Some(order) {
                about.push(request);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(about)
    }

    /// Finds the events that answer these requests, which are in order.
    fn pair(&mut self, requests: Vec<LoggedRequest>) -> Result<(), ReplayError> {
        let (Some(first), Some(last)) = (requests.first(), requests.last().map(|last| last.offset)) else { return Ok(()) };
        let ends = self.events.ends()?;
        let hint = self.events.offset_at(first.appended_at)?.unwrap_or(ends.stable);
        let begin = self.events.first_answer(ends, first.offset, hint)?;
        let (mut answers, mut answered) = (Vec::new(), i64::MIN);
        self.events.timed_events(begin, ends.stable, |event, offset, appended_at| {
            answered = event.request_offset;
            if requests.binary_search_by_key(&answered, |request| request.offset).is_ok() {
                answers.push(Answer { why: event.why(), event, offset, appended_at, settled: None });
            }
            Ok(if answered >= last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let is_all_gone = ends.start > 0 && answered == i64::MIN && self.events.last()?.is_none();
        // One that was published twice is the audit's business.
        answers.dedup_by_key(|answer: &mut Answer| answer.event.request_offset);
        let mut answers = answers.into_iter().peekable();
        for request in requests {
            let answer = answers.next_if(|answer| answer.event.request_offset == request.offset);
            let is_lost = answer.is_none() && (is_all_gone || request.offset < answered);
            let is_answer_deleted = is_lost && ends.start > 0;
            if is_answer_deleted {
                self.found.deleted.insert(self.events.deleted(ends.start));
            } else if is_lost {
                let what = format!(
                    "request {} of partition {} has no event: `doorbuster audit`",
                    request.offset, self.requests.partition
                );
                self.found.wrong.push(what);
            }
            let LoggedRequest { partition, offset, appended_at, request } = request;
            let step = |request| Step { partition, offset, appended_at, request, answer, is_answer_deleted };
            self.found.steps.extend(request.map(step));
        }
        Ok(())
    }
}
