//! `demo`: a whole sale on servers of its own, and the proof at the end.
//!
//! Everything is real: Kafka, Redis, Postgres and a schema registry as child processes, the three services as child processes of
//! this very binary, buyers over HTTP. Secrets are made for this run.

mod checks;
mod fates;
mod screen;
mod services;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use devstack::{Stack, StackOptions};
use domain::{MAX_TOTAL, Money, Request, RequestBody, Terms, VoucherId};
use events::Codec;
use infra::{config::Connections, redis::Store, shutdown};
use load::{Plan, Report, Shape};
use replay::{Audit, AuditOptions};
use uuid::Uuid;

use self::{checks::Check, fates::Fates, services::Services};
use crate::{
    DIFFERENT, OK, connect,
    load::{CONNECTIONS, buyers, come, print_answers, print_quantiles},
    time, topics, voucher,
};

const EXAMPLES: &str = "\
Exit code: 0 only if every check and the audit hold; 1 if one does not; 2 if the demo could not run.

Examples:
  doorbuster demo
  doorbuster demo --users 2000 --units 500 --seconds 2
  doorbuster demo --keep                                 leaves the shop open for curl, until Ctrl-C";

/// Run a whole sale on servers of its own and prove that not one unit was lost or sold twice
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Buyers; each wants one unit
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    users: u32,
    /// Units on sale
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(i64).range(1..=MAX_TOTAL))]
    units: i64,
    /// All buyers come within this many seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Leave the shop open at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Keep data and logs in this new folder; without: data goes at the end, logs stay
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Decides who comes when and who clicks twice
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Share of buyers who click twice.
const DOUBLE_CLICKS: f64 = 0.05;

/// Tries of a buyer who met overload or an error.
const RETRIES: u32 = 8;

/// For one answer: longer than purchase ever takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// For the voucher to be decided and open in Redis.
const OPENING_DEADLINE: Duration = Duration::from_secs(60);

/// For everything accepted to be decided and settled after the last buyer left.
const SETTLE_DEADLINE: Duration = Duration::from_secs(120);

/// Pause between two looks while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The voucher on sale.
const VOUCHER: &str = "tv-for-one-euro";

/// What a sale has led to.
struct Outcome {
    report: Report,
    fates: Fates,
    audit: Audit,
    visible: load::Quantiles,
    order_rows: u64,
    settled_after: Duration,
    checks: Vec<Check>,
}

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    let stop = shutdown::on_signals()?;
    if let Some(dir) = &args.dir {
        let used = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        ensure!(!used, "{} is not empty: give the demo a new folder", dir.display());
    }
    say("starting Kafka, Redis, Postgres and the schema registry");
    let options = StackOptions { dir: args.dir.clone(), ..StackOptions::default() };
    let stack = tokio::task::spawn_blocking(move || Stack::start(options)).await??;
    let secrets = services::Secrets::made_up();
    let outcome = tokio::select! {
        outcome = sale(&args, &stack, &secrets) => outcome,
        // What was begun is dropped, and with it the services; the servers go with the stack.
        () = stop.cancelled() => Err(anyhow!("interrupted")),
    };
    let logs = || if args.dir.is_some() { Ok(stack.folder().to_path_buf()) } else { stack.keep_logs() };
    let (services, mut outcome) = match outcome {
        Ok(done) => done,
        Err(error) => return Err(error.context(format!("the demo was not finished; logs are in {}", logs()?.display()))),
    };
    if args.keep {
        screen::print(&args, &outcome, stack.folder());
        screen::print_open(&services, &services::connections(&stack)?, &secrets);
        stop.cancelled().await;
    }
    say("asking the services to end");
    outcome.checks.push(checks::ended(services.end().await));
    drop(services);
    if args.keep {
        screen::print_end(&outcome, &logs()?);
    } else {
        screen::print(&args, &outcome, &logs()?);
    }
    let holds = outcome.checks.iter().all(|check| check.holds);
    tokio::task::spawn_blocking(move || stack.stop()).await??;
    Ok(if holds { OK } else { DIFFERENT })
}

