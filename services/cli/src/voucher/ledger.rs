//! `voucher ledger`: every change of a voucher's stock.

use std::ops::ControlFlow;

use domain::VoucherId;
use replay::{Entry, LedgerOptions, Point};

use crate::{DIFFERENT, OK, connect, output, time};

const EXAMPLES: &str = "\
In order, from the log: the units left before and after each change, the total, the event, and who asked why. Changes of nothing but terms or
state, rejections and payments move no units and are not shown. With --json each entry is a document on a line of its own.

Exit code: 0 shown; 1 the partition has no such voucher; 2 could not tell.

Examples:
  doorbuster voucher ledger tv
  doorbuster voucher ledger tv --from -1h --json
  doorbuster voucher ledger tv --from 1000 --to 2000      offsets of order-events in the voucher's partition";

/// Show every change of a voucher's stock: from, to, why and who
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[arg(value_parser = VoucherId::parse)]
    voucher: VoucherId,
    /// The first event: an instant (-10m, RFC 3339) or an offset
    #[arg(long, value_name = "TIME|OFFSET", value_parser = time::parse_point)]
    from: Option<Point>,
    /// The last event, likewise
    #[arg(long, value_name = "TIME|OFFSET", value_parser = time::parse_point)]
    to: Option<Point>,
    /// Where the voucher lives, if Postgres does not know it
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    #[arg(long)]
    json: bool,
}

pub(super) async fn execute(args: Args) -> anyhow::Result<u8> {
    let (connections, codec) = connect::log().await?;
    let Args { voucher, from, to, partition, json } = args;
    let is_whole = from.is_none() && to.is_none();
    let options = LedgerOptions { voucher: voucher.clone(), partition, from, to };
    let heading = ["SEQ", "OFFSET", "DECIDED", "LEFT", "TOTAL", "EVENT", "WHO AND WHY"].map(str::to_owned);
    let mut heading = (!json).then(|| output::bold(&line(heading)));
    let read = replay::ledger(&connections, &codec, options, move |entry| {
        heading.take().iter().for_each(|heading| output::line(heading));
        let text = if json { serde_json::to_string(&entry).ok() } else { Some(line(columns(&entry))) };
        if text.is_some_and(|text| output::printed(&text)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .await?;
    if !json {
        let rate = read.events as f64 / read.seconds.max(1e-9);
        outln!("{} changes; {} events read in {:.1} s, {rate:.0}/s", read.entries, read.events, read.seconds);
    }
    if is_whole && read.entries == 0 {
        eprintln!("doorbuster: its partition has no voucher {voucher}");
        return Ok(DIFFERENT);
    }
    Ok(OK)
}

/// Lines up for all but very large sales, and needs none of the lines to come.
fn line([seq, offset, decided, left, total, event, who]: [String; 7]) -> String {
    format!("{seq:>8}  {offset:>9}  {decided:<24}  {left:>18}  {total:>14}  {event:<14}  {who}")
}

fn columns(entry: &Entry) -> [String; 7] {
    let (from, to) = (entry.remaining_from, entry.remaining_to);
    let total = match entry.total_to {
        same if same == entry.total_from => same.to_string(),
        changed => format!("{} -> {changed}", entry.total_from),
    };
    let mut who = match (&entry.user_id, &entry.order_id) {
        (Some(user), Some(order)) => format!("{user}, order {order}, by {}", entry.actor),
        _ => entry.actor.clone(),
    };
    if let Some(by) = entry.by {
        who += &format!(" for the {}", by.as_str());
    }
    if let Some(reason) = &entry.reason {
        who += &format!(": {reason}");
    }
    let left = format!("{from} -> {to} ({:+})", to - from);
    let [seq, offset] = [entry.voucher_seq, entry.offset].map(|number| number.to_string());
    [seq, offset, time::format_instant(entry.decided_at), left, total, entry.kind.to_owned(), who]
}
