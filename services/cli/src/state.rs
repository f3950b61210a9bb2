//! `state`: a voucher as it was at some point of the log.

use domain::VoucherId;
use replay::{Point, StateAt, StateOptions};

use crate::{DIFFERENT, audit, connect, output, time, voucher};

const EXAMPLES: &str = "\
The voucher's partition of order-events is read from its beginning up to the point, and folded. Postgres is asked only in which partition the
voucher lives. A number is an offset of order-events in that partition, the last one that counts; an instant is the broker's, of the events.

Exit code: 0 told; 1 the voucher was not opened by then, or the log is wrong; 2 could not tell.

Examples:
  doorbuster state tv --at -10m
  doorbuster state tv --at 2026-11-27T09:00:00+01:00 --orders
  doorbuster state tv --at 123456 --json";

/// Show a voucher's stock, orders and totals as they were
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[arg(value_parser = VoucherId::parse)]
    voucher: VoucherId,
    /// An instant (now, -10m, RFC 3339) or an offset
    #[arg(long, value_name = "TIME|OFFSET", value_parser = time::parse_point)]
    at: Point,
    /// Where the voucher lives, if Postgres does not know it
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Each order, too
    #[arg(long)]
    orders: bool,
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    let (connections, codec) = connect::log().await?;
    let Args { voucher, at, partition, orders, json } = args;
    let name = voucher.to_string();
    let told = replay::state_at(&connections, &codec, StateOptions { voucher, partition, at, orders }).await?;
    output::show(json, &told, |told| print(&name, told))?;
    Ok(if told.voucher.is_none() { DIFFERENT } else { audit::code_of(&told.verdict) })
}

fn print(name: &str, told: &StateAt) {
    match &told.voucher {
        Some(found) => {
            voucher::print_row(found);
            outln!("  sold       {}", found.terms.total - found.remaining);
        }
        None => output::line(&output::red(&format!("voucher {name} was not opened by then in partition {}", told.partition))),
    }
    let rows = told.orders.iter().map(|(status, tally)| row![status, tally.orders, tally.units]);
    output::table(["STATUS", "ORDERS", "UNITS"], rows);
    let rows = told.listed.iter().flatten().map(|order| {
        let (reason, decided) = (order.reason.map_or("", |reason| reason.as_str()), time::format_instant(order.decided_at));
        row![order.id, order.user_id, order.quantity, order.status.as_str(), reason, decided, order.voucher_seq]
    });
    output::table(["ORDER", "USER", "UNITS", "STATUS", "REASON", "DECIDED", "SEQ"], rows);
    if let Some((offset, at)) = told.last_event {
        let end = if told.is_at_end { "; the log ends before the instant asked for" } else { "" };
        outln!("as of event {offset} of partition {}, decided {}{end}", told.partition, time::format_instant(at));
    }
    outln!("{} events read in {:.1} s, {:.0}/s", told.events, told.seconds, told.events as f64 / told.seconds.max(1e-9));
    if told.verdict != replay::Verdict::Equal {
        audit::print_verdict(&told.verdict, "the log");
    }
}