/// The whole sale, up to the audit. Gives the services, which are still running.
async fn sale(args: &Args, stack: &Stack, secrets: &services::Secrets) -> anyhow::Result<(Services, Outcome)> {
    let connections = services::connections(stack)?;
    say("making topics and tables");
    topics::bring_about(&connections, None, true).await?;
    infra::postgres::migrate(&connections).await?;
    let codec = connect::codec(&connections).await?;
    say("starting purchase, orders and compensation");
    let services = Services::start(stack, secrets).await?;
    let voucher = VoucherId::parse(VOUCHER)?;
    let partition = open(&connections, &codec, &voucher, args.units).await?;

    say(&format!("{} buyers come within {} s for {} units", args.users, args.seconds, args.units));
    let (secret, users) = (secrets.jwt.clone(), args.users);
    let people = tokio::task::spawn_blocking(move || buyers(&secret, "buyer", users)).await??;
    let tail = fates::Tail::start(&connections, codec.clone(), partition)?;
    let plan = Plan {
        urls: vec![services.url()],
        voucher: voucher.to_string(),
        quantity: None,
        window: Duration::from_secs(args.seconds),
        shape: Shape::Even,
        double_clicks: DOUBLE_CLICKS,
        retries: RETRIES,
        connections: CONNECTIONS as usize,
        timeout: ANSWER_TIMEOUT,
        seed: args.seed,
    };
    let report = come(&plan, people).await?;

    say("waiting until everything is decided and settled");
    let left = Instant::now();
    let settled = settle(&connections, &codec, &voucher, &report, &tail).await.map_err(|missing| format!("{missing:#}"));
    let settled_after = left.elapsed();
    say("auditing");
    let audit = replay::audit(&connections, &codec, AuditOptions::default()).await;
    let fates = tail.finish()?;
    let visible = fates.visible_after(&report);
    let checks = checks::all(args.units, &report, &fates, &audit, settled);
    let outcome = Outcome { visible, order_rows: audit.order_rows, report, fates, audit, settled_after, checks };
    Ok((services, outcome))
}

/// Publishes the voucher and waits until it can be bought. Gives its partition.
async fn open(connections: &Connections, codec: &Codec, voucher: &VoucherId, units: i64) -> anyhow::Result<i32> {
    let partition = events::partition_for(voucher, connect::partitions(connections).await?);
    let now = time::now();
    let terms = Terms {
        title: "TV for 1 EUR".to_owned(),
        total: units,
        per_user_limit: 1,
        begins_at: now.plus(-60_000),
        ends_at: now.plus(24 * 3_600_000),
        price: Money::new(100, "EUR"),
        payment_window_ms: None,
        partition,
    };
    let request = Request {
        id: Uuid::new_v4(),
        voucher_id: voucher.clone(),
        actor: "demo".to_owned(),
        reason: None,
        body: RequestBody::VoucherPublished(terms),
    };
    let event = voucher::decide(connections, codec, partition, &request, OPENING_DEADLINE).await?;
    let event = event.context("no lane decided about the voucher in time")?;
    ensure!(event.voucher_seq == 1, "the voucher was not opened: {:?}", event.body);
    let store = Store::connect(&connections.redis).await?;
    until(OPENING_DEADLINE, async || {
        let is_open = store.voucher(voucher).await?.is_some_and(|v| v.gate == infra::redis::Gate::Ready);
        ensure!(is_open, "compensation did not open the voucher in Redis in time");
        Ok(())
    })
    .await?;
    Ok(partition)
}

/// Looks again and again until nothing is missing any more; fails with what is missing in the end.
async fn until(patience: Duration, look: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        match look().await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(LOOK_EVERY).await,
            done => return done,
        }
    }
}

/// Waits until every 202 has a fate, nothing is reserved in Redis and nobody is behind; an error says what is missing in the end.
async fn settle(
    connections: &Connections,
    codec: &Codec,
    voucher: &VoucherId,
    report: &Report,
    tail: &fates::Tail,
) -> anyhow::Result<()> {
    until(SETTLE_DEADLINE, async || {
        let without = tail.without_fate(report);
        ensure!(without == 0, "{without} accepted orders have no fate");
        let in_redis = Store::connect(&connections.redis).await?.voucher(voucher).await?;
        let reserved = in_redis.context("Redis has lost the voucher")?.reserved;
        ensure!(reserved == 0, "{reserved} units are still reserved in Redis");
        let lag = replay::lag(connections, codec).await?;
        ensure!(lag.is_none(), "somebody is behind: {:?}", lag.partitions);
        Ok(())
    })
    .await
}

/// A step of the demo, for people who wait.
fn say(step: &str) {
    eprintln!("demo: {step}");
}
