//! What an operator waits for: the tables built anew and compared, with and without a sale that goes on, Redis replayed from the log. Each is
//! measured as he runs it.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use domain::VoucherId;
use infra::redis::Gate;
use serde_json::Value;
use testkit::{Service, World, binary, block_on};

use crate::{
    bare::postgres,
    buyers,
    figure::{Figure, Goal, Rounds, short},
    http::{self, Answers},
    machine::peak,
    site::{self, Site},
};

/// Between two looks at how much memory a command has used.
const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(300);
/// Purchases a second of the sale under which tables are swapped, of which at least this share must come and be accepted.
const LIVE: f64 = 200.0;
const LEAST: f64 = 0.9;
const ACCEPTED: u16 = 202;
const CONNECTIONS: usize = 64;
/// The sale goes on in stretches, until somebody says that it is enough.
const STRETCH: Duration = Duration::from_secs(2);
/// Between two looks of a reader.
const READ: Duration = Duration::from_millis(2);
/// Between two of his looks at every row.
const COUNT: Duration = Duration::from_secs(1);

/// What a command said, in JSON, and the most memory it had, in bytes.
struct Ran {
    said: Value,
    peak: f64,
}

fn run(world: &World, args: &[&str]) -> Result<Ran> {
    let mut command = Command::new(binary());
    command.args(args).envs(world.env_vars()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let pid = child.id();
    let mut most = 0.0_f64;
    // What it prints fits into the pipe.
    while child.try_wait()?.is_none() {
        most = most.max(peak(pid).unwrap_or(0.0));
        thread::sleep(LOOK);
    }
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{args:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stdout));
    Ok(Ran { said: serde_json::from_slice(&output.stdout).unwrap_or_default(), peak: most })
}

/// The tables built anew, beside the live ones.
pub(crate) struct Rebuilt {
    events: f64,
    /// Folded, written and indexed, in seconds.
    built: f64,
    compared: f64,
    pub(crate) peak: f64,
}

/// Runs `rebuild orders`, which must find the tables equal; `more`: further words of the command.
pub(crate) fn rebuild(world: &World, more: &[&str]) -> Result<Rebuilt> {
    let Ran { said, peak } = run(world, &[&["rebuild", "orders", "--json"], more].concat())?;
    let number = |name: &str| said[name].as_f64().with_context(|| format!("there is no {name} in {said}"));
    let events = said["partitions"].as_array().context("partitions")?.iter().filter_map(|p| p["events"].as_f64()).sum();
    Ok(Rebuilt { events, built: number("fold_seconds")? + number("index_seconds")?, compared: number("compare_seconds")?, peak })
}

/// How long `explain` takes, in milliseconds: the median over orders from all over the voucher's sale.
pub(crate) fn explain(world: &World, voucher: &VoucherId) -> Result<f64> {
    let sql = "SELECT order_id::text FROM orders WHERE voucher_id = $1 AND voucher_seq = ANY \
               (SELECT 2 + (n * (SELECT seq - 2 FROM vouchers WHERE voucher_id = $1)) / 10 FROM generate_series(0::bigint, 10) n)";
    let rows = block_on(async { world.postgres().await.query(sql, &[&voucher.as_str()]).await })?;
    ensure!(rows.len() > 5, "{} orders of {voucher} to explain", rows.len());
    let mut took = Rounds::default();
    for row in rows {
        let began = Instant::now();
        run(world, &["explain", row.try_get(0)?, "--json"])?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took.median())
}

/// What the figures of a million events are held against.
pub(crate) struct Ceilings {
    /// Most memory of a rebuild of about a tenth of the events.
    pub(crate) memory: f64,
    /// What a lane decides a second.
    pub(crate) drained: f64,
    /// What bare pipelines of settle.lua apply a second.
    pub(crate) pipelines: f64,
    /// What `explain` takes where the log has 10,000 events.
    pub(crate) explain: f64,
}

