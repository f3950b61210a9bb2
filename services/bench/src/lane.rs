//! What happens behind the gate: one lane decides a backlog, compensation settles what it decided, the table grows to a million orders and more.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use domain::VoucherId;
use infra::kafka::PartitionReader;
use testkit::{Service, World};

use crate::{
    bare::{
        kafka::{self, Transactions},
        postgres, redis,
    },
    figure::{Figure, Goal, Rounds, in_turn, short},
    machine::resident,
    replay,
    site::{self, Site},
};

pub(crate) const FIGURES: [&str; 8] =
    ["drained", "settled", "drained_million", "memory_orders", "memory_compensation", "redis_a_buyer", "rebuild", "explain"];
pub(crate) const TWO_PARTITIONS: [&str; 1] = ["drained_two"];

/// Requests a lane decides in one transaction, and events settled in one pipeline: the services' defaults.
const LANE_BATCH: usize = 1_000;
const SETTLE_BATCH: usize = 500;
const BACKLOG: usize = 200_000;
/// Of each ceiling, in a round.
const BARE: usize = 50_000;
const SMALL_TABLE: usize = 10_000;
/// Requests drained on the small table and on the large one.
const SHORT_BACKLOG: usize = 50_000;
const MEMORY_FIRST: f64 = 100_000.0;
const PLENTY: i64 = 100_000_000;
const SETTLED: &str = "doorbuster_compensation_settled_total";
/// For a backlog to be decided.
const PATIENCE: Duration = Duration::from_secs(180);
/// A stopped member of the group keeps its partitions for longer than this.
const LONGEST_STOP: Duration = Duration::from_secs(4);

/// A world with a lane for each of its vouchers, one a partition.
struct Lanes {
    orders: Service,
    positions: Positions,
    /// Of each partition.
    events: Vec<PartitionReader>,
    world: World,
    vouchers: Vec<VoucherId>,
}

/// A connection on which lanes are asked where they stand.
struct Positions {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
}

impl Positions {
    fn connect(world: &World) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(world.postgres());
        Ok(Self { runtime, client })
    }

    /// Requests that all lanes have decided. Counted in the tables, since a lane's own counter leaves out what a recovery has published.
    fn decided(&self) -> Result<i64> {
        let sql = "SELECT coalesce(sum(next_offset), 0)::bigint FROM lane_positions";
        Ok(self.runtime.block_on(self.client.query_one(sql, &[]))?.try_get(0)?)
    }
}

impl Lanes {
    fn start(site: &Site, partitions: i32) -> Result<Self> {
        let world = site.world(partitions);
        let orders = world.start_service("orders", &[]);
        let vouchers: Vec<VoucherId> = (0..partitions).map(|_| world.voucher_id()).collect();
        for (partition, voucher) in (0..).zip(&vouchers) {
            site::publish(&world, voucher, site::terms(&world, PLENTY, partition));
        }
        let positions = Positions::connect(&world)?;
        let topic = &world.connections().topics.events;
        let events = (0..partitions).map(|p| PartitionReader::open(world.connections(), topic, p)).collect::<Result<_, _>>()?;
        Ok(Self { orders, positions, events, world, vouchers })
    }

