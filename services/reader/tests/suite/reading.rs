//! The runner: where it begins, what it hands over, when it says that it is live, and what it refuses.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::{LoggedRequest, State, Timestamp, decide};
use doorbuster_reader::{
    Batch, BoxError, Log, Options, Positions, Projection, ReaderError, Skipped, Start, Summary, WhySkipped, run,
};
use rdkafka::{
    Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
    producer::{BaseProducer, BaseRecord, Producer},
};
use testkit::{World, block_on, wait_until_async};

const PATIENCE: Duration = Duration::from_secs(30);

/// What a projection was given, seen from outside.
#[derive(Clone, Default)]
struct Given(Arc<Mutex<Seen>>);

#[derive(Clone, Default)]
struct Seen {
    stored: Positions,
    batches: Vec<Batch>,
    /// How many batches there were whenever it was told that it is live.
    live: Vec<usize>,
}

impl Seen {
    /// Partition, and the request that the event answers.
    fn events(&self) -> Vec<(i32, i64)> {
        let events = self.batches.iter().flat_map(|batch| &batch.events);
        events.map(|logged| (logged.event.partition, logged.event.request_offset)).collect()
    }

    fn of(&self, partition: i32) -> Vec<i64> {
        self.events().into_iter().filter(|(of, _)| *of == partition).map(|(_, request)| request).collect()
    }
}

impl Given {
    fn seen(&self) -> Seen {
        self.0.lock().unwrap().clone()
    }
}

impl Projection for Given {
    async fn positions(&mut self) -> Result<Positions, BoxError> {
        Ok(self.seen().stored)
    }

    async fn apply(&mut self, batch: Batch) -> Result<(), BoxError> {
        let mut seen = self.0.lock().unwrap();
        assert!(batch.from.keys().eq(batch.to.keys()) && batch.from != batch.to, "{batch:?}");
        for (partition, from) in &batch.from {
            let stored = seen.stored.get(partition).unwrap_or(from);
            assert_eq!(stored, from, "no batch begins but where the last one ended");
        }
        seen.stored.extend(batch.to.clone());
        seen.batches.push(batch);
        Ok(())
    }

    async fn live(&mut self) -> Result<(), BoxError> {
        let mut seen = self.0.lock().unwrap();
        let batches = seen.batches.len();
        seen.live.push(batches);
        Ok(())
    }
}

fn options(start: Start) -> Options {
    Options { start, max_records: 2, ..Options::default() }
}

/// Runs until `enough`.
fn read(world: &World, given: &Given, options: Options, enough: impl Fn(&Seen) -> bool) -> Result<Summary, ReaderError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = Log::connect(&world.env()).await.unwrap();
        let stop = wait_until_async(PATIENCE, "enough to be read", async || enough(&given.seen()));
        run(&log, options, &mut given.clone(), stop).await
    })
}

/// A run can be a task of its own.
#[allow(dead_code)]
fn is_send(log: &'static Log, given: &'static mut Given) -> impl Send {
    run(log, Options::default(), given, std::future::pending())
}

/// As [`read`], until it is live, from nothing.
fn read_history(world: &World, start: Start) -> Seen {
    let given = Given::default();
    read(world, &given, options(start), |seen| !seen.live.is_empty()).unwrap();
    given.seen()
}

/// The refusal of an unreadable request: small, and told from others by its offset.
fn payload(world: &World, partition: i32, request: i64) -> Vec<u8> {
    let unreadable = LoggedRequest { partition, offset: request, appended_at: Timestamp(0), request: None };
    world.codec().encode_event(&decide(&State::default(), &unreadable)).unwrap()
}

fn append(world: &World, partition: i32, requests: std::ops::Range<i64>) {
    let topic = &world.connections().topics.events;
    for request in requests {
        world.append(topic, partition, b"", &payload(world, partition, request));
    }
}

/// Writes to partition 2 in transactions.
struct Lane<'a>(&'a World, BaseProducer);

impl<'a> Lane<'a> {
    fn new(world: &'a World) -> Self {
        let mut config = infra::kafka::client_config(world.connections());
        let producer: BaseProducer =
            config.set("transactional.id", format!("{}-test", world.connections().prefix)).create().unwrap();
        producer.init_transactions(PATIENCE).unwrap();
        Self(world, producer)
    }

