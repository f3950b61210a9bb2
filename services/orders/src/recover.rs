//! Where a partition stands: asked of Postgres and the log, in this order, by a lane that has just got its producer or met an error whose
//! outcome it does not know.
//!
//! First the position row, then (once nobody's transaction is open) the last event of the log. Another order stops a frozen lane for nothing.
//! The log itself says what was published: stored records beyond its last answer are published now; answers that Postgres does not have are
//! folded into it. The group's committed offsets are never read.

use std::time::{Duration, Instant};

use domain::Event;
use infra::{
    crash,
    kafka::{Ends, PartitionReader, Record},
    postgres::{OutRecord, lane::Position},
};

use crate::{
    fold,
    lane::{Lane, Phase},
    mailbox::Told,
    next_step::LaneError,
};

/// Pause between two looks at whether a foreign transaction is still open.
const OPEN_TRANSACTION_POLL: Duration = Duration::from_millis(10);
/// After this long, what is open is taken for abandoned: a commit of this partition's own id whose markers the broker left out when it
/// died. Nobody but a marker of the same id ends that.
const ABANDONED_AFTER: Duration = Duration::from_millis(500);
/// Between two tries to close it; a foreign transaction stays open until its writer or its time-out ends it.
const CLOSE_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What recovery does, once it knows where the partition stands.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    /// Postgres has lost commits that the log answers: fold requests `next_offset..answered`.
    Fold,
    /// Postgres is ahead: these of its stored records are missing in the log.
    Publish(Vec<OutRecord>),
    /// They agree.
    Continue,
}

/// `answered`: the offset after the last request that the log answers.
fn judge(answered: i64, position: &Position) -> Result<Judgement, LaneError> {
    let next_offset = position.next_offset;
    if answered > next_offset {
        return Ok(Judgement::Fold);
    }
    let missing: Vec<_> = position.records.iter().filter(|r| r.request_offset >= answered).cloned().collect();
    let lost = LaneError::LostEvents { answered, next_offset, stored: position.records.first().map(|r| r.request_offset) };
    let mut expected = answered;
    for record in &missing {
        match record.request_offset {
            offset if offset == expected => expected += 1,
            // A dead letter and the event of the same request stand next to each other.
            offset if offset + 1 == expected => {}
            _ => return Err(lost),
        }
    }
    if expected != next_offset {
        return Err(lost);
    }
    Ok(if missing.is_empty() { Judgement::Continue } else { Judgement::Publish(missing) })
}

impl Lane {
    pub(crate) fn recover(&mut self) -> Result<Phase, LaneError> {
        let position = self.with_database(async |session| session.position().await)?;
        self.mailbox.set_position(position.next_offset);
        crash::point("orders.recover");
        let mut log = match self.log.take() {
            Some(log) => log,
            None => {
                let connections = &self.service.config.connections;
                PartitionReader::open(connections, &connections.topics.events, self.partition)?
            }
        };
        let next = self.compare(&mut log, position);
        self.log = Some(log);
        next
    }

    /// The rest of recovery, with the position row read.
    fn compare(&mut self, log: &mut PartitionReader, position: Position) -> Result<Phase, LaneError> {
        let Some(ends) = self.until_nothing_is_open(log)? else { return Ok(Phase::Ended) };
        self.attempt("recover");
        let answered = fold::answered(log, ends, &|record| self.event_of(record))?;
        let next_offset = position.next_offset;
        let (start, end) = self.service.probe.requests(self.partition)?;
        let outside = LaneError::PositionOutside { next_offset, start, end };
        if next_offset > end {
            return Err(outside);
        }
        match judge(answered, &position)? {
            Judgement::Fold => self.fold(log, ends, next_offset, answered),
            Judgement::Publish(records) => Ok(Phase::Publish { records, next_offset, is_recovery: true }),
            Judgement::Continue if next_offset < start => Err(outside),
            Judgement::Continue => Ok(Phase::Seek { offset: next_offset }),
        }
    }

