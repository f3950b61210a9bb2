//! Servers and successors that interfere while the service works.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use domain::RequestBody;
use events::{REQUEST_SCHEMA, Topics};
use publish::LaneProducer;
use testkit::{World, voucher_request, wait_until, wait_until_async};

use crate::running::{
    Instance, PATIENCE, append_all, assert_tables_equal_the_log, buy, events_up_to, orders_of, position, publish, settled,
};

/// Requests of a test that interferes while they are decided.
const ALL: i64 = 1_001;

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_postgres_that_break_at_any_step_double_and_lose_nothing() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 1_000, 1, 0);
    append_all(&world, 0, &orders_of(&world, &voucher, 0..ALL as usize - 1));
    let quick = [("DOORBUSTER_ORDERS_BATCH_RECORDS", "10"), ("DOORBUSTER_ORDERS_RETRY_MAX_MS", "50")];
    let service = Instance::start(&world, &quick);
    let client = world.postgres().await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'doorbuster'";
    let (mut killed, mut seen) = (0, None);
    while seen != Some(ALL) {
        // After each progress once: again and again without a pause, nothing would ever get through.
        wait_until_async(PATIENCE, "some progress", async || position(&world, 0).await > seen).await;
        seen = position(&world, 0).await;
        killed += client.query(kill, &[]).await.unwrap().len();
    }
    // How often depends on how busy the machine is.
    println!("{killed} connections were broken");
    assert!(killed >= 3, "{killed}");
    let events = settled(&world, 0).await;
    assert_tables_equal_the_log(&world, &events).await;
    wait_until(PATIENCE, "readiness to come back", || service.readiness().starts_with("ready"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_was_fenced_and_still_owns_its_partition_goes_on() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 1_000, 1, 0);
    append_all(&world, 0, &orders_of(&world, &voucher, 0..ALL as usize - 1));
    let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "10")]);
    for _ in 0..3 {
        let had = world.events(0).len();
        wait_until(PATIENCE, "some progress", || world.events(0).len() > had.min(ALL as usize - 11));
        // What a second owner would do. Its clients are gone again at once, and the group knows nothing of it.
        let connections = world.connections().clone();
        thread::scope(|scope| scope.spawn(|| LaneProducer::start(&connections, 0).map(drop)).join().unwrap().unwrap());
    }
    let events = settled(&world, 0).await;
    assert_tables_equal_the_log(&world, &events).await;
    service.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_a_newer_kind_stops_the_lane_before_it() {
    let world = World::builder().partitions(1).build();
    let voucher = publish(&world, 10, 1, 0);
    let (pause, resume) = (
        voucher_request(&voucher, RequestBody::VoucherPaused { expected_terms_version: 1 }),
        voucher_request(&voucher, RequestBody::VoucherResumed { expected_terms_version: 1 }),
    );
    let resume = domain::Request { id: pause.id, ..resume };
    let newer = REQUEST_SCHEMA.replacen("\"PaymentWindowElapsed\"", "\"PaymentWindowElapsed\", \"OrderGifted\"", 1);
    let newest_kind = 10;
    let registry = world.connections().schema_registry().unwrap();
    let subject = Topics::subject(&world.connections().topics.requests);
    let id = registry.register(&subject, &newer).await.unwrap();
    let mut bytes = world.codec().encode_request(&pause).unwrap();
    let other = world.codec().encode_request(&resume).unwrap();
    // The two differ first in the kind, an index in zigzag form.
    let kind = bytes.iter().zip(&other).position(|(a, b)| a != b).unwrap();
    bytes[kind] = 2 * newest_kind;
    bytes[1..5].copy_from_slice(&id.to_be_bytes());
    world.append(&world.connections().topics.requests, 0, b"k", &bytes);
    buy(&world, &voucher, "ann", 0);

    // One record a batch, so that what comes before it is decided.
    let service = Instance::start(&world, &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "1")]);
    wait_until(PATIENCE, "the lane to stop", || service.readiness().contains("partition 0 has stopped"));
    assert!(service.readiness().contains("newer version"), "{}", service.readiness());
    service.stop().unwrap();
    assert_eq!((position(&world, 0).await, world.events(0).len()), (Some(1), 1));
    assert_eq!(world.records(&world.connections().topics.dead_letters, 0), []);
}

/// A way to the registry that can be cut.
struct Gate {
    is_open: Arc<AtomicBool>,
    url: String,
}

impl Gate {
    fn before(registry: &str) -> Self {
        let (host, path) = registry.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/{path}", listener.local_addr().unwrap());
        let is_open = Arc::new(AtomicBool::new(true));
        let (open, host) = (is_open.clone(), host.to_owned());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&host)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to, open) = (from.try_clone().unwrap(), to.try_clone().unwrap(), open.clone());
                    thread::spawn(move || forward(from, to, &open));
                }
            }
        });
        Self { is_open, url }
    }
}

/// Until either end closes, or a byte arrives at a closed gate.
fn forward(mut from: TcpStream, mut to: TcpStream, is_open: &AtomicBool) {
    let mut buffer = [0; 4096];
    loop {
        let read = from.read(&mut buffer).unwrap_or_default();
        if read == 0 || !is_open.load(Ordering::SeqCst) || to.write_all(&buffer[..read]).is_err() {
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_away_makes_the_lane_wait_and_dead_letters_nothing() {
    let world = World::builder().partitions(1).build();
    let gate = Gate::before(&world.connections().registry);
    let quick = [("DOORBUSTER_REGISTRY", gate.url.as_str()), ("DOORBUSTER_ORDERS_RETRY_MAX_MS", "50")];
    let service = Instance::start(&world, &quick);
    let voucher = publish(&world, 10, 1, 0);
    settled(&world, 0).await;
    gate.is_open.store(false, Ordering::SeqCst);

    // A later version of the schema with one more field; this version's records are readable with it after one look-up.
    let newer = REQUEST_SCHEMA.replacen("\"PaymentWindowElapsed\"", "\"PaymentWindowElapsed\", \"OrderGifted\"", 1);
    let registry = world.connections().schema_registry().unwrap();
    let subject = Topics::subject(&world.connections().topics.requests);
    let id = registry.register(&subject, &newer).await.unwrap();
    let order = testkit::order_request(&voucher, world.order_id(&voucher, "ann", None), "ann", 1);
    let mut bytes = world.codec().encode_request(&order).unwrap();
    bytes[1..5].copy_from_slice(&id.to_be_bytes());
    world.append(&world.connections().topics.requests, 0, voucher.as_str().as_bytes(), &bytes);
    let last = buy(&world, &voucher, "ben", 0);
    wait_until(PATIENCE, "readiness to say what holds the lane up", || {
        service.readiness().contains("partition 0 is held up") && service.readiness().contains("registry")
    });
    assert_eq!(world.events(0).len(), 1);

    gate.is_open.store(true, Ordering::SeqCst);
    let events = events_up_to(&world, 0, last + 1);
    assert!(events[1..].iter().all(|e| e.body.name() == "OrderConfirmed"), "{events:?}");
    assert_eq!(world.records(&world.connections().topics.dead_letters, 0), []);
    assert_tables_equal_the_log(&world, &events).await;
}
