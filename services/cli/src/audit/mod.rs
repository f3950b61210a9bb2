//! `audit`: proves that no unit was lost or sold twice, over Redis, the log and Postgres.

mod metrics;
mod watch;

use std::{net::SocketAddr, time::Duration};

use replay::{Audit, AuditOptions, PartitionRead, Verdict};

use crate::{DIFFERENT, OK, UNKNOWN, connect, output, time};

const EXAMPLES: &str = "\
The events are read from the beginning of the log and added up for each voucher, and compared with its row, the sums of its orders and its
numbers in Redis, each at the very point of the log where it stands; and every request must have one event, every unreadable one its dead letter.
--deep decides every request again and compares every row of orders and every entry of Redis' hashes: slower, with every order in memory. May be
run while a sale goes on: what is on its way is counted, not blamed.

--watch goes on until SIGTERM or Ctrl-C, a line a round, and the differences whenever they are others than before. After the first round it reads only what came
since (with --deep: everything). --listen offers /metrics: docs/METRICS.md; compose/alerts.yml has rules for Prometheus.

Exit code: 0 equal; 1 different; 2 could not tell. With --watch that of the last round.

Examples:
  doorbuster audit
  doorbuster audit --deep --json
  doorbuster audit --watch --every 10s --listen 0.0.0.0:9104";

/// Shorter rounds would only be load on the stores.
const SHORTEST: Duration = Duration::from_millis(100);

/// Prove that no unit was lost or sold twice
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Also decide every request again, and compare every row and every entry of a hash
    #[arg(long)]
    deep: bool,
    /// How long to wait for what is on its way
    #[arg(long, default_value = "10s", value_parser = time::parse_duration)]
    patience: Duration,
    /// Again and again, until told to stop
    #[arg(long)]
    watch: bool,
    /// From the beginning of one round to that of the next
    #[arg(long, default_value = "30s", requires = "watch", value_parser = pause)]
    every: Duration,
    /// Where to offer health and metrics
    #[arg(long, requires = "watch", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// As JSON; with --watch a line a round
    #[arg(long)]
    json: bool,
}

fn pause(text: &str) -> Result<Duration, String> {
    let pause = time::parse_duration(text)?;
    if pause < SHORTEST { Err(format!("at least {SHORTEST:?}")) } else { Ok(pause) }
}

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    let (connections, codec) = connect::log().await?;
    let options = AuditOptions { patience: args.patience, deep: args.deep };
    if args.watch {
        return watch::watch(&args, replay::Auditor::new(&connections, &codec, options)).await;
    }
    let audit = replay::audit(&connections, &codec, options).await;
    output::show(args.json, &audit, print)?;
    Ok(code_of(&audit.verdict))
}

pub(crate) fn code_of(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Equal => OK,
        Verdict::Different { .. } => DIFFERENT,
        Verdict::CannotTell { .. } => UNKNOWN,
    }
}

fn print(audit: &Audit) {
    let heading = ["VOUCHER", "TOTAL", "LEFT", "SOLD", "SEQ", "REDIS STOCK", "RESERVED", "SOLD", "SEQ"];
    let Audit { verdict, vouchers, read, requests, events, partitions, order_rows, dead_letters, .. } = audit;
    let rows = vouchers.iter().map(|v| {
        let [stock, reserved, sold, seq] = [v.redis_stock, v.redis_reserved, v.redis_sold, v.redis_seq].map(output::or_dash);
        row![v.voucher, v.total, v.remaining, v.sold, v.seq, stock, reserved, sold, seq]
    });
    output::table(heading, rows);
    print_read(read);
    let found = format!("{order_rows} rows of orders; {dead_letters} dead letters; {}", on_its_way(audit));
    outln!("{requests} requests, {events} events on {partitions} partitions; {found}; {:.1} s", audit.seconds);
    print_verdict(verdict, COMPARED);
}

/// What is counted and not blamed.
fn on_its_way(audit: &Audit) -> String {
    format!("{} undecided, {} in flight", audit.undecided, audit.in_flight)
}

/// How far each partition of the log was read.
pub(crate) fn print_read(read: &[PartitionRead]) {
    let rows = read.iter().map(|p| row![p.partition, p.begin, p.end, p.events, p.next_request]);
    output::table(["PARTITION", "FROM", "END AT START", "EVENTS", "NEXT REQUEST"], rows);
}

/// What an audit compares.
pub(crate) const COMPARED: &str = "Redis, the log and Postgres";

pub(crate) fn print_verdict(verdict: &Verdict, compared: &str) {
    match verdict {
        Verdict::Equal => output::line(&output::green(&format!("equal: {compared} tell the same story"))),
        Verdict::Different { counts, first } => {
            let counted: Vec<String> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            output::line(&output::red(&format!("different: {}", counted.join(", "))));
            first.iter().for_each(|d| outln!("  {}: {}", d.kind, d.what));
            let more = counts.values().sum::<u64>().saturating_sub(first.len() as u64);
            if more > 0 {
                outln!("  and {more} more");
            }
        }
        Verdict::CannotTell { reasons } => {
            output::line(&output::red("could not tell:"));
            reasons.iter().for_each(|reason| outln!("  {reason}"));
        }
    }
}