    /// Begins a transaction and has the answer to this request acknowledged in it.
    fn open(&self, request: i64) {
        self.1.begin_transaction().unwrap();
        let payload = payload(self.0, 2, request);
        let record = BaseRecord::<(), _>::to(&self.0.connections().topics.events).partition(2).payload(&payload);
        self.1.send(record).map_err(|(e, _)| e).unwrap();
        self.1.flush(PATIENCE).unwrap();
    }

    fn commit(&self, request: i64) {
        self.open(request);
        self.1.commit_transaction(PATIENCE).unwrap();
    }
}

fn world() -> World {
    let world = World::builder().partitions(3).build();
    // The broker knows of it.
    for partition in 0..3 {
        world.ends(&world.connections().topics.events, partition);
    }
    world
}

#[test]
fn live_is_told_once_past_an_empty_partition_an_abort_and_an_open_transaction() {
    let world = world();
    assert_eq!(read_history(&world, Start::Beginning).live, [0], "nothing to read is all history, too");
    append(&world, 0, 0..5);
    let lane = Lane::new(&world);
    lane.commit(10);
    lane.commit(11);
    lane.open(12);
    lane.1.abort_transaction(PATIENCE).unwrap();
    lane.open(13);

    let given = Given::default();
    std::thread::scope(|scope| {
        let later = scope.spawn(|| {
            testkit::wait_until(PATIENCE, "it to be live", || !given.seen().live.is_empty());
            let seen = given.seen();
            assert_eq!((seen.of(0), seen.of(2)), ((0..5).collect(), vec![10, 11]));
            lane.1.commit_transaction(PATIENCE).unwrap();
            append(&world, 0, 5..6);
            append(&world, 1, 20..21);
        });
        let summary = read(&world, &given, options(Start::Beginning), |seen| seen.events().len() == 10).unwrap();
        later.join().unwrap();
        let seen = given.seen();
        assert_eq!((seen.of(0), seen.of(1), seen.of(2)), ((0..6).collect(), vec![20], vec![10, 11, 13]));
        assert!(seen.batches.iter().all(|batch| batch.events.len() <= 2), "{:?}", seen.batches);
        assert_eq!(seen.live.len(), 1);
        assert_eq!((summary.events, summary.unknown_kinds, summary.unreadable, summary.is_live), (10, 0, 0, true));
        assert_eq!(summary.positions, seen.stored);
    });
    // Only one partition, and no event again.
    append(&world, 0, 6..7);
    append(&world, 1, 21..22);
    let one = Options { partitions: Some(vec![1]), ..options(Start::Beginning) };
    let summary = read(&world, &given, one, |seen| seen.live.len() == 2).unwrap();
    assert_eq!((summary.events, given.seen().of(1)), (1, vec![20, 21]));
}

#[test]
fn reading_begins_where_it_is_told_unless_a_position_is_stored() {
    let world = world();
    append(&world, 0, 0..3);
    append(&world, 1, 0..1);
    let before = world.records(&world.connections().topics.events, 1)[0].timestamp;
    testkit::wait_until(PATIENCE, "the next millisecond", || {
        append(&world, 2, 0..1);
        world.records(&world.connections().topics.events, 2).last().is_some_and(|record| record.timestamp > before)
    });
    append(&world, 0, 3..5);
    let from = Start::Offsets(Positions::from([(0, 4)]));
    let seen = read_history(&world, from.clone());
    assert_eq!((seen.of(0), seen.of(1)), (vec![4], vec![0]));
    let seen = read_history(&world, Start::Time(before.plus(1)));
    assert_eq!((seen.of(0), seen.of(1)), (vec![3, 4], vec![]));

    let given = Given::default();
    given.0.lock().unwrap().stored = Positions::from([(0, 2)]);
    read(&world, &given, options(from), |seen| !seen.live.is_empty()).unwrap();
    assert_eq!((given.seen().of(0), given.seen().of(1)), (vec![2, 3, 4], vec![0]));
}

