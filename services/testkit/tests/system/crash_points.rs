//! Services that die at every point where something is half done: [`infra::crash::POINTS`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use devstack::Endpoints;
use domain::{RequestBody, VoucherId};
use infra::{
    crash::{self, Order, POINTS},
    redis::Gate,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use testkit::{Mode, Proxy, Service, World, WorldBuilder, block_on, order_request, token, voucher_request, wait_until};

use crate::Shop;

/// For all points: a dead consumer is noticed after 6 s, two processes of a kind die between two rebalances, and the kind with the most
/// points has eleven.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two losses in Redis, so that one repair can come to its end.
const LOSS_EVERY: Duration = Duration::from_secs(10);

/// So that orphaned reservations, of which there will be many, are published within seconds.
const QUICK_DELIVERY: [(&str, &str); 1] = [("DOORBUSTER_DELIVERY_TIMEOUT_MS", "3000")];

#[test]
fn nothing_is_lost_or_sold_twice_wherever_a_service_dies() {
    let seed: u64 = std::env::var("DOORBUSTER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DOORBUSTER_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let postgres = Endpoints::from_env().unwrap().postgres;
    let (authority, port) = port_of(&postgres);
    let proxy = Proxy::to(port).unwrap();
    let behind = postgres.replacen(&authority, &format!("127.0.0.1:{}", proxy.port()), 1);
    let shop = Shop::on(|builder| builder.postgres(&behind).build(), &QUICK_DELIVERY);
    let more = [&crate::QUICK_SWEEPER[..], &QUICK_DELIVERY].concat();
    let seconds = ["orders", "compensation"].map(|name| shop.world.launch_service(name, &format!("second-{name}"), &more));
    seconds.iter().for_each(Service::wait_ready);
    let vouchers = [0, 1].map(|partition| {
        let voucher = shop.world.voucher_id();
        // One more than a buyer takes, so that who asks again for a decided order is given a reservation once more.
        shop.world.open(&voucher, shop.world.terms(100_000, 3, partition));
        voucher
    });

    let folder = shop.world.crash_points();
    fs::create_dir_all(&folder).unwrap();
    let buyers = Buyers::come(&shop, &vouchers);
    for point in POINTS {
        let passage = if crash::is_passed_often(point) { random.random_range(1..=4) } else { 1 };
        crash::arm(&folder, point, Order { passage, again: false }).unwrap();
    }
    let begun = Instant::now();
    let mut driver = Driver { shop: &shop, vouchers: &vouchers, proxy: &proxy, lost: None, is_set_back: false };
    let mut seen = POINTS.len();
    loop {
        let left = left(&folder);
        if left.len() < seen {
            seen = left.len();
            println!("{:.1?}: {seen} left", begun.elapsed());
        }
        if left.is_empty() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody died at {left:?}");
        driver.bring_about(&left);
        thread::sleep(Duration::from_millis(50));
    }
    println!("died at {} points within {:?}", POINTS.len(), begun.elapsed());
    fs::remove_dir(&folder).unwrap();
    proxy.set(Mode::Open);
    let told = buyers.leave();

    let services = [&shop.purchase, &shop.orders, &shop.compensation, &seconds[0], &seconds[1]];
    services.into_iter().for_each(Service::wait_ready);
    shop.world.wait_settled(&vouchers.each_ref());
    shop.world.assert_audit();
    let deaths: u32 = services.iter().map(|service| service.process.restarts()).sum();
    assert_eq!(deaths as usize, POINTS.len(), "somebody died elsewhere");
    let mut fates: BTreeMap<String, usize> = BTreeMap::new();
    for (event, _) in (0..2).flat_map(|partition| shop.world.events(partition)) {
        if let ("OrderConfirmed" | "OrderRejected", Some(order)) = (event.body.name(), event.body.order_id()) {
            *fates.entry(order.to_string()).or_default() += 1;
        }
    }
    assert!(told.len() > 100, "only {} orders were accepted", told.len());
    for order in &told {
        assert_eq!(fates.get(order), Some(&1), "a 202 has exactly one fate: order {order}");
    }
    println!("{} orders were accepted, {} decided", told.len(), fates.len());
}

/// A call that never comes back cannot be cancelled: its process is ended within the watchdog's bound, and started again.
#[test]
fn a_lane_that_hangs_is_ended_by_the_watchdog_and_nothing_is_lost() {
    // It is to be above the transaction time-out.
    const BOUND: Duration = Duration::from_secs(12);
    let shop = Shop::on(WorldBuilder::build, &[("DOORBUSTER_ORDERS_WATCHDOG_MS", "12000")]);
    let voucher = shop.open(10);
    let folder = shop.world.crash_points();
    fs::create_dir_all(&folder).unwrap();
    for (n, point) in (1..).zip(["orders.committed", "orders.sent"]) {
        fs::write(folder.join(point), "1 hang").unwrap();
        let answer = testkit::buy(&shop.url(), &voucher, point);
        assert_eq!(answer.status, 202, "{answer:?}");
        wait_ended(&folder.join(point), &shop.orders, n, BOUND);
        shop.orders.wait_ready();
    }
    fs::remove_dir(&folder).unwrap();
    shop.world.wait_settled(&[&voucher]);
    shop.world.assert_audit();
}

/// While a batch is published, the next one is decided, and not committed: that would overwrite the records of the first.
#[test]
fn the_next_batch_is_not_committed_while_one_is_being_published() {
    const BATCH: i64 = 10;
    let world = World::builder().partitions(1).build();
    let (voucher, folder) = (world.voucher_id(), world.crash_points());
    world.append_request(0, &voucher_request(&voucher, RequestBody::VoucherPublished(world.terms(100, 1, 0))));
    let last = (0..2 * BATCH).map(|n| {
        let user = format!("user-{n}");
        world.append_request(0, &order_request(&voucher, world.order_id(&voucher, &user, None), &user, 1))
    });
    let last = last.max().unwrap();
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("orders.sent"), "1 hang").unwrap();
    let orders = world.launch_service("orders", "orders", &[("DOORBUSTER_ORDERS_BATCH_RECORDS", "10")]);
    wait_until(PATIENCE, "the first batch to be half published", || !folder.join("orders.sent").exists());
    // As one that has written all it wants and waits; between two statements it is idle for less than this.
    let waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
                   AND state = 'idle in transaction' AND state_change < now() - interval '300 milliseconds'";
    let ask = |sql: &str| block_on(async { world.postgres().await.query_one(sql, &[]).await }).unwrap();
    wait_until(PATIENCE, "the next batch to be decided", || ask(waiting).get(0));
    assert_eq!(ask("SELECT next_offset FROM lane_positions").get::<_, i64>(0), BATCH);
    orders.kill().unwrap();
    world.event_of(0, last);
    assert_eq!(world.events(0).len(), 1 + 2 * BATCH as usize);
    assert_eq!(ask("SELECT count(*) FROM orders").get::<_, i64>(0), 2 * BATCH);
    fs::remove_dir(&folder).unwrap();
}

/// As for lanes, for what blocks in compensation's tasks: here, asking for the ends of the log behind a closed gate.
#[test]
fn a_repair_that_hangs_is_ended_by_the_watchdog_and_the_sale_goes_on() {
    const BOUND: Duration = Duration::from_secs(6);
    let shop = Shop::on(WorldBuilder::build, &[("DOORBUSTER_COMPENSATION_WATCHDOG_MS", "6000")]);
    let voucher = shop.open(10);
    let folder = shop.world.crash_points();
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("compensation.fenced"), "1 hang").unwrap();
    crate::redis_lost::flush_all(&shop.world.connections().redis);
    wait_ended(&folder.join("compensation.fenced"), &shop.compensation, 1, BOUND);
    fs::remove_dir(&folder).unwrap();
    wait_until(PATIENCE, "purchases", || testkit::buy(&shop.url(), &voucher, "buyer").is_accepted());
    shop.world.wait_settled(&[&voucher]);
    shop.world.assert_audit();
}

