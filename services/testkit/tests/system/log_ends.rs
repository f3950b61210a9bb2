//! Where the log ends is no record to wait for: markers, what was aborted, nothing at all, a transaction that is still open. Whoever reads it
//! ends by position, says how far he came in each partition, and gives up on what does not come.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use devstack::redis;
use domain::{Event, LoggedRequest, State};
use infra::{config::Connections, kafka::client_config};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use replay::{AuditOptions, Auditor, Verdict};
use testkit::{END_DEADLINE, World, binary, block_on, doorbuster, order_request, wait_until};

use crate::{
    audit_finds::on_database,
    rebuild::{execute, waiting},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Longest a command may take: far above what it needs, far below a stalled reader's limit for each partition.
const LIMIT: Duration = Duration::from_secs(30);

/// Appends a request for a voucher that nobody knows to the partition; gives the refusal that a lane would answer it with.
fn refused(world: &World, partition: i32) -> Event {
    let voucher = world.voucher_id();
    let request = order_request(&voucher, world.order_id(&voucher, "ann", None), "ann", 1);
    let offset = world.append_request(partition, &request);
    let records = world.records(&world.connections().topics.requests, partition);
    let appended_at = records.last().unwrap().timestamp;
    domain::decide(&State::default(), &LoggedRequest { partition, offset, appended_at, request: Some(request) })
}

/// Begins a transaction with this event in it.
fn begin(world: &World, event: &Event) -> BaseProducer {
    let connections: &Connections = world.connections();
    let mut config = client_config(connections);
    config.set("transactional.id", format!("{}-test-{}", connections.prefix, event.partition));
    // Open for as long as the test takes.
    config.set("transaction.timeout.ms", "600000");
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    let bytes = world.codec().encode_event(event).unwrap();
    let key = event.voucher_id.as_ref().unwrap().as_str().as_bytes().to_vec();
    producer
        .send(BaseRecord::to(&connections.topics.events).partition(event.partition).key(&key).payload(&bytes))
        .map_err(|(error, _)| error)
        .unwrap();
    producer.flush(PATIENCE).unwrap();
    producer
}

#[test]
fn every_reader_ends_by_position_and_says_where() {
    let redis = redis::start(redis::RedisOptions::default()).unwrap();
    let world = World::builder().redis(redis.endpoint()).partitions(4).build();
    // Partition 0 stays empty, 1 ends in the marker of a commit, 2 in that of an abort, 3 in a transaction that is open.
    for partition in 1..4 {
        begin(&world, &refused(&world, partition)).commit_transaction(PATIENCE).unwrap();
    }
    begin(&world, &refused(&world, 2)).abort_transaction(PATIENCE).unwrap();
    let open = begin(&world, &refused(&world, 3));
    let (code, text) = doorbuster(&world, &["catch-up", "orders", "--apply"]);
    assert_eq!((code, text.matches("did: fold 1 events").count()), (0, 3), "{text}");

    let told = |args: &[&str]| -> (i32, serde_json::Value) {
        let started = Instant::now();
        let (code, text) = doorbuster(&world, args);
        assert!(started.elapsed() < LIMIT, "{args:?} took {:?}", started.elapsed());
        (code, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{args:?}: {text}")))
    };
    let ends: Vec<i64> = (0..4).map(|p| world.ends(&world.connections().topics.events, p).stable).collect();
    assert_eq!(ends, [0, 2, 4, 2]);
    for (args, field) in [
        (&["rebuild", "orders", "--json"][..], "partitions"),
        (&["verify", "decisions", "--json"], "read"),
        (&["audit", "--json"], "read"),
    ] {
        let (code, json) = told(args);
        let read = |name: &str| -> Vec<i64> {
            json[field].as_array().unwrap().iter().map(|partition| partition[name].as_i64().unwrap()).collect()
        };
        assert_eq!((code, read("end"), read("events")), (0, ends.clone(), vec![0, 1, 1, 1]), "{args:?}: {json}");
        assert_eq!(read("next_request"), [0, 1, 1, 1], "{args:?}: {json}");
    }
    for (partition, events) in [(0, 0), (1, 1), (2, 1), (3, 1)] {
        let (code, text) = doorbuster(&world, &["tail", "events", "--partition", &partition.to_string()]);
        assert_eq!((code, text.lines().filter(|line| line.starts_with('{')).count()), (0, events), "{text}");
        let proof = format!("partition {partition}: read from offset 0 to {}", ends[partition as usize]);
        assert!(text.contains(&proof), "{text}");
    }

    // An offset in the open transaction is there, one behind the end is not.
    for (partition, offset, code) in [(2, 4, 0), (2, 5, 2), (3, 2, 0), (3, 3, 0), (3, 4, 2)] {
        let args = ["tail", "events", "--partition", &partition.to_string(), "--offset", &offset.to_string()];
        let (found, text) = doorbuster(&world, &args);
        let words = if code == 0 { format!("read from offset {offset} to {offset}") } else { format!("but {offset} is needed") };
        assert!(found == code && text.contains(&words), "{args:?}: {found}: {text}");
    }

    // Decided by Postgres, and in a transaction that nobody ends.
    execute(&world, "UPDATE lane_positions SET next_offset = 2 WHERE partition = 3");
    for args in [&["rebuild", "orders", "--json", "--patience", "500ms"][..], &["audit", "--json", "--patience", "500ms"]] {
        let (code, json) = told(args);
        assert!(
            code == 2 && json["reasons"][0].as_str().unwrap().contains("partition 3: request 1 is decided"),
            "{args:?}: {json}"
        );
    }
    let started = Instant::now();
    let file = std::env::temp_dir().join(format!("{}.snapshot", world.connections().prefix));
    let export = ["snapshot", "export", file.to_str().unwrap(), "--patience", "500ms"];
    let (code, text) = doorbuster(&world, &export);
    assert!(code == 2 && text.contains("partition 3: request 1 is decided") && !file.exists(), "{code}: {text}");
    assert!(started.elapsed() < LIMIT);
    let rows = on_database(&world, async |client| client.query_one("SELECT count(*) FROM orders", &[]).await);
    assert_eq!(rows.get::<_, i64>(0), 0);
    open.abort_transaction(PATIENCE).unwrap();
}

/// The topic was made anew with less in it, and all else still fits together: Postgres stands where the last round read to.
#[test]
fn a_watch_does_not_call_a_log_equal_that_lost_its_end() {
    let redis = redis::start(redis::RedisOptions::default()).unwrap();
    let world = World::builder().redis(redis.endpoint()).partitions(1).build();
    let events: Vec<Event> = (0..3).map(|_| refused(&world, 0)).collect();
    let append = |events: &[Event]| {
        events.iter().for_each(|event| {
            world.append_event(0, event);
        });
    };
    append(&events);
    let (code, text) = doorbuster(&world, &["catch-up", "orders", "--apply"]);
    assert!(code == 0 && text.contains("did: fold 3 events"), "{code}: {text}");
    let options = AuditOptions { patience: Duration::from_millis(200), deep: false };
    let mut auditor = Auditor::new(world.connections(), &world.codec(), options);
    assert_eq!(block_on(auditor.audit()).verdict, Verdict::Equal);
    let watch = world.launch_service_with("audit", "watch", &[], |program| {
        let args = ["audit", "--watch", "--every", "100ms", "--patience", "200ms"];
        program.args = args.map(str::to_owned).to_vec();
    });
    let said = |what: &str| watch.process.log_tail(5).contains(what);
    wait_until(PATIENCE, "a round", || said("Z equal: "));

    world.remake_topic(&world.connections().topics.events);
    append(&events[..1]);
    let Verdict::CannotTell { reasons } = block_on(auditor.audit()).verdict else { panic!("the log has lost its end") };
    assert!(reasons[0].contains("ends at offset 1, but was read up to 3 before"), "{reasons:?}");
    wait_until(PATIENCE, "a round that cannot tell", || !said("Z equal: ") && said("Z could not tell"));
    let ended = watch.process.terminate(END_DEADLINE).unwrap();
    assert_eq!(ended.code(), Some(2), "{}", watch.process.log_tail(30));
}

/// A lane commits first and publishes then. So the log is looked at before Postgres: in the other order, whatever a lane decides and publishes
/// between the two looks would be taken for lost.
#[test]
fn a_catch_up_looks_at_the_log_before_it_looks_at_postgres() {
    let world = World::builder().partitions(1).build();
    world.append_event(0, &refused(&world, 0));
    let late = refused(&world, 0);
    let (code, text) = doorbuster(&world, &["catch-up", "orders", "--apply"]);
    assert!(code == 0 && text.contains("did: fold 1 events"), "{code}: {text}");

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let holder = runtime.block_on(world.postgres());
    runtime.block_on(holder.batch_execute("BEGIN; LOCK TABLE lane_positions")).unwrap();
    let patient = format!("{}?options=-c%20lock_timeout%3D0", world.connections().postgres);
    let mut command = Command::new(binary());
    command.args(["catch-up", "orders"]).envs(world.env_vars()).env("DOORBUSTER_POSTGRES", &patient).stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_until(PATIENCE, "the command to ask for the position", || waiting(&world) > 0);
    world.append_event(0, &late);
    runtime.block_on(holder.batch_execute("ROLLBACK")).unwrap();
    let told = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(told.contains("has everything"), "{told}");
    drop(holder);
    runtime.shutdown_background();
    let (code, text) = doorbuster(&world, &["catch-up", "orders"]);
    assert!(code == 0 && text.contains("would: fold 1 events"), "{code}: {text}");
}
