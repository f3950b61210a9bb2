//! How often the hot paths ask for memory, held to a table: it counts the same on any machine, however busy, so a change that costs is seen at once.
//!
//! Counted by thread, in a debug build (what `make test` runs), after one run that fills what is made once. An exact table: whoever makes a path
//! cheaper writes the new figure down in the same commit.

use domain::{Event, EventBody, LoggedRequest, Request, State, Terms, Timestamp, decide, testing};
use events::Codec;
use infra::postgres::{OutRecord, lane::Wanted};
use uuid::Uuid;

/// Requests in a lane's transaction, by default.
const BATCH: usize = 500;

fn requests() -> Vec<LoggedRequest> {
    let request = |index: usize| Request {
        id: Uuid::from_u128(index as u128 + 1),
        voucher_id: testing::voucher_id(),
        actor: "purchase".to_owned(),
        reason: None,
        body: testing::order(&format!("a buyer with a name as long as a UUID {index:4}"), 1),
    };
    let logged = |index| LoggedRequest {
        partition: testing::PARTITION,
        offset: index as i64,
        appended_at: Timestamp(1_000_001),
        request: Some(request(index)),
    };
    (0..BATCH).map(logged).collect()
}

/// The facts of a voucher with enough for everybody.
fn facts() -> State {
    let terms = Terms { total: 1_000_000, ..testing::terms() };
    let mut state = State::default();
    let published = LoggedRequest {
        partition: testing::PARTITION,
        offset: 0,
        appended_at: testing::BEGINS,
        request: Some(Request {
            id: Uuid::nil(),
            voucher_id: testing::voucher_id(),
            actor: "test".to_owned(),
            reason: None,
            body: domain::RequestBody::VoucherPublished(terms),
        }),
    };
    let event = decide(&state, &published);
    state.evolve(&event);
    state
}

fn decided(requests: &[LoggedRequest]) -> Vec<Event> {
    let mut facts = facts();
    let one = |request| {
        let event = decide(&facts, request);
        assert!(matches!(event.body, EventBody::OrderConfirmed { .. }), "{event:?}");
        facts.evolve(&event);
        event
    };
    requests.iter().map(one).collect()
}

/// Allocations of `work` once it has run before.
fn counted<T>(mut work: impl FnMut() -> T) -> u64 {
    drop(work());
    allocation_counter::measure(|| drop(work())).count_total
}

#[test]
fn hot_paths_allocate_as_often_as_the_table_says() {
    let (codec, requests) = (Codec::offline(), requests());
    let (events, request) = (decided(&requests), requests[0].request.as_ref().unwrap());
    let (request_bytes, event_bytes) = (codec.encode_request(request).unwrap(), codec.encode_event(&events[0]).unwrap());
    let record = |event: &Event| OutRecord {
        topic: "order-events".to_owned(),
        partition: event.partition,
        request_offset: event.request_offset,
        key: None,
        payload: codec.encode_event(event).unwrap(),
        headers: Vec::new(),
    };
    let records: Vec<OutRecord> = events.iter().map(record).collect();
    let (request_of, event_of) = (|bytes| codec.decode_request(bytes).unwrap(), |bytes| codec.decode_event(bytes, 0).unwrap());
    let found = [
        ("encode a request", counted(|| codec.encode_request(request).unwrap())),
        ("decode a request", counted(|| request_of(&request_bytes))),
        ("encode an event", counted(|| codec.encode_event(&events[0]).unwrap())),
        ("decode an event", counted(|| event_of(&event_bytes))),
        ("name the facts of a batch", counted(|| Wanted::by_requests(&requests))),
        ("decide and evolve a batch", counted(|| decided(&requests))),
        ("store the records of a batch", counted(|| OutRecord::encode_all(&records))),
    ];
    let table = [
        ("encode a request", 10),
        ("decode a request", 7),
        ("encode an event", 5),
        ("decode an event", 5),
        ("name the facts of a batch", 1_519),
        ("decide and evolve a batch", 5_032),
        ("store the records of a batch", 2),
    ];
    assert_eq!(found, table);
}