/// Figures where the log has a million events.
pub(crate) fn measure(site: &Site, world: &World, voucher: &VoucherId, ceilings: &Ceilings) -> Result<Vec<Figure>> {
    let (mut built, mut compared, mut copied, mut most) = (Rounds::default(), Rounds::default(), Rounds::default(), 0.0_f64);
    for round in 1..=site.scale.rounds.min(3) {
        copied.push(postgres::copy(&world.connections().postgres)?);
        let rebuilt = rebuild(world, &[])?;
        built.push(rebuilt.events / rebuilt.built);
        compared.push(rebuilt.compared / rebuilt.built);
        most = most.max(rebuilt.peak);
        site.say(&format!(
            "rebuild round {round}: bare COPY {} rows/s; {} events in {:.1} s, {:.1} s to compare, {:.0} MB",
            short(copied.0[round - 1]),
            rebuilt.events,
            rebuilt.built,
            rebuilt.compared,
            rebuilt.peak / 1e6
        ));
    }
    let replayed = redis(site, world, voucher)?;
    let explained = explain(world, voucher)?;
    let rate = "events/s";
    Ok(vec![
        Figure::new("rebuild", rate, built.median(), Some(copied.median()), Goal::AtLeast(0.6), built.spread()),
        Figure::new("rebuild_lane", rate, built.median(), Some(ceilings.drained), Goal::AtLeast(3.0), "ceiling: drained"),
        Figure::new("rebuild_compare", "", compared.median(), None, Goal::AtMost(1.0), "of the time to build"),
        Figure::new(
            "rebuild_memory",
            "bytes",
            most,
            Some(ceilings.memory),
            Goal::AtMost(1.2),
            "ceiling: with a tenth of the events",
        ),
        Figure::new("rebuild_redis", rate, replayed.median(), Some(ceilings.pipelines), Goal::AtLeast(0.7), replayed.spread()),
        Figure::new("explain", "ms", explained, Some(ceilings.explain), Goal::AtMost(1.5), "ceiling: with 10,000 events"),
    ])
}

/// Waits until Redis has all that is decided of a voucher that is on sale, and says how far that is.
fn settled(world: &World, voucher: &VoucherId) -> Result<i64> {
    let decided = seq(world, voucher)?;
    let is_there = || world.in_redis(voucher).is_some_and(|found| found.gate == Gate::Ready && found.seq >= decided);
    testkit::wait_until(PATIENCE, "the voucher in Redis", is_there);
    Ok(decided)
}

/// How many events of the voucher Postgres has.
fn seq(world: &World, voucher: &VoucherId) -> Result<i64> {
    let sql = "SELECT seq FROM vouchers WHERE voucher_id = $1";
    Ok(block_on(async { world.postgres().await.query_one(sql, &[&voucher.as_str()]).await })?.try_get(0)?)
}

/// `rebuild orders --swap` again and again while a sale goes on and somebody reads. `alone`: events/s without them. An error where a buyer is turned
/// away, an order is lost, or the reader sees anything but whole tables that only grow.
pub(crate) fn live(site: &Site, world: &World, voucher: &VoucherId, alone: f64) -> Result<Figure> {
    let [compensation, purchase] = ["compensation", "purchase"].map(|name| world.start_service(name, &[]));
    let before = settled(world, voucher)?;
    let (address, rounds, over) = (site::address(&purchase)?, site.scale.rounds.min(3), AtomicBool::new(false));
    let (rebuilt, sold, read) = thread::scope(|scope| {
        let sale = scope.spawn(|| sell(address, voucher, &over));
        let reader = scope.spawn(|| block_on(look(world, voucher, &over)));
        let rebuilt = (0..rounds).map(|_| Ok((rebuild(world, &["--swap"])?, seq(world, voucher)?))).collect::<Result<Vec<_>>>();
        over.store(true, Relaxed);
        (rebuilt, sale.join().expect("the sale does not panic"), reader.join().expect("the reader does not panic"))
    });
    let (rebuilt, sold, read) = (rebuilt?, sold?, read?);
    let after = before + i64::try_from(sold.of(ACCEPTED))?;
    testkit::wait_until(PATIENCE, "what was sold to be decided", || seq(world, voucher).is_ok_and(|seq| seq >= after));
    let last = rebuilt.last().context("rounds")?.1;
    ensure!(seq(world, voucher)? == after || cfg!(debug_assertions), "more than the {after} events of what was sold");
    let rows = "SELECT count(*) FROM orders WHERE voucher_id = $1";
    let rows: i64 = block_on(async { world.postgres().await.query_one(rows, &[&voucher.as_str()]).await })?.try_get(0)?;
    ensure!(
        rows + 1 == after || cfg!(debug_assertions),
        "{rows} orders have rows after {after} events, the voucher's opening among them"
    );
    ensure!(before < last && last < after, "nothing was sold before or after the last swap: {before}, {last}, {after}");
    ensure!(read.swaps == rounds, "the reader saw {} swaps of {rounds}", read.swaps);
    let ms = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64() * 1e3;
    site.say(&format!(
        "{rounds} swaps under a sale: {} accepted, {:.0}/s, p50 {:.1} p99 {:.1} longest {:.1} ms; {} looks at the tables, the longest {:.1} ms, {} at every row",
        sold.of(ACCEPTED),
        sold.rate(ACCEPTED),
        ms(sold.latency.at(0.5)),
        ms(sold.latency.at(0.99)),
        ms(sold.latency.at(1.0)),
        read.looks,
        ms(Some(read.longest)),
        read.whole,
    ));
    [&purchase, &compensation].into_iter().for_each(Service::end);
    let built = Rounds(rebuilt.iter().map(|(rebuilt, _)| rebuilt.events / rebuilt.built).collect());
    Ok(Figure::new("rebuild_live", "events/s", built.median(), Some(alone), Goal::AtLeast(0.3), built.spread()))
}

