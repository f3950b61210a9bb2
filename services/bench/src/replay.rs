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

/// Figures of `rebuild orders` and `rebuild redis` where the log has a million events. `first`: memory at about a tenth; `drained`: what a
/// lane decides a second; `pipelines`: what bare pipelines of settle.lua apply a second.
pub(crate) fn measure(
    site: &Site,
    world: &World,
    voucher: &VoucherId,
    (first, drained, pipelines): (f64, f64, f64),
) -> Result<Vec<Figure>> {
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
    let rate = "events/s";
    Ok(vec![
        Figure::new("rebuild", rate, built.median(), Some(copied.median()), Goal::AtLeast(0.6), built.spread()),
        Figure::new("rebuild_lane", rate, built.median(), Some(drained), Goal::AtLeast(3.0), "ceiling: drained"),
        Figure::new("rebuild_compare", "", compared.median(), None, Goal::AtMost(1.0), "of the time to build"),
        Figure::new("rebuild_memory", "bytes", most, Some(first), Goal::AtMost(1.2), "ceiling: with a tenth of the events"),
        Figure::new("rebuild_redis", rate, replayed.median(), Some(pipelines), Goal::AtLeast(0.7), replayed.spread()),
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
