//! The servers of a run, and worlds with services on them.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use devstack::{Stack, StackOptions, http_get};
use domain::{Event, EventBody, OrderId, Request, RequestBody, Terms, VoucherId};
use infra::redis::Store;
use testkit::{Service, World, block_on, order_request, voucher_request};
use uuid::Uuid;

use crate::{buyers, machine::Meter};

/// How long anything that is waited for may take.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two looks at a service's counters.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// As the table in `docs/PERFORMANCE.md` says.
const POSTGRES: [&str; 2] = ["max_wal_size=32GB", "shared_buffers=1GB"];

/// What a run is on.
pub(crate) struct Site {
    pub(crate) stack: Stack,
    pub(crate) scale: Scale,
    began: Instant,
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    /// What counts are divided by.
    divisor: usize,
}

impl Scale {
    pub(crate) const FULL: Self = Self { rounds: 5, divisor: 1 };
    pub(crate) const QUICK: Self = Self { rounds: 2, divisor: 20 };

    pub(crate) fn count(self, full: usize) -> usize {
        full / self.divisor
    }

    /// Of an open loop.
    pub(crate) fn time(self, full: Duration) -> Duration {
        if self.divisor == 1 { full } else { full / 3 }
    }
}

impl Site {
    pub(crate) fn start(scale: Scale) -> Result<Self> {
        let options = StackOptions {
            kafka_c2: true,
            postgres_fsync: true,
            postgres_settings: POSTGRES.map(str::to_owned).to_vec(),
            ..StackOptions::default()
        };
        Ok(Self { stack: Stack::start(options)?, scale, began: Instant::now() })
    }

    /// Tells whoever waits what is going on.
    pub(crate) fn say(&self, text: &str) {
        eprintln!("{:7.1} {text}", self.began.elapsed().as_secs_f64());
    }

    /// Fresh topics and tables.
    pub(crate) fn world(&self, partitions: i32) -> World {
        World::builder().servers(self.stack.endpoints()).partitions(partitions).build()
    }

    /// A meter of all servers and these services.
    pub(crate) fn meter(&self, services: &[&Service]) -> Meter {
        let servers = self.stack.servers().iter().filter_map(|server| Some((server.name().to_owned(), server.pid()?)));
        let services = services.iter().filter_map(|s| Some((s.process.name().to_owned(), s.process.pid()?)));
        Meter::start(servers.chain(services).collect())
    }
}

/// Terms of a voucher that sells to everybody, once, on a partition.
pub(crate) fn terms(world: &World, units: i64, partition: i32) -> Terms {
    world.terms(units, 1, partition)
}

/// Puts a voucher on sale in Redis without the log: for what only the gate does.
pub(crate) fn on_sale_in_redis(world: &World, voucher: &VoucherId, terms: Terms) -> Result<()> {
    let event = Event {
        voucher_id: Some(voucher.clone()),
        voucher_seq: 1,
        partition: terms.partition,
        request_offset: 0,
        request_id: Uuid::nil(),
        decided_at: terms.begins_at,
        rules_version: domain::RULES_VERSION,
        remaining: terms.total,
        held: 0,
        body: EventBody::VoucherOpened(terms.clone()),
    };
    block_on(async {
        let store = Store::connect(&world.connections().redis).await?;
        store.settle(&[(event, 0)]).await?;
        store.raise_fence(voucher, terms.partition, "bench", false).await?;
        ensure!(store.open_gate(voucher, "bench", 1).await?, "the gate of {voucher} cannot be opened");
        Ok(())
    })
}

/// Publishes a voucher and waits until the lane has opened it.
pub(crate) fn publish(world: &World, voucher: &VoucherId, terms: Terms) {
    let partition = terms.partition;
    let offset = world.append_request(partition, &voucher_request(voucher, RequestBody::VoucherPublished(terms)));
    world.event_of(partition, offset);
}

/// Requests of as many new buyers, as bytes.
pub(crate) fn requests(world: &World, voucher: &VoucherId, count: usize) -> Result<Vec<Vec<u8>>> {
    let codec = world.codec();
    buyers::names(count).iter().map(|user| Ok(codec.encode_request(&request(world, voucher, user))?)).collect()
}

pub(crate) fn request(world: &World, voucher: &VoucherId, user: &str) -> Request {
    order_request(voucher, world.order_id(voucher, user, None), user, 1)
}

/// What deciding it would make, as bytes.
pub(crate) fn event(world: &World, voucher: &VoucherId) -> Result<Vec<u8>> {
    let user = buyers::names(1).remove(0);
    let request = request(world, voucher, &user);
    let RequestBody::OrderRequested { order_id, user_id, quantity, requested_at } = request.body else { unreachable!() };
    let body = EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at: None, slot: 0 };
    let event = Event {
        voucher_id: Some(voucher.clone()),
        voucher_seq: 500_000,
        partition: 0,
        request_offset: 500_000,
        request_id: request.id,
        decided_at: requested_at,
        rules_version: domain::RULES_VERSION,
        remaining: 500_000,
        held: 1,
        body,
    };
    Ok(world.codec().encode_event(&event)?)
}

/// Order and user ids as Redis gets them.
pub(crate) fn order_and_user(world: &World, voucher: &VoucherId, count: usize) -> Vec<(String, String)> {
    let order = |user: &String| -> OrderId { world.order_id(voucher, user, None) };
    buyers::names(count).into_iter().map(|user| (order(&user).to_string(), user)).collect()
}

/// Where a service takes buyers' calls.
pub(crate) fn address(service: &Service) -> Result<SocketAddr> {
    Ok(service.url().trim_start_matches("http://").parse()?)
}

/// The sum of a service's metric over its labels, or with the labels that stand behind its name; 0 while it has none.
pub(crate) fn metric(service: &Service, name: &str) -> Result<f64> {
    let port = service.admin_port().with_context(|| format!("{} listens nowhere", service.process.name()))?;
    let (_, text) = http_get(port, "/metrics")?;
    let of_line = |line: &str| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ', ',']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
    };
    Ok(text.lines().filter_map(of_line).sum())
}

/// Waits until the service answers on its port for metrics; it may not be ready yet.
pub(crate) fn wait_for_listener(service: &Service) -> Result<()> {
    Ok(service.process.wait_until(PATIENCE, || service.admin_port().is_some_and(|port| http_get(port, "/metrics").is_ok()))?)
}

/// Waits until a counter of the service reaches `target`; calls `look` with the counter after each look. Panics where it does not, so that
/// the logs are kept.
pub(crate) fn wait_for_count(service: &Service, name: &str, target: f64, mut look: impl FnMut(f64)) -> Result<()> {
    let begun = Instant::now();
    loop {
        let count = metric(service, name)?;
        look(count);
        if count >= target {
            return Ok(());
        }
        assert!(begun.elapsed() < PATIENCE, "{name} of {} is {count}, not {target}", service.process.name());
        thread::sleep(LOOK);
    }
}