/// Buyers come until it is over and for a stretch more, and each must get his order.
fn sell(address: SocketAddr, voucher: &VoucherId, over: &AtomicBool) -> Result<Answers> {
    let mut all = Answers::default();
    for seed in 0.. {
        let is_last = over.load(Relaxed);
        let arrivals = buyers::arrivals(LIVE, STRETCH, seed);
        let calls = buyers::calls(voucher, arrivals.len());
        all.add(http::open(address, calls, arrivals, CONNECTIONS, ACCEPTED, PATIENCE)?);
        if is_last {
            break;
        }
    }
    let all = all.only(ACCEPTED)?;
    ensure!(all.rate(ACCEPTED) >= LEAST * LIVE || cfg!(debug_assertions), "{:.0} purchases/s", all.rate(ACCEPTED));
    Ok(all)
}

/// What a reader saw.
#[derive(Default)]
struct Looks {
    looks: u64,
    longest: Duration,
    /// Looks that counted all rows.
    whole: u64,
    swaps: usize,
}

/// Reads the voucher and an order of it, each time in one snapshot, and now and then counts all of them: each event but the opening made one.
async fn look(world: &World, voucher: &VoucherId, over: &AtomicBool) -> Result<Looks> {
    let client = world.postgres().await;
    client.batch_execute("SET max_parallel_workers_per_gather = 0").await?;
    let one = client.query_one("SELECT order_id FROM orders WHERE voucher_id = $1 LIMIT 1", &[&voucher.as_str()]).await?;
    let one: uuid::Uuid = one.try_get(0)?;
    let sql = "SELECT v.seq, v.tableoid, o.tableoid FROM vouchers v JOIN orders o USING (voucher_id) WHERE voucher_id = $1 AND order_id = $2";
    let sql = client.prepare(sql).await?;
    let all = "SELECT seq, (SELECT count(*) FROM orders WHERE voucher_id = $1) FROM vouchers WHERE voucher_id = $1";
    let all = client.prepare(all).await?;
    let (mut seen, mut before, mut counted) = (Looks::default(), None::<(i64, u32, u32)>, Instant::now());
    loop {
        let is_last = over.load(Relaxed);
        let began = Instant::now();
        let row = client.query_one(&sql, &[&voucher.as_str(), &one]).await?;
        seen.longest = seen.longest.max(began.elapsed());
        seen.looks += 1;
        let now: (i64, u32, u32) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        if let Some(before) = before {
            let is_swapped = now.1 != before.1;
            ensure!(now.0 >= before.0 && is_swapped == (now.2 != before.2), "{now:?} was read after {before:?}");
            seen.swaps += usize::from(is_swapped);
        }
        before = Some(now);
        if counted.elapsed() > COUNT {
            let row = client.query_one(&all, &[&voucher.as_str()]).await?;
            let (seq, rows): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
            ensure!(rows + 1 == seq && seq >= now.0, "{rows} orders beside {seq} events, after {now:?}");
            (seen.whole, counted) = (seen.whole + 1, Instant::now());
        }
        if is_last {
            return Ok(seen);
        }
        tokio::time::sleep(READ).await;
    }
}

/// Events a second that compensation replays into Redis when it is asked to.
fn redis(site: &Site, world: &World, voucher: &VoucherId) -> Result<Rounds> {
    let compensation = world.start_service("compensation", &[]);
    let seq = settled(world, voucher)?;
    let mut rounds = Rounds::default();
    for _ in 0..site.scale.rounds.min(3) {
        let began = Instant::now();
        run(world, &["rebuild", "redis", voucher.as_str(), "--apply", "--wait", "5m"])?;
        rounds.push(seq as f64 / began.elapsed().as_secs_f64());
    }
    site.say(&format!("rebuild redis, {seq} events: {}", rounds.spread()));
    compensation.end();
    Ok(rounds)
}