#[test]
fn deleted_history_and_positions_of_another_log_are_errors_that_name_them() {
    let world = world();
    append(&world, 0, 0..5);
    let topic = &world.connections().topics.events;
    let refused = |start: Start| {
        let given = Given::default();
        let error = read(&world, &given, options(start), |_| false).unwrap_err();
        assert!(given.seen().batches.is_empty() && given.seen().live.is_empty());
        error
    };
    let error = refused(Start::Offsets(Positions::from([(0, 9)])));
    assert!(matches!(&error, ReaderError::BeyondEnd { partition: 0, position: 9, end: 5, .. }), "{error}");
    let named = [Options { partitions: Some(vec![7]), ..Options::default() }, options(Start::Offsets(Positions::from([(7, 0)])))];
    for options in named {
        let error = read(&world, &Given::default(), options, |_| false).unwrap_err();
        assert!(error.to_string().contains("partitions 0 to 2, not 7"), "{error}");
    }

    let admin: AdminClient<DefaultClientContext> = infra::kafka::client_config(world.connections()).create().unwrap();
    let mut deleted = TopicPartitionList::new();
    deleted.add_partition_offset(topic, 0, Offset::Offset(3)).unwrap();
    block_on(async { admin.delete_records(&deleted, &AdminOptions::new()).await }).unwrap();
    let error = refused(Start::Beginning);
    assert!(matches!(&error, ReaderError::Deleted { partition: 0, missing, .. } if *missing == (0..3)), "{error}");
    assert!(error.to_string().contains("offsets 0..3 were deleted"), "{error}");
    assert_eq!(read_history(&world, Start::Offsets(Positions::from([(0, 3)]))).of(0), [3, 4]);
    assert_eq!(read_history(&world, Start::Time(Timestamp(0))).of(0), [3, 4], "what is left");
}

/// The topic was made anew with less in it: under a run, and before the next one.
#[test]
fn a_log_that_lost_its_end_is_an_error_that_names_it() {
    let world = world();
    append(&world, 0, 0..5);
    let topic = &world.connections().topics.events;
    let given = Given::default();
    let lost = || {
        // Not all partitions: else a look for new ones could find none at all.
        let options = Options { partitions: Some(vec![0]), ..options(Start::Beginning) };
        let error = read(&world, &given, options, |_| false).unwrap_err();
        let text = error.to_string();
        let ReaderError::BeyondEnd { partition: 0, position: 5, end, .. } = error else { panic!("{text}") };
        assert!(text.contains(topic) && text.contains(&format!("position 5 is beyond the log's end {end}")), "{text}");
        assert_eq!(given.seen().of(0), [0, 1, 2, 3, 4]);
        end
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            testkit::wait_until(PATIENCE, "it to be live", || !given.seen().live.is_empty());
            world.remake_topic(topic);
        });
        assert_eq!(lost(), 0);
    });
    append(&world, 0, 0..2);
    assert_eq!(lost(), 2);
}

#[test]
fn what_is_no_event_to_this_version_is_skipped_counted_and_named() {
    let world = world();
    let topic = &world.connections().topics.events;
    append(&world, 0, 0..1);
    world.append(topic, 0, b"", b"rubbish");
    // A version with one kind more: its record is as this version's, but for the schema's id and the kind.
    let symbols = "\"RequestRefused\"\n        ],\n        \"default\"";
    let newer = events::EVENT_SCHEMA.replacen(symbols, "\"RequestRefused\", \"VoucherGiven\"],\n        \"default\"", 1);
    assert_ne!(newer, events::EVENT_SCHEMA);
    let registry = world.connections().schema_registry().unwrap();
    let id = block_on(registry.register(&format!("{topic}-value"), &newer)).unwrap();
    let mut bytes = payload(&world, 0, 1);
    bytes.splice(1..5, id.to_be_bytes());
    // RequestRefused is symbol 9, in Avro's zigzag 18; eight bodies that are null follow, and its own.
    let kind = [18, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let at = bytes.windows(kind.len()).position(|window| window == kind).unwrap();
    bytes[at] = 20;
    world.append(topic, 0, b"", &bytes);
    append(&world, 0, 2..3);

    let given = Given::default();
    let summary = read(&world, &given, options(Start::Beginning), |seen| !seen.live.is_empty()).unwrap();
    assert_eq!((summary.events, summary.unknown_kinds, summary.unreadable), (2, 1, 1));
    let seen = given.seen();
    assert_eq!(seen.of(0), [0, 2]);
    let skipped: Vec<&Skipped> = seen.batches.iter().flat_map(|batch| &batch.skipped).collect();
    assert!(
        matches!(
            &skipped[..],
            [Skipped { partition: 0, offset: 1, why: WhySkipped::Unreadable(_) }, Skipped { partition: 0, offset: 2, why: WhySkipped::UnknownKind(kind) }]
                if kind == "VoucherGiven"
        ),
        "{skipped:?}"
    );
}
