//! How long one buyer waits while the machine has room: the whole system in an open loop at 30 % of what the gate can accept.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use domain::{OrderId, VoucherId};
use events::Codec;
use infra::{config::Connections, kafka::client_config};
use load::Quantiles;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
};
use testkit::{Service, World};

use crate::{
    bare::{
        kafka::{self, Transactions},
        postgres,
    },
    buyers,
    figure::{Figure, Goal, Rounds},
    http,
    site::{self, Site},
};

pub(crate) const FIGURES: [&str; 3] = ["accept_p99", "visible_p99", "skewed_p99"];

/// The share of the accept rate at which buyers come.
const LOAD: f64 = 0.3;
const ROUND: Duration = Duration::from_secs(8);
/// The default of a deployment.
const PARTITIONS: i32 = 12;
const VOUCHERS: usize = 20;
/// Of all buyers, in the skewed rounds, those who want the first voucher.
const SKEW: f64 = 0.95;
const CONNECTIONS: usize = 64;
const ACCEPTED: u16 = 202;
const PLENTY: i64 = 100_000_000;
/// Pairs of transactions in a round of the ceiling.
const PAIRS: usize = 400;
/// For what was accepted to be visible in the end.
const VISIBLE_DEADLINE: Duration = Duration::from_secs(30);

/// The whole system with all vouchers on sale.
struct Shop {
    services: [Service; 3],
    world: World,
    vouchers: Vec<VoucherId>,
}

impl Shop {
    fn start(site: &Site) -> Self {
        let world = site.world(PARTITIONS);
        let services = ["orders", "compensation", "purchase"].map(|name| world.start_service(name, &[]));
        let vouchers: Vec<VoucherId> = (0..VOUCHERS).map(|_| world.voucher_id()).collect();
        for voucher in &vouchers {
            world.open(voucher, site::terms(&world, PLENTY, events::partition_for(voucher, PARTITIONS)));
        }
        Self { services, world, vouchers }
    }
}

/// What one round saw.
struct Seen {
    accepted: Quantiles,
    /// From the intended click to the event, of the first voucher's buyers and of all others'.
    visible: [Quantiles; 2],
    /// Requests in a batch of a lane, on average.
    batch: f64,
}

/// Measures all of [`FIGURES`]. `accept_rate`: of the gate, in this run.
pub(crate) fn measure(site: &Site, accept_rate: f64) -> Result<Vec<Figure>> {
    let (rate, time) = (LOAD * accept_rate, site.scale.time(ROUND));
    let shop = Shop::start(site);
    let beside = site.world(1);
    let topics = &beside.connections().topics;
    let transactions = Transactions::start(beside.connections(), &topics.events)?;
    let mut table = postgres::Orders::connect(&beside.connections().postgres, beside.voucher_id())?;
    let request = shop.world.codec().encode_request(&site::request(&shop.world, &shop.vouchers[0], &buyers::names(1)[0]))?;
    let event = site::event(&shop.world, &shop.vouchers[0])?;

    site.say(&format!("latency: warm-up at {rate:.0} purchases/s"));
    round(site, &shop, rate, time, 1.0, 0)?;
    let mut rounds: [Rounds; 6] = Default::default();
    let [accept, visible, bare_ack, bare_pair, even, skewed] = &mut rounds;
    for number in 1..=site.scale.rounds {
        let arrivals = buyers::arrivals(rate, time, number as u64);
        bare_ack.push(p99(&kafka::produce_open(beside.connections(), &topics.requests, request.clone(), arrivals)?));
        let seen = round(site, &shop, rate, time, 1.0, number as u64)?;
        accept.push(p99(&seen.accepted));
        visible.push(p99(&seen.visible[0]));
        let batch = (seen.batch.round() as usize).max(1);
        let mut pairs = Quantiles::new();
        for _ in 0..site.scale.count(PAIRS) {
            let written = table.write(batch)?;
            let began = Instant::now();
            transactions.one(&event, batch, None)?;
            pairs.record(written + began.elapsed());
        }
        bare_pair.push(p99(&pairs));
        let spread_out = round(site, &shop, rate, time, 1.0 / VOUCHERS as f64, 1_000 + number as u64)?;
        even.push(p99(&spread_out.visible[1]));
        let crowded = round(site, &shop, rate, time, SKEW, 2_000 + number as u64)?;
        skewed.push(p99(&crowded.visible[1]));
        let last = |rounds: &Rounds| *rounds.0.last().unwrap_or(&f64::NAN);
        let p50 = |quantiles: &Quantiles| quantiles.at(0.5).unwrap_or_default().as_secs_f64() * 1e3;
        site.say(&format!(
            "latency round {number}: accept p50 {:.2} p99 {:.2} ms (bare acknowledgement p99 {:.2}), visible p50 {:.2} p99 {:.2} ms \
             (bare transactions of {batch}: p99 {:.2}); the others' p99 {:.2} ms under an even load, {:.2} beside a hot voucher",
            p50(&seen.accepted),
            last(accept),
            last(bare_ack),
            p50(&seen.visible[0]),
            last(visible),
            last(bare_pair),
            last(even),
            last(skewed),
        ));
    }
    let figure = |name, value: &Rounds, ceiling: &Rounds, most| {
        Figure::new(name, "ms", value.median(), Some(ceiling.median()), Goal::AtMost(most), value.spread())
    };
    Ok(vec![
        figure("accept_p99", accept, bare_ack, 5.0),
        figure("visible_p99", visible, bare_pair, 3.0),
        figure("skewed_p99", skewed, even, 2.0),
    ])
}