/// Waits until the service hangs at the point of this file, and the watchdog has ended it, for the `times`th time, within its bound.
fn wait_ended(point: &Path, service: &Service, times: u32, bound: Duration) {
    wait_until(PATIENCE, "the service to hang", || !point.exists());
    let hung = Instant::now();
    wait_until(PATIENCE, "the watchdog to end it", || service.process.restarts() == times);
    // It looks ten times within its bound; the rest is for a busy machine.
    assert!(hung.elapsed() < 2 * bound, "ended only after {:?}", hung.elapsed());
}

/// Points at which nobody has died yet.
fn left(folder: &Path) -> BTreeSet<&'static str> {
    POINTS.iter().filter(|point| folder.join(point).exists()).copied().collect()
}

/// Brings about what a sale alone does not pass.
struct Driver<'a> {
    shop: &'a Shop,
    vouchers: &'a [VoucherId; 2],
    proxy: &'a Proxy,
    lost: Option<Instant>,
    is_set_back: bool,
}

impl Driver<'_> {
    fn bring_about(&mut self, left: &BTreeSet<&str>) {
        let of = |service: &str| left.iter().filter(|point| point.starts_with(service)).collect::<Vec<_>>();
        // Who holds units and cannot be looked up gives back what was reserved.
        let purchase = of("purchase.");
        let without = !purchase.is_empty() && purchase.iter().all(|point| point.starts_with("purchase.release"));
        self.proxy.set(if without { Mode::Refuse } else { Mode::Open });
        if !without && of("orders.") == [&"orders.folded"] && !self.is_set_back {
            set_back(&self.shop.world);
            self.is_set_back = true;
        }
        let is_sound = |voucher| self.shop.world.in_redis(voucher).is_some_and(|found| found.gate == Gate::Ready);
        let repairs = ["compensation.fence", "compensation.replayed", "compensation.open"];
        let is_wanted = repairs.iter().any(|points| !of(points).is_empty());
        if is_wanted && self.lost.is_none_or(|at| at.elapsed() > LOSS_EVERY) && self.vouchers.iter().all(is_sound) {
            self.vouchers.iter().for_each(|voucher| forget(self.shop.redis.endpoint(), voucher));
            self.lost = Some(Instant::now());
        }
    }
}

