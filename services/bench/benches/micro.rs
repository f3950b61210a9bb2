//! Micro benchmarks: `cargo bench --package bench`. The scripts run on a Redis of their own.

use std::time::Instant;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use devstack::redis::RedisOptions;
use domain::{Event, EventBody, LoggedRequest, OrderId, Request, RequestBody, State, Terms, Timestamp, decide, testing};
use events::Codec;
use infra::redis::{Reserve, Settle, Store};
use tokio::runtime::Runtime;
use uuid::Uuid;

/// Requests in a lane's transaction, events in a pipeline: the defaults.
const BATCH: u64 = 500;

fn logged(offset: u64, body: RequestBody) -> LoggedRequest {
    let request =
        Request { id: Uuid::new_v4(), voucher_id: testing::voucher_id(), actor: "purchase".to_owned(), reason: None, body };
    let appended_at = testing::BEGINS.plus(1);
    LoggedRequest { partition: testing::PARTITION, offset: offset as i64, appended_at, request: Some(request) }
}

fn orders(count: u64) -> Vec<LoggedRequest> {
    (1..=count).map(|offset| logged(offset, testing::order(&Uuid::new_v4().to_string(), 1))).collect()
}

/// A sale with enough for everybody that goes on for ever.
fn terms() -> Terms {
    Terms { total: 1_000_000_000, begins_at: Timestamp(0), ends_at: *Timestamp::CALENDAR.end(), ..testing::terms() }
}

fn opened(state: &mut State) -> Event {
    let event = decide(state, &logged(0, RequestBody::VoucherPublished(terms())));
    state.evolve(&event);
    event
}

fn rules(c: &mut Criterion) {
    let mut facts = State::default();
    opened(&mut facts);
    let requests = orders(BATCH);
    let mut group = c.benchmark_group("rules");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("decide and evolve a batch", |b| {
        b.iter_batched(
            || facts.clone(),
            |mut facts| {
                for request in &requests {
                    let event = decide(&facts, request);
                    facts.evolve(&event);
                }
                facts
            },
            BatchSize::SmallInput,
        );
    });
}

fn codec(c: &mut Criterion) {
    let codec = Codec::offline();
    let mut facts = State::default();
    opened(&mut facts);
    let logged = orders(1).remove(0);
    let (event, request) = (decide(&facts, &logged), logged.request.expect("it is one"));
    let (request_bytes, event_bytes) =
        (codec.encode_request(&request).expect("it can be written"), codec.encode_event(&event).expect("it can be written"));
    let mut group = c.benchmark_group("codec");
    group.bench_function("encode a request", |b| b.iter(|| codec.encode_request(&request)));
    group.bench_function("decode a request", |b| b.iter(|| codec.decode_request(&request_bytes)));
    group.bench_function("encode an event", |b| b.iter(|| codec.encode_event(&event)));
    group.bench_function("decode an event", |b| b.iter(|| codec.decode_event(&event_bytes, testing::PARTITION)));
}

fn scripts(c: &mut Criterion) {
    let redis = devstack::redis::start(RedisOptions::default()).expect("Redis starts: `make setup` installs it");
    let runtime = Runtime::new().expect("a runtime can be built");
    let store = runtime.block_on(Store::connect(redis.endpoint())).expect("Redis answers");
    let voucher = testing::voucher_id();
    let mut seq = 1;
    runtime.block_on(async {
        store.settle(&[(opened(&mut State::default()), 0)]).await.expect("it is settled");
        store.raise_fence(&voucher, testing::PARTITION, "micro", false).await.expect("the fence is raised");
        assert!(store.open_gate(&voucher, "micro", 1).await.expect("the gate is asked"));
    });
    let mut group = c.benchmark_group("scripts");
    group.bench_function("reserve", |b| {
        b.iter_custom(|count| {
            let buyers: Vec<(OrderId, String)> = (0..count)
                .map(|_| Uuid::new_v4().to_string())
                .map(|name| (testing::order_id_of(&voucher, &name, "1"), name))
                .collect();
            let began = Instant::now();
            for (order, name) in &buyers {
                let answer = runtime.block_on(store.reserve(&voucher, order, &testing::user(name), 1, "token"));
                assert!(matches!(answer, Ok(Reserve::Reserved { .. })), "{answer:?}");
            }
            began.elapsed()
        });
    });
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("settle a pipeline", |b| {
        b.iter_custom(|count| {
            let mut took = std::time::Duration::ZERO;
            for _ in 0..count {
                let events: Vec<(Event, i64)> = orders(BATCH).into_iter().map(|request| confirmed(request, &mut seq)).collect();
                let began = Instant::now();
                let answers = runtime.block_on(store.settle(&events)).expect("Redis answers");
                took += began.elapsed();
                assert!(answers.iter().all(|answer| *answer == Settle::Applied));
            }
            took
        });
    });
}

/// The event that confirms this order as the next of its voucher, and its offset.
fn confirmed(request: LoggedRequest, seq: &mut i64) -> (Event, i64) {
    *seq += 1;
    let logged_at = request.appended_at;
    let request = request.request.expect("it is one");
    let RequestBody::OrderRequested { order_id, user_id, quantity, requested_at } = request.body else { unreachable!() };
    let event = Event {
        voucher_id: Some(request.voucher_id),
        voucher_seq: *seq,
        partition: testing::PARTITION,
        request_offset: *seq,
        request_id: request.id,
        decided_at: logged_at,
        rules_version: domain::RULES_VERSION,
        remaining: 0,
        held: 1,
        body: EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at: None, slot: *seq },
    };
    (event, *seq)
}

criterion_group!(benches, rules, codec, scripts);
criterion_main!(benches);
