//! One batch from bytes to what is written and sent: decode, decide, evolve, encode. No I/O and no clock.

use domain::{Event, LoggedRequest, Request, State, decide};
use events::{Codec, DecodeError, Topics, dead_letter};
use infra::{kafka::Record, postgres::OutRecord};

use crate::next_step::LaneError;

/// Where dead letters go: the topic has one partition, so that they stay in one order.
const DEAD_LETTER_PARTITION: i32 = 0;

/// A batch whose records are all either read or known to be unreadable.
pub(crate) struct Decoded {
    pub(crate) requests: Vec<LoggedRequest>,
    /// Why each unreadable record is unreadable, by its place in the batch.
    unreadable: Vec<Option<String>>,
    /// Unreadable records in a row up to the end of the batch.
    pub(crate) unreadable_in_a_row: u64,
}

/// What deciding a batch makes.
pub(crate) struct Decision {
    pub(crate) events: Vec<Event>,
    /// Dead letters and events, in the order of their requests.
    pub(crate) records: Vec<OutRecord>,
}

/// Takes every record as `read` understands it. `unreadable_before`: how many before this batch were unreadable in a row.
pub(crate) fn decode(
    records: &[Record],
    unreadable_before: u64,
    max_in_a_row: u64,
    read: impl Fn(&Record) -> Result<Result<Request, DecodeError>, LaneError>,
) -> Result<Decoded, LaneError> {
    let mut decoded = Decoded {
        requests: Vec::with_capacity(records.len()),
        unreadable: Vec::with_capacity(records.len()),
        unreadable_in_a_row: unreadable_before,
    };
    for record in records {
        let (request, unreadable) = match read(record)? {
            Ok(request) => (Some(request), None),
            Err(DecodeError::UnknownKind(kind)) => return Err(LaneError::UnknownKind { offset: record.offset, kind }),
            Err(unreadable) => (None, Some(unreadable.to_string())),
        };
        decoded.unreadable_in_a_row = if request.is_some() { 0 } else { decoded.unreadable_in_a_row + 1 };
        if decoded.unreadable_in_a_row > max_in_a_row {
            let (count, offset) = (decoded.unreadable_in_a_row, record.offset);
            return Err(LaneError::TooManyDeadLetters { count, offset });
        }
        decoded.requests.push(LoggedRequest {
            partition: record.partition,
            offset: record.offset,
            appended_at: record.timestamp,
            request,
        });
        decoded.unreadable.push(unreadable);
    }
    Ok(decoded)
}

/// Decides every request in order on `facts`, which hold the state after the batch when it returns.
pub(crate) fn decide_all(
    codec: &Codec,
    topics: &Topics,
    records: &[Record],
    decoded: &Decoded,
    facts: &mut State,
) -> Result<Decision, LaneError> {
    let mut decision = Decision { events: Vec::with_capacity(records.len()), records: Vec::with_capacity(records.len()) };
    for ((record, request), unreadable) in records.iter().zip(&decoded.requests).zip(&decoded.unreadable) {
        let event = decide(facts, request);
        facts.evolve(&event);
        if let Some(reason) = unreadable {
            decision.records.push(dead_letter_of(topics, record, reason));
        }
        decision.records.push(OutRecord {
            topic: topics.events.clone(),
            partition: record.partition,
            request_offset: record.offset,
            key: match &event.voucher_id {
                Some(voucher) => Some(voucher.as_str().as_bytes().to_vec()),
                None => record.key.clone(),
            },
            payload: codec.encode_event(&event)?,
            headers: Vec::new(),
        });
        decision.events.push(event);
    }
    Ok(decision)
}

/// The record as found, with its own headers and those that say where it was found and why it is here.
fn dead_letter_of(topics: &Topics, record: &Record, reason: &str) -> OutRecord {
    let found = dead_letter::headers(&topics.requests, record.partition, record.offset, reason);
    OutRecord {
        topic: topics.dead_letters.clone(),
        partition: DEAD_LETTER_PARTITION,
        request_offset: record.offset,
        key: record.key.clone(),
        payload: record.payload.clone(),
        headers: record.headers.iter().cloned().chain(found).collect(),
    }
}
