//! Events that Postgres has lost, folded into it from the log in chunks: by a lane that recovers ([`crate::recover`]), or by hand
//! ([`crate::catch_up`]). The position is locked, compared and moved with each chunk, so that both may do it at once.

use std::ops::ControlFlow;

use domain::{Event, EventBody, State};
use events::DecodeError;
use infra::{
    kafka::{Ends, PartitionReader, Record},
    postgres::lane::{LaneTransaction, Wanted},
};

use crate::next_step::LaneError;

/// Reads a record of `order-events`.
type EventOf<'a> = &'a dyn Fn(&Record) -> Result<Event, LaneError>;

/// The offset after the last request that the log answers.
pub(crate) fn answered(log: &mut PartitionReader, ends: Ends, event_of: EventOf<'_>) -> Result<i64, LaneError> {
    match log.last()? {
        Some(record) => Ok(event_of(&record)?.request_offset + 1),
        None if ends.start == 0 => Ok(0),
        // Taken for "nothing was published yet", everything would be decided once more.
        None => Err(LaneError::Deleted { start: ends.start, missing: "all answers".to_owned() }),
    }
}

/// Offset in the events topic from which the answer to `request` can be found; it is not below the request's own.
pub(crate) fn find_answer(log: &mut PartitionReader, ends: Ends, request: i64, event_of: EventOf<'_>) -> Result<i64, LaneError> {
    log.first_answer(ends, request, request, |record| Ok(event_of(record)?.request_offset))
}

/// The next events that answer `next_offset..answered`, at least one and at most `most` of them, one a request, and the offset of the last
/// of them. They are found from offset `from` on.
pub(crate) fn events_from(
    log: &mut PartitionReader,
    ends: Ends,
    from: i64,
    (next_offset, answered): (i64, i64),
    most: usize,
    event_of: EventOf<'_>,
) -> Result<(Vec<Event>, i64), LaneError> {
    let (mut events, mut last, mut failed) = (Vec::new(), from, None);
    let mut take = |record: &Record| -> Result<bool, LaneError> {
        let event = event_of(record)?;
        let (answers, expected) = (event.request_offset, next_offset + events.len() as i64);
        if answers < next_offset {
            return Ok(false);
        }
        if answers > expected && events.is_empty() && from == ends.start && from > 0 {
            let missing = format!("the answers to requests {expected}..{answers}");
            return Err(LaneError::Deleted { start: ends.start, missing });
        }
        if answers != expected {
            let problem = format!("the next event answers request {answers}");
            return Err(LaneError::CannotFold { request_offset: expected, voucher: event.voucher_id, problem });
        }
        last = record.offset;
        events.push(event);
        Ok(events.len() >= most || expected + 1 >= answered)
    };
    log.read(from, ends.stable, &mut |record| match take(&record) {
        Ok(false) => ControlFlow::Continue(()),
        Ok(true) => ControlFlow::Break(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    match failed {
        Some(error) => Err(error),
        None if events.is_empty() => {
            let problem = "its event is not in the log".to_owned();
            Err(LaneError::CannotFold { request_offset: next_offset, voucher: None, problem })
        }
        None => Ok((events, last)),
    }
}

/// Writes what these events, the answers from `next_offset` on, make of the rows, and moves the position behind them.
pub(crate) async fn write(transaction: &LaneTransaction<'_>, events: &[Event], next_offset: i64) -> Result<(), LaneError> {
    let (found, mut facts) = transaction.lock_and_read(&Wanted::by_events(events)).await?;
    if found != next_offset {
        return Err(LaneError::PositionDiffers { found, expected: next_offset });
    }
    for event in events {
        fits(&facts, event)?;
        facts.evolve(event);
    }
    Ok(transaction.write(&facts, events, next_offset, next_offset + events.len() as i64, &[]).await?)
}

/// What an event that cannot be read means.
pub(crate) fn foreign(offset: i64, error: DecodeError) -> LaneError {
    match error {
        DecodeError::UnknownKind(kind) => LaneError::NewerEvent { offset, kind },
        foreign => LaneError::ForeignEvent { offset, reason: foreign.to_string() },
    }
}

/// Whether an event continues what Postgres has of its voucher.
fn fits(facts: &State, event: &Event) -> Result<(), LaneError> {
    let Some(voucher_id) = event.voucher_id.as_ref().filter(|_| event.voucher_seq > 0) else { return Ok(()) };
    let voucher = facts.vouchers.get(voucher_id);
    let fits = match (&event.body, voucher) {
        (EventBody::VoucherOpened(_), None) => event.voucher_seq == 1,
        (EventBody::VoucherOpened(_), Some(_)) | (_, None) => false,
        (_, Some(voucher)) => voucher.seq + 1 == event.voucher_seq,
    };
    if fits {
        return Ok(());
    }
    let has = voucher.map_or("does not have it".to_owned(), |v| format!("has it at voucher_seq {}", v.seq));
    Err(LaneError::CannotFold {
        request_offset: event.request_offset,
        voucher: Some(voucher_id.clone()),
        problem: format!("its event has voucher_seq {}, but Postgres {has}", event.voucher_seq),
    })
}