    /// Waits until the partition's last stable offset is its end; `None`: told to end meanwhile.
    fn until_nothing_is_open(&self, log: &PartitionReader) -> Result<Option<Ends>, LaneError> {
        let mut close_at = Instant::now() + ABANDONED_AFTER;
        loop {
            self.attempt("recover");
            let ends = log.ends()?;
            if ends.stable == ends.high {
                return Ok(Some(ends));
            }
            if Instant::now() >= close_at {
                tracing::warn!(stable = ends.stable, high = ends.high, "a transaction was left open: closing it, if it is ours");
                if let Some(producer) = &self.producer {
                    producer.abort_abandoned()?;
                }
                close_at = Instant::now() + CLOSE_AGAIN_AFTER;
            }
            self.mailbox.pause(Some(OPEN_TRANSACTION_POLL));
            if self.mailbox.told() > Told::Work {
                return Ok(None);
            }
        }
    }

    /// Folds one chunk of the events that Postgres does not have, then looks again.
    fn fold(&mut self, log: &mut PartitionReader, ends: Ends, next_offset: i64, answered: i64) -> Result<Phase, LaneError> {
        let from = match self.fold_from.filter(|(request, _)| *request == next_offset) {
            Some((_, event)) => event,
            None => fold::find_answer(log, ends, next_offset, &|record| self.event_of(record))?,
        };
        let most = self.service.config.fold_events;
        let (events, last) = fold::events_from(log, ends, from, (next_offset, answered), most, &|record| self.event_of(record))?;
        let upto = next_offset + events.len() as i64;
        self.attempt("fold");
        self.in_transaction(async |transaction| fold::write(transaction, &events, next_offset).await)?;
        crash::point("orders.folded");
        tracing::info!(from = next_offset, upto, answered, "folded events that Postgres had lost");
        self.service.metrics.folded.inc_by(events.len() as u64);
        self.fold_from = Some((upto, last + 1));
        Ok(Phase::Recover)
    }

    fn event_of(&self, record: &Record) -> Result<Event, LaneError> {
        self.attempt("recover");
        let read = self.read(|codec| codec.decode_event(&record.payload, self.partition))?;
        read.map_err(|error| fold::foreign(record.offset, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(topic: &str, request_offset: i64) -> OutRecord {
        OutRecord { topic: topic.into(), partition: 0, request_offset, key: None, payload: vec![], headers: vec![] }
    }

    fn position(next_offset: i64, stored: impl IntoIterator<Item = i64>) -> Position {
        Position { next_offset, records: stored.into_iter().map(|o| record("events", o)).collect() }
    }

    #[test]
    fn where_log_and_postgres_agree_the_lane_continues() {
        assert_eq!(judge(0, &position(0, [])).unwrap(), Judgement::Continue);
        assert_eq!(judge(5, &position(5, [3, 4])).unwrap(), Judgement::Continue);
        assert_eq!(judge(5, &position(5, [])).unwrap(), Judgement::Continue);
    }

    #[test]
    fn exactly_the_stored_records_that_the_log_lacks_are_published() {
        assert_eq!(judge(3, &position(5, [3, 4])).unwrap(), Judgement::Publish(position(5, [3, 4]).records));
        assert_eq!(judge(4, &position(5, [3, 4])).unwrap(), Judgement::Publish(position(5, [4]).records));
        let with_dead_letter =
            Position { next_offset: 2, records: vec![record("events", 0), record("dead", 1), record("events", 1)] };
        assert_eq!(judge(0, &with_dead_letter).unwrap(), Judgement::Publish(with_dead_letter.records.clone()));
    }

    #[test]
    fn a_log_that_is_ahead_is_folded() {
        assert_eq!(judge(6, &position(5, [3, 4])).unwrap(), Judgement::Fold);
        assert_eq!(judge(1, &position(0, [])).unwrap(), Judgement::Fold);
    }

    #[test]
    fn stored_records_that_do_not_continue_the_log_stop_the_lane() {
        for (answered, stored) in [(1, vec![3, 4]), (3, vec![]), (3, vec![4]), (2, vec![2, 4]), (3, vec![3])] {
            let judged = judge(answered, &position(5, stored.clone()));
            assert!(matches!(judged, Err(LaneError::LostEvents { .. })), "{answered} {stored:?}: {judged:?}");
        }
    }
}