/// In milliseconds.
fn p99(quantiles: &Quantiles) -> f64 {
    quantiles.at(0.99).unwrap_or_default().as_secs_f64() * 1e3
}

/// Buyers come for a while; `first`: the share of them who want the first voucher. All else want the others evenly.
fn round(site: &Site, shop: &Shop, rate: f64, time: Duration, first: f64, seed: u64) -> Result<Seen> {
    let arrivals = buyers::arrivals(rate, time, seed);
    let mut random = StdRng::seed_from_u64(seed);
    let (mut calls, mut wanted) = (Vec::with_capacity(arrivals.len()), Vec::with_capacity(arrivals.len()));
    for _ in &arrivals {
        let other = 1 + random.random_range(0..VOUCHERS - 1);
        let voucher = if random.random_bool(first) { 0 } else { other };
        let (call, order) = buyers::call_and_order(&shop.world, &shop.vouchers[voucher]);
        calls.push(call);
        wanted.push((order, usize::from(voucher > 0)));
    }
    let tail = Tail::start(shop.world.connections(), shop.world.codec(), shop.world.partitions())?;
    let [orders, ..] = &shop.services;
    let batches = || -> Result<(f64, f64)> {
        let of = |part: &str| site::metric(orders, &format!("doorbuster_orders_batch_records_{part}"));
        Ok((of("sum")?, of("count")?))
    };
    let before = batches()?;
    let meter = site.meter(&shop.services.each_ref());
    let until = time + VISIBLE_DEADLINE;
    let answers = http::open(site::address(&shop.services[2])?, calls, arrivals.clone(), CONNECTIONS, ACCEPTED, until)?;
    let answers = answers.only(ACCEPTED)?;
    let seen = tail.finish(wanted.len())?;
    let after = batches()?;
    let began = answers.began.context("the calls have begun")?;
    let mut visible = [Quantiles::new(), Quantiles::new()];
    for ((order, which), at) in wanted.iter().zip(arrivals) {
        let seen = seen.get(order).ok_or_else(|| anyhow!("the event of order {order} was not seen"))?;
        visible[*which].record(seen.saturating_duration_since(began + at));
    }
    let batch = (after.0 - before.0) / (after.1 - before.1);
    let cost = meter.each(wanted.len() as u64);
    site.say(&format!("  {first:.2} for the first voucher, batches of {batch:.1}; a purchase to its end: {cost}"));
    Ok(Seen { accepted: answers.latency, visible, batch })
}

/// Notes when each order's event can be read by everybody.
struct Tail {
    stop: Arc<AtomicBool>,
    /// It ends by itself once it has seen so many orders.
    enough: Arc<AtomicUsize>,
    thread: JoinHandle<Result<HashMap<OrderId, Instant>>>,
}

impl Tail {
    fn start(connections: &Connections, codec: Codec, partitions: i32) -> Result<Self> {
        let mut config = client_config(connections);
        config.set("group.id", connections.group("bench")).set("enable.auto.commit", "false");
        config.set("isolation.level", "read_committed").set("fetch.wait.max.ms", "50");
        let consumer: BaseConsumer = config.create()?;
        let mut ends = TopicPartitionList::new();
        for partition in 0..partitions {
            let (_, end) = consumer.fetch_watermarks(&connections.topics.events, partition, infra::kafka::CALL_TIMEOUT)?;
            ends.add_partition_offset(&connections.topics.events, partition, Offset::Offset(end))?;
        }
        consumer.assign(&ends)?;
        let stop = Arc::new(AtomicBool::new(false));
        let enough = Arc::new(AtomicUsize::new(usize::MAX));
        let (ended, wanted) = (Arc::clone(&stop), Arc::clone(&enough));
        let thread = thread::spawn(move || {
            let mut seen = HashMap::new();
            while !ended.load(Ordering::Relaxed) && seen.len() < wanted.load(Ordering::Relaxed) {
                let Some(record) = consumer.poll(Duration::from_millis(20)) else { continue };
                let (record, now) = (record?, Instant::now());
                let event = codec.decode_event(record.payload().unwrap_or_default(), record.partition())?;
                if let Some(order) = event.body.order_id() {
                    seen.entry(order).or_insert(now);
                }
            }
            Ok(seen)
        });
        Ok(Self { stop, enough, thread })
    }

    /// Waits until as many orders were seen.
    fn finish(self, orders: usize) -> Result<HashMap<OrderId, Instant>> {
        self.enough.store(orders, Ordering::Relaxed);
        let begun = Instant::now();
        while !self.thread.is_finished() && begun.elapsed() < VISIBLE_DEADLINE {
            thread::sleep(Duration::from_millis(5));
        }
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join().map_err(|_| anyhow!("the reader of events panicked"))??;
        ensure!(seen.len() >= orders, "{} of {orders} events were seen within {VISIBLE_DEADLINE:?}", seen.len());
        Ok(seen)
    }
}
