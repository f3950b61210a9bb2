//! `rebuild redis`: has compensation replay vouchers in Redis from the log, and waits until it has.

use std::time::{Duration, Instant};

use domain::{Voucher, VoucherId};
use indicatif::ProgressBar;
use infra::{
    config::Connections,
    postgres,
    redis::{Gate, Store, StoreError, VoucherInRedis},
};
use uuid::Uuid;

use crate::{DIFFERENT, OK, UNKNOWN, connect, output, time};

/// Between two looks at how far compensation is.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Replay vouchers in Redis from the log; reservations in flight stay, purchases get 503 meanwhile
#[derive(clap::Args)]
#[command(after_help = "\
Compensation does it, and must be running. A voucher is done when it is at least where Postgres had it at the start and is sold again.

Exit code: 0 done; 1 Redis does not have one of them; 2 not done within the wait.

Examples:
  doorbuster rebuild redis tv radio
  doorbuster rebuild redis tv --apply
  doorbuster rebuild redis --all --apply --wait 10m")]
pub(crate) struct Args {
    #[arg(required_unless_present = "all", value_parser = VoucherId::parse)]
    vouchers: Vec<VoucherId>,
    /// All that Redis has
    #[arg(long, conflicts_with = "vouchers")]
    all: bool,
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
    /// How long to wait until they are replayed
    #[arg(long, default_value = "2m", value_parser = time::parse_duration)]
    wait: Duration,
}

pub(super) async fn execute(args: Args) -> anyhow::Result<u8> {
    ask(&connect::connections()?, if args.all { None } else { Some(&args.vouchers) }, args.apply, args.wait).await
}

/// Asks compensation to replay these vouchers (`None`: all that Redis has), frozen ones too, and waits; without `apply` only shows the plan.
/// Refused where that needs events that were deleted: the gate would never open again.
pub(crate) async fn ask(
    connections: &Connections,
    vouchers: Option<&[VoucherId]>,
    apply: bool,
    wait: Duration,
) -> anyhow::Result<u8> {
    let store = Store::connect(&connections.redis).await?;
    let rows = postgres::vouchers(&postgres::pool(connections, 1)?, None).await?;
    let wanted = match vouchers {
        Some(named) => named.to_vec(),
        None => rows.iter().map(|row| row.id.clone()).collect(),
    };
    let until = Instant::now() + if apply { wait } else { Duration::ZERO };
    let mut code = OK;
    let mut there = Vec::new();
    for voucher in wanted {
        if patiently(until, async || store.voucher(&voucher).await).await?.is_some() {
            there.push(voucher);
        } else if vouchers.is_some() {
            let known = match rows.iter().any(|row| row.id == voucher) {
                true => "compensation rebuilds it unasked, unless it has archived it",
                false => "nor does Postgres: `doorbuster voucher list` shows those there are",
            };
            output::line(&output::red(&format!("Redis does not have voucher {voucher}; {known}")));
            code = DIFFERENT;
        }
        // Else archived, or about to be built unasked.
    }
    let partitions = rows.iter().filter(|row| there.contains(&row.id)).map(|row| row.terms.partition);
    replay::check_history(connections, partitions.collect()).await?;
    if !apply || there.is_empty() {
        let steps: Vec<_> = there.iter().map(|voucher| format!("replay voucher {voucher} in Redis from the log")).collect();
        output::steps(apply, &steps, "nothing to replay");
        return Ok(code);
    }
    for voucher in &there {
        let epoch = Uuid::new_v4().to_string();
        if patiently(until, async || store.ask_rebuild(voucher, &epoch).await).await? {
            outln!("did: close the gate of voucher {voucher}; `doorbuster run compensation` replays and opens it");
        } else {
            outln!("voucher {voucher} has gone from Redis meanwhile; compensation rebuilds it unasked");
        }
    }
    Ok(code.max(watch(&store, &there, &rows, until).await?))
}

/// The answer of a call that can be repeated: what compensation does goes on, and one late answer of Redis says nothing about it.
async fn patiently<T>(until: Instant, call: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut is_told = false;
    loop {
        match call().await {
            Err(error @ (StoreError::Unknown(_) | StoreError::Unavailable(_))) if Instant::now() < until => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "asking again until the wait is over");
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            answer => return answer,
        }
    }
}

/// Waits until all are replayed, and shows how far they are.
async fn watch(store: &Store, asked: &[VoucherId], rows: &[Voucher], until: Instant) -> anyhow::Result<u8> {
    let seq_of = |voucher: &VoucherId| rows.iter().find(|row| row.id == *voucher).map_or(0, |row| row.seq);
    let bar = ProgressBar::new(asked.iter().map(|voucher| seq_of(voucher).unsigned_abs()).sum());
    output::style(&bar, "{elapsed_precise} [{bar:40}] {pos}/{len} events, {per_sec}, {eta} left");
    let started = Instant::now();
    loop {
        let (mut passed, mut missing) = (0, Vec::new());
        for voucher in asked {
            let (found, seq) = (patiently(until, async || store.voucher(voucher).await).await?, seq_of(voucher));
            passed += found.as_ref().map_or(0, |found| found.seq.clamp(0, seq).unsigned_abs());
            let is_done = |found: &VoucherInRedis| found.gate == Gate::Ready && !found.rebuild && found.seq >= seq;
            if !found.as_ref().is_some_and(is_done) {
                missing.push((voucher, found));
            }
        }
        bar.set_position(passed);
        if missing.is_empty() || Instant::now() >= until {
            bar.finish_and_clear();
            for (voucher, found) in &missing {
                let now = found.as_ref().map_or("is gone from Redis".to_owned(), |found| {
                    format!("is {} at {} of {} events", found.gate.as_str(), found.seq, seq_of(voucher))
                });
                output::line(&output::red(&format!("voucher {voucher} {now}: is `doorbuster run compensation` running?")));
            }
            if missing.is_empty() {
                output::line(&output::green(&format!("replayed in {:.1} s", started.elapsed().as_secs_f64())));
            }
            return Ok(if missing.is_empty() { OK } else { UNKNOWN });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