/// Redis loses a voucher, its reservations stay.
fn forget(redis: &str, voucher: &VoucherId) {
    let mut stream = TcpStream::connect(redis.trim_start_matches("redis://")).unwrap();
    write!(stream, "DEL {{v:{voucher}}}:voucher\r\n").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], b':', "{}", String::from_utf8_lossy(&answer));
}

/// Postgres has lost every commit since the beginning.
fn set_back(world: &World) {
    let sql = "BEGIN; UPDATE lane_positions SET next_offset = 0, records = ''; DELETE FROM orders; DELETE FROM vouchers; COMMIT";
    block_on(async { world.postgres().await.batch_execute(sql).await }).unwrap();
}

/// `host:port` of an address, and its port.
fn port_of(address: &str) -> (String, u16) {
    let authority = address.split_once("://").unwrap().1.split('/').next().unwrap();
    let authority = authority.rsplit('@').next().unwrap();
    (authority.to_owned(), authority.rsplit_once(':').unwrap().1.parse().unwrap())
}

/// Buyers who come one after another, whatever they are told.
struct Buyers {
    leaving: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    told: Arc<Mutex<BTreeSet<String>>>,
}

impl Buyers {
    /// So many at one moment.
    const THREADS: usize = 4;
    /// Between two calls of one.
    const PAUSE: Duration = Duration::from_millis(10);
    /// A buyer asks for his order again after so many others, when it is decided and settled as a rule.
    const LATER: usize = 50;

    fn come(shop: &Shop, vouchers: &[VoucherId; 2]) -> Self {
        let (leaving, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeSet::new())));
        let one = |thread| {
            let (leaving, told, url, vouchers) = (leaving.clone(), told.clone(), shop.url(), vouchers.clone());
            thread::spawn(move || {
                let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().unwrap();
                for visit in 0_usize.. {
                    let earlier = visit.saturating_sub(Self::LATER);
                    for (visit, key) in [(visit, "one"), (earlier, "one"), (visit, "two")] {
                        if leaving.load(Relaxed) {
                            return;
                        }
                        let voucher = &vouchers[visit % vouchers.len()];
                        let request = client
                            .post(format!("{url}/v1/vouchers/{voucher}/orders"))
                            .bearer_auth(token(&format!("buyer-{thread}-{visit}")))
                            .header("idempotency-key", key);
                        told.lock().unwrap().extend(block_on(accepted(request)));
                        thread::sleep(Self::PAUSE);
                    }
                }
            })
        };
        let threads = (0..Self::THREADS).map(one).collect();
        Self { leaving, threads, told }
    }

    /// No more come; the orders that were accepted.
    fn leave(self) -> BTreeSet<String> {
        self.leaving.store(true, Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.told.lock().unwrap().clone()
    }
}

/// The order that was promised, if one was.
async fn accepted(request: reqwest::RequestBuilder) -> Option<String> {
    let response = request.send().await.ok().filter(|response| response.status().as_u16() == 202)?;
    let body: serde_json::Value = response.json().await.ok()?;
    body["order_id"].as_str().map(str::to_owned)
}

/// The list and the code name the same points.
#[test]
fn every_point_is_listed_once_and_passed_somewhere() {
    fn calls(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                calls(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let names = text.split("crash::point(\"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }
    let mut found = Vec::new();
    for service in ["purchase", "orders", "compensation", "publish"] {
        calls(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(service).join("src"), &mut found);
    }
    found.sort_unstable();
    let mut listed: Vec<String> = POINTS.iter().map(ToString::to_string).collect();
    listed.sort_unstable();
    assert_eq!(found, listed);
}
