//! The orders service in this process, in a world of its own, and what tests ask of it.

use std::{
    net::TcpListener,
    thread::{self, JoinHandle},
    time::Duration,
};

use domain::{Event, VoucherId};
use infra::{config::Env, shutdown::CancellationToken};
use testkit::{World, wait_until, wait_until_async};

/// Longest wait for anything that only a busy machine makes slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One instance of the service on a thread of its own. Dropping it shuts it down in order and waits for that.
pub(crate) struct Instance {
    stop: CancellationToken,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    admin: String,
}

impl Instance {
    /// Starts with the world's variables and `more`, and waits until it is a member of its group.
    pub(crate) fn start(world: &World, more: &[(&str, &str)]) -> Self {
        infra::telemetry::init_logs();
        let admin = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address").to_string();
        let own = [("DOORBUSTER_ORDERS_ADMIN", admin.as_str()), ("DOORBUSTER_ORDERS_IDLE_CHECK_MS", "100")];
        let vars = own.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let env = Env::of(world.env_vars().into_iter().chain(vars));
        let stop = CancellationToken::new();
        let token = stop.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            runtime.block_on(orders::run(&env, token))
        });
        let instance = Self { stop, thread: Some(thread), admin };
        wait_until(PATIENCE, "the instance to join its group", || {
            assert!(!instance.has_ended(), "the instance ended early");
            !instance.readiness().contains("not joined") && !instance.readiness().is_empty()
        });
        instance
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The body of `/readyz`; empty where nothing listens.
    pub(crate) fn readiness(&self) -> String {
        self.get("readyz")
    }

    pub(crate) fn metrics(&self) -> String {
        self.get("metrics")
    }

    fn get(&self, path: &str) -> String {
        use std::io::{Read, Write};
        let Ok(mut stream) = std::net::TcpStream::connect(&self.admin) else { return String::new() };
        let asked = write!(stream, "GET /{path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        if asked.is_err() || stream.read_to_string(&mut answer).is_err() {
            return String::new();
        }
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }

    /// Shuts down in order; gives what `run` returned.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.thread.take().expect("not stopped before").join().expect("the service does not panic")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Waits until the partition's lane has published the answer to everything before `offset`, then gives all events of the partition.
pub(crate) fn events_up_to(world: &World, partition: i32, offset: i64) -> Vec<Event> {
    world.event_of(partition, offset - 1);
    let events: Vec<_> = world.events(partition).into_iter().map(|(event, _)| event).collect();
    assert_one_event_a_request(&events, offset);
    events
}

/// Each request below `end` has exactly one event, in the order of the requests; `voucher_seq` has no gaps.
pub(crate) fn assert_one_event_a_request(events: &[Event], end: i64) {
    let offsets: Vec<_> = events.iter().map(|e| e.request_offset).collect();
    assert_eq!(offsets, (0..end).collect::<Vec<_>>(), "one event a request, in order");
    let mut seqs = std::collections::HashMap::new();
    for event in events.iter().filter(|e| e.voucher_seq > 0) {
        let last = seqs.entry(event.voucher_id.clone()).or_insert(0);
        assert_eq!(event.voucher_seq, *last + 1, "voucher_seq of {event:?}");
        *last = event.voucher_seq;
    }
}

/// The rows as Postgres has them must be what the events fold into.
pub(crate) async fn assert_tables_equal_the_log(world: &World, events: &[Event]) {
    let mut folded = domain::State::default();
    events.iter().for_each(|event| folded.evolve(event));
    let pool = infra::postgres::pool(world.connections(), 1).expect("a pool");
    let vouchers = infra::postgres::vouchers(&pool, None).await.expect("vouchers can be read");
    let mut expected: Vec<_> = folded.vouchers.values().cloned().collect();
    expected.sort_by(|a, b| a.id.cmp(&b.id));
    let mine: Vec<_> = vouchers.into_iter().filter(|v| folded.vouchers.contains_key(&v.id)).collect();
    assert_eq!(mine, expected);
    let count: i64 =
        world.postgres().await.query_one("SELECT count(*) FROM orders", &[]).await.expect("orders can be counted").get(0);
    assert_eq!(count as usize, folded.orders.len());
    for order in folded.orders.values() {
        assert_eq!(infra::postgres::order(&pool, &order.id).await.expect("an order can be read").as_ref(), Some(order));
    }
}

/// Publishes a voucher on `partition` and gives its id.
pub(crate) fn publish(world: &World, total: i64, limit: i64, partition: i32) -> VoucherId {
    let voucher = world.voucher_id();
    let body = domain::RequestBody::VoucherPublished(world.terms(total, limit, partition));
    world.append_request(partition, &testkit::voucher_request(&voucher, body));
    voucher
}

/// Asks for one unit for this user and gives the request's offset.
pub(crate) fn buy(world: &World, voucher: &VoucherId, user: &str, partition: i32) -> i64 {
    let request = testkit::order_request(voucher, world.order_id(voucher, user, None), user, 1);
    world.append_request(partition, &request)
}

/// Appends many requests to a partition, in this order, and returns when all are acknowledged.
pub(crate) fn append_all(world: &World, partition: i32, requests: &[domain::Request]) {
    let producer = publish::RequestProducer::new(world.connections(), world.codec()).expect("a producer");
    let sent: Vec<_> = requests.iter().map(|request| producer.send(partition, request)).collect();
    let wait = || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for delivery in sent {
                let delivery = delivery.await;
                assert!(matches!(delivery, publish::Delivery::Persisted { .. }), "{delivery:?}");
            }
        });
    };
    // A runtime cannot wait inside another one's thread.
    thread::scope(|scope| scope.spawn(wait).join().expect("the records are acknowledged"));
}

/// Requests of one unit each for users `from..to`.
pub(crate) fn orders_of(world: &World, voucher: &VoucherId, users: std::ops::Range<usize>) -> Vec<domain::Request> {
    users
        .map(|n| format!("user-{n}"))
        .map(|user| testkit::order_request(voucher, world.order_id(voucher, &user, None), &user, 1))
        .collect()
}

/// The lane's position in Postgres, if there is one.
pub(crate) async fn position(world: &World, partition: i32) -> Option<i64> {
    let pool = infra::postgres::pool(world.connections(), 1).expect("a pool");
    let topic = &world.connections().topics.requests;
    infra::postgres::next_offset(&pool, topic, partition).await.expect("a position can be read")
}

/// Waits until everything in the partition is decided and published: both ends of the lane have moved to the end.
pub(crate) async fn settled(world: &World, partition: i32) -> Vec<Event> {
    let end = world.ends(&world.connections().topics.requests, partition).high;
    wait_until_async(PATIENCE, "the lane to reach the end", async || position(world, partition).await == Some(end)).await;
    if end == 0 { Vec::new() } else { events_up_to(world, partition, end) }
}

/// Runs statements on the world's database.
pub(crate) async fn sql(world: &World, statements: &str) {
    world.postgres().await.batch_execute(statements).await.expect("the statements are right");
}
