//! What an operator waits for: the tables built anew and compared, Redis replayed from the log. Each is measured as he runs it.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use domain::VoucherId;
use infra::redis::Gate;
use serde_json::Value;
use testkit::{World, binary, block_on};

use crate::{
    bare::postgres,
    figure::{Figure, Goal, Rounds, short},
    machine::peak,
    site::Site,
};

/// Between two looks at how much memory a command has used.
const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(300);

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

/// Runs `rebuild orders`, which must find the tables equal.
pub(crate) fn rebuild(world: &World) -> Result<Rebuilt> {
    let Ran { said, peak } = run(world, &["rebuild", "orders", "--json"])?;
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
        let rebuilt = rebuild(world)?;
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

/// Events a second that compensation replays into Redis when it is asked to.
fn redis(site: &Site, world: &World, voucher: &VoucherId) -> Result<Rounds> {
    let is_ready = || world.in_redis(voucher).filter(|found| found.gate == Gate::Ready).map(|found| found.seq);
    let compensation = world.start_service("compensation", &[]);
    let seq = testkit::wait_for(PATIENCE, "the voucher in Redis", is_ready);
    let sql = "SELECT seq FROM vouchers WHERE voucher_id = $1";
    let decided: i64 = block_on(async { world.postgres().await.query_one(sql, &[&voucher.as_str()]).await })?.try_get(0)?;
    ensure!(seq == decided, "Redis is at {seq} of {decided}: settle first");
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
