//! One partition's events folded into the numbers of its vouchers, and nothing else: what is kept from audit to audit is small however long
//! the log is, so the next one reads on where the last one ended.

use std::{ops::ControlFlow, time::Instant};

use domain::{Event, VoucherId};

use super::log::{Cut, Told, behind, beyond_end, in_turn};
use crate::{
    ReplayError,
    verdict::{Findings, Kind},
    walk::{Log, PartitionRead, Walk},
};

/// A partition, folded up to an event.
pub(super) struct Sums {
    events: Walk,
    requests: Walk,
    /// Where the events ended before the snapshot of Postgres: what is below was committed there first.
    published: i64,
    /// The event to go on with.
    from: i64,
    /// The request that it must answer.
    next_request: i64,
    told: Told,
}

impl Sums {
    /// Opens a partition of which nothing is folded. Blocks.
    pub(super) fn open(log: &Log, partition: i32) -> Result<Self, ReplayError> {
        let (events, requests) = (log.events(partition)?, log.requests(partition)?);
        Self { events, requests, published: 0, from: 0, next_request: 0, told: Told::default() }.look()
    }

    pub(super) fn partition(&self) -> i32 {
        self.events.partition
    }

    /// Looks where the events end now. Blocks.
    pub(super) fn look(mut self) -> Result<Self, ReplayError> {
        self.events.whole()?;
        // What was folded must still be there, or nothing that is found from here on means anything.
        self.published = self.events.whole_from(self.from)?.stable;
        Ok(self)
    }

    /// Reads on to the cut, or from the beginning where Postgres or Redis stands before what is folded. Blocks.
    pub(super) fn read_on(mut self, cut: &Cut<'_>) -> Result<(Self, Told), ReplayError> {
        let (partition, position) = (self.events.partition, cut.next_offset.unwrap_or(0));
        let is_ahead = |(id, told): (&VoucherId, i64)| cut.redis_seqs.get(id).is_some_and(|seq| *seq < told);
        if position < self.next_request || self.told.state.vouchers.iter().map(|(id, v)| (id, v.seq)).any(is_ahead) {
            (self.from, self.next_request, self.told) = (0, 0, Told::default());
        }
        let (mut findings, mut is_late) = (Findings::default(), false);
        let ends = self.requests.whole()?;
        if position > ends.high {
            findings.differs(Kind::Position, beyond_end(&self.requests, position, ends.high));
        }
        let until = Instant::now() + cut.patience;
        let mut beyond = self.fold(self.published, cut, position, &mut findings)?;
        let wanted = position.min(ends.stable);
        if beyond.is_none() && self.next_request < wanted {
            match findings.unless_late(self.events.wait_answered(wanted, Some(self.from), until))? {
                Some(ends) => beyond = self.fold(ends.stable, cut, position, &mut findings)?,
                None => is_late = true,
            }
        }
        if let Some((offset, answers)) = beyond.filter(|(offset, _)| *offset < self.published) {
            findings.differs(Kind::PostgresBehind, behind(partition, offset, answers, position));
        }
        let mut told = self.told.clone();
        told.finish(cut);
        told.findings.add(findings);
        let (end, events, next_request) = (self.published, told.events, self.next_request);
        told.read = vec![PartitionRead { partition, begin: 0, end, events, next_request }];
        (told.requests, told.undecided) = (self.next_request.unsigned_abs(), (ends.high - position).max(0));
        told.is_late = is_late;
        self.told.at_redis.clear();
        Ok((self, told))
    }

    /// Folds the events below `to`; gives the first one that belongs behind the cut, and the request that it answers. `findings`: of this audit
    /// alone, since the next one comes to that event again.
    fn fold(
        &mut self,
        to: i64,
        cut: &Cut<'_>,
        position: i64,
        findings: &mut Findings,
    ) -> Result<Option<(i64, i64)>, ReplayError> {
        let Self { events, from, next_request, told, .. } = self;
        let mut beyond = None;
        events.events(*from, to, |event: Event, offset| {
            if event.request_offset >= position {
                // What it leaves out below the position has no answer, and will have none.
                in_turn(*next_request, &event, offset, findings);
                beyond = Some((offset, event.request_offset));
                return Ok(ControlFlow::Break(()));
            }
            told.events += 1;
            *next_request = in_turn(*next_request, &event, offset, &mut told.findings);
            told.evolve(cut, &event, offset);
            told.state.orders.clear();
            told.state.held.clear();
            told.state.payments.clear();
            Ok(ControlFlow::Continue(()))
        })?;
        *from = beyond.map_or(to, |(offset, _)| offset).max(*from);
        Ok(beyond)
    }
}