    /// Appends a backlog in equal parts to all partitions while the lanes stand still, then has it decided: requests a second.
    fn drain(&mut self, count: usize) -> Result<f64> {
        let each = count / self.vouchers.len();
        let backlogs =
            self.vouchers.iter().map(|voucher| site::requests(&self.world, voucher, each)).collect::<Result<Vec<_>>>()?;
        let connections = self.world.connections().clone();
        let target = self.positions.decided()? + i64::try_from(each * self.vouchers.len())?;
        self.orders.process.pause()?;
        let stopped = Instant::now();
        for ((partition, voucher), backlog) in (0..).zip(&self.vouchers).zip(&backlogs) {
            kafka::fill(&connections, &connections.topics.requests, partition, voucher.as_str(), backlog)?;
        }
        ensure!(stopped.elapsed() < LONGEST_STOP, "writing the backlog took {:?}: the lanes may have lost it", stopped.elapsed());
        let ends: Vec<i64> =
            (0..self.world.partitions()).map(|p| self.world.ends(&connections.topics.requests, p).high).collect();
        self.orders.process.resume()?;
        let begun = Instant::now();
        while self.positions.decided()? < target {
            assert!(
                begun.elapsed() < PATIENCE,
                "the lanes do not come to {target} requests decided: {}",
                self.positions.decided()?
            );
            thread::sleep(site::LOOK);
        }
        self.wait_published(&ends)?;
        Ok((each * self.vouchers.len()) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Waits until the last event of each partition answers the request before this offset.
    fn wait_published(&mut self, ends: &[i64]) -> Result<()> {
        let codec = self.world.codec();
        for ((partition, events), end) in (0..).zip(&mut self.events).zip(ends) {
            let begun = Instant::now();
            loop {
                let event = events.last()?.map(|record| codec.decode_event(&record.payload, partition)).transpose()?;
                if event.is_some_and(|event| event.request_offset == end - 1) {
                    break;
                }
                assert!(begun.elapsed() < PATIENCE, "the request before {end} of partition {partition} has no event");
            }
        }
        Ok(())
    }

    fn memory(&self) -> Result<f64> {
        resident(self.orders.process.pid().unwrap_or(0)).context("orders is gone")
    }

    fn step(&self, name: &str) -> Result<f64> {
        site::metric(&self.orders, &format!("doorbuster_orders_step_seconds_{name}"))
    }
}

/// Measures all of [`FIGURES`].
pub(crate) fn measure(site: &Site) -> Result<Vec<Figure>> {
    let (mut small, mut explain) = (Rounds::default(), Rounds::default());
    for _ in 0..site.scale.rounds.min(3) {
        let mut lanes = Lanes::start(site, 1)?;
        lanes.drain(site.scale.count(SMALL_TABLE))?;
        explain.push(replay::explain(&lanes.world, &lanes.vouchers[0])?);
        small.push(lanes.drain(site.scale.count(SHORT_BACKLOG))?);
    }
    site.say(&format!("drained with {} orders in the table: {}", site.scale.count(SMALL_TABLE), small.spread()));

    let mut lanes = Lanes::start(site, 1)?;
    open_gate(&lanes)?;
    let (drained, drain_ceiling, memory_orders, memory_rebuild) = drain(site, &mut lanes)?;
    let settled = settle(site, &lanes)?;
    let settle_ceiling = in_turn(&[settled.consume, settled.pipelines]);
    let ceilings = replay::Ceilings {
        memory: memory_rebuild,
        drained: drained.median(),
        pipelines: settled.pipelines,
        explain: explain.median(),
    };
    let replayed = replay::measure(site, &lanes.world, &lanes.vouchers[0], &ceilings)?;
    let mut million = Rounds::default();
    for _ in 0..site.scale.rounds.min(3) {
        million.push(lanes.drain(site.scale.count(SHORT_BACKLOG))?);
    }
    // After the table's last figure, since it puts another one in its place.
    let rebuilt = replayed.iter().find(|figure| figure.name == "rebuild").context("rebuild is measured before")?.value;
    let live = replay::live(site, &lanes.world, &lanes.vouchers[0], rebuilt)?;
    let rate = "requests/s";
    let mut figures = vec![
        Figure::new("drained", rate, drained.median(), Some(drain_ceiling), Goal::AtLeast(0.7), drained.spread()),
        Figure::new(
            "settled",
            "events/s",
            settled.rate.median(),
            Some(settle_ceiling),
            Goal::AtLeast(0.7),
            settled.rate.spread(),
        ),
        Figure::new("drained_million", rate, million.median(), Some(small.median()), Goal::AtLeast(0.8), million.spread()),
        Figure::new("memory_orders", "bytes", memory_orders.1, Some(memory_orders.0), Goal::AtMost(1.1), ""),
        Figure::new("memory_compensation", "bytes", settled.memory.1, Some(settled.memory.0), Goal::AtMost(1.1), ""),
        Figure::new(
            "redis_a_buyer",
            "bytes",
            settled.buyer,
            None,
            Goal::AtMost(120.0),
            "after settling; users are named by UUIDs",
        ),
    ];
    figures.extend(replayed);
    figures.push(live);
    Ok(figures)
}

/// Lets compensation open the voucher and end, so that what it settles later is only orders.
fn open_gate(lanes: &Lanes) -> Result<()> {
    let compensation = lanes.world.start_service("compensation", &[]);
    site::wait_for_count(&compensation, "doorbuster_compensation_gates_opened_total", 1.0, |_| ())?;
    compensation.end();
    Ok(())
}

/// Five backlogs, a million orders in all: the rates, the ceiling, memory after the first 100,000 and in the end, and what a rebuild of those
/// takes.
fn drain(site: &Site, lanes: &mut Lanes) -> Result<(Rounds, f64, (f64, f64), f64)> {
    let connections = lanes.world.connections().clone();
    let payload = site::event(&lanes.world, &lanes.vouchers[0])?;
    let beside = site.world(1);
    let transactions = Transactions::start(beside.connections(), &beside.connections().topics.events)?;
    // The same table, so that it is as large for both.
    let mut table = postgres::Orders::connect(&connections.postgres, beside.voucher_id())?;
    let (backlog, bare) = (site.scale.count(BACKLOG), site.scale.count(BARE));
    // Warm-up, and a backlog for the bare consumer to begin with.
    lanes.drain(site.scale.count(MEMORY_FIRST as usize))?;
    let memory_rebuild = replay::rebuild(&lanes.world, &[])?.peak;
    table.rate(bare, LANE_BATCH)?;
    let memory_before = lanes.memory()?;
    let mut rounds: [Rounds; 3] = Default::default();
    let [drained, upsert, pass_on] = &mut rounds;
    let mut from = 1;
    for round in 1..=site.scale.rounds {
        upsert.push(table.rate(bare, LANE_BATCH)?);
        let source = (connections.topics.requests.as_str(), from);
        pass_on.push(kafka::consume_and_produce(&connections, source, &transactions, &payload, bare, LANE_BATCH)?);
        from += bare as i64;
        let steps = ["decode", "stable", "decide", "publish"];
        let sums = |orders: &Service| steps.iter().map(|step| step_sum(orders, step)).collect::<Result<Vec<f64>>>();
        let (before, batches) = (sums(&lanes.orders)?, lanes.step("count")?);
        let meter = site.meter(&[&lanes.orders]);
        drained.push(lanes.drain(backlog)?);
        let cost = meter.each(backlog as u64);
        let after = sums(&lanes.orders)?;
        let batches = (lanes.step("count")? - batches) / steps.len() as f64;
        let parts: Vec<String> = steps
            .iter()
            .zip(before.iter().zip(&after))
            .map(|(step, (before, after))| format!("{step} {:.2} ms", (after - before) * 1e3 / batches))
            .collect();
        let last = |rounds: &Rounds| short(*rounds.0.last().unwrap_or(&f64::NAN));
        site.say(&format!(
            "drain round {round}: bare upsert {}/s, bare consume and produce {}/s; drained {}/s",
            last(upsert),
            last(pass_on),
            last(drained)
        ));
        site.say(&format!("  a batch of about {:.0}: {}", backlog as f64 / batches, parts.join(", ")));
        site.say(&format!("  a request: {cost}"));
    }
    let ceiling = in_turn(&[upsert.median(), pass_on.median()]);
    let memory = (memory_before, lanes.memory()?);
    table.clear()?;
    Ok((rounds[0].clone(), ceiling, memory, memory_rebuild))
}

/// Seconds a step has taken so far.
fn step_sum(orders: &Service, step: &str) -> Result<f64> {
    site::metric(orders, &format!("doorbuster_orders_step_seconds_sum{{step=\"{step}\"}}"))
}

/// What settling a million events showed.
struct Settled {
    rate: Rounds,
    /// Bare rates.
    consume: f64,
    pipelines: f64,
    /// Resident, early and in the end.
    memory: (f64, f64),
    /// Bytes of Redis for a buyer.
    buyer: f64,
}

/// All decided orders settled by one compensation process in one go, looked at in as many parts as there are rounds.
fn settle(site: &Site, lanes: &Lanes) -> Result<Settled> {
    let connections = lanes.world.connections();
    // All but the voucher's own.
    let count = (lanes.positions.decided()? - 1) as f64;
    let bare = site.scale.count(2 * BARE);
    let beside = site.world(1);
    let voucher = beside.voucher_id();
    site::on_sale_in_redis(&beside, &voucher, site::terms(&beside, PLENTY, 0))?;
    let (mut consume, mut pipelines) = (Rounds::default(), Rounds::default());
    for round in 0..=site.scale.rounds {
        let orders = site::order_and_user(&beside, &voucher, bare);
        let seq = 2 + (round * bare) as i64;
        let settled = redis::settle(&connections.redis, &voucher, &orders, seq, SETTLE_BATCH)?;
        let read = kafka::consume(connections, &connections.topics.events, 1, bare)?;
        if round > 0 {
            pipelines.push(settled);
            consume.push(read);
        }
    }
    // So that only the system's buyers are in its memory.
    redis::forget(&connections.redis, &voucher)?;
    site.say(&format!("settle: bare consume {}/s, bare pipelines {}/s", short(consume.median()), short(pipelines.median())));

    let used = || redis::info(&connections.redis, "memory", "used_memory");
    let redis_before = used()?;
    let compensation = lanes.world.launch_service("compensation", "compensation", &[]);
    site::wait_for_listener(&compensation)?;
    let meter = site.meter(&[&compensation]);
    let memory = || resident(compensation.process.pid().unwrap_or(0)).context("compensation is gone");
    let (mut looks, mut memory_before) = (Vec::new(), None);
    site::wait_for_count(&compensation, SETTLED, count, |settled| {
        looks.push((Instant::now(), settled));
        if settled >= MEMORY_FIRST.min(count / 10.0) && memory_before.is_none() {
            memory_before = memory().ok();
        }
    })?;
    let cost = meter.each(count as u64);
    let at = |share: f64| looks.iter().find(|(_, settled)| *settled >= share * count).map(|(at, settled)| (*at, *settled));
    let mut rounds = Rounds::default();
    for round in 0..site.scale.rounds {
        let part = 0.98 / site.scale.rounds as f64;
        let begin = 0.01 + round as f64 * part;
        let ((began, first), (ended, last)) = at(begin).zip(at(begin + part)).context("the end was seen")?;
        rounds.push((last - first) / (ended - began).as_secs_f64());
    }
    site.say(&format!("settled {count:.0} events: {}; an event: {cost}", rounds.spread()));
    // The last batch's garbage goes with the next look of the allocator's.
    thread::sleep(Duration::from_secs(1));
    let memory_after = memory()?;
    let buyer = (used()? - redis_before) / count;
    compensation.end();
    let memory = (memory_before.context("it was looked at")?, memory_after);
    Ok(Settled { rate: rounds, consume: consume.median(), pipelines: pipelines.median(), memory, buyer })
}

/// Measures [`TWO_PARTITIONS`]: the same backlog on two partitions, both lanes in one process. `one`: what one lane drained in this run.
pub(crate) fn two_partitions(site: &Site, one: Option<f64>, cores: usize) -> Result<Figure> {
    let one = match one {
        Some(one) => one,
        None => {
            let mut lanes = Lanes::start(site, 1)?;
            lanes.drain(site.scale.count(SHORT_BACKLOG))?;
            lanes.drain(site.scale.count(BACKLOG))?
        }
    };
    // The servers keep two busy.
    let (gain, why) = if cores >= 4 { (1.6, "1.6x one lane") } else { (1.0, "one lane: no core is free") };
    let mut lanes = Lanes::start(site, 2)?;
    lanes.drain(site.scale.count(SHORT_BACKLOG))?;
    let mut drained = Rounds::default();
    for round in 1..=site.scale.rounds {
        let meter = site.meter(&[&lanes.orders]);
        drained.push(lanes.drain(site.scale.count(BACKLOG / 2))?);
        let cost = meter.each(site.scale.count(BACKLOG / 2) as u64);
        site.say(&format!("two partitions round {round}: {}/s; {cost}", short(*drained.0.last().unwrap_or(&f64::NAN))));
    }
    let notes = format!("{}; ceiling: {why}", drained.spread());
    Ok(Figure::new("drained_two", "requests/s", drained.median(), Some(gain * one), Goal::AtLeast(0.8), notes))
}
