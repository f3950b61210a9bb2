//! `tail`: what stands in the log, decoded, as JSON lines.

use std::ops::ControlFlow;

use clap::Subcommand;
use domain::{Timestamp, VoucherId};
use replay::{TailFrom, TailOptions};

use crate::{OK, connect, output, time};

/// Show what stands in the log, one JSON document a line
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// What was asked for
    #[command(after_help = EXAMPLES)]
    Requests(Args),
    /// What was decided
    #[command(after_help = EXAMPLES)]
    Events(Args),
}

const EXAMPLES: &str = "\
In order within a partition; the partitions one after the other. Without --offset and --since from where the log begins, with --follow
from where it ends. At the end stderr says how far each partition was read, unless --limit came first.

Examples:
  doorbuster tail events --voucher tv
  doorbuster tail requests --partition 3 --offset 1000 --limit 10
  doorbuster tail events --since -10m --follow";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only records of this voucher
    #[arg(long, value_parser = VoucherId::parse)]
    voucher: Option<VoucherId>,
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Begin at this offset
    #[arg(long, requires = "partition", conflicts_with = "since", value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<i64>,
    /// Begin with what the broker took at this instant: -10m, or RFC 3339
    #[arg(long, value_parser = time::parse_instant)]
    since: Option<Timestamp>,
    /// End after so many records
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Wait for more at the end
    #[arg(long)]
    follow: bool,
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    let (requests, args) = match verb {
        Verb::Requests(args) => (true, args),
        Verb::Events(args) => (false, args),
    };
    let (connections, codec) = connect::log().await?;
    let from = match (args.offset, args.since) {
        (Some(offset), _) => TailFrom::Offset(offset),
        (None, Some(at)) => TailFrom::Time(at),
        (None, None) if args.follow => TailFrom::End,
        (None, None) => TailFrom::Start,
    };
    let Args { voucher, partition, follow, limit, .. } = args;
    let options = TailOptions { requests, voucher, partition, from, follow };
    let mut left = limit.unwrap_or(u64::MAX);
    let read = replay::tail(&connections, &codec, options, move |record| {
        left = left.saturating_sub(1);
        match serde_json::to_string(&record) {
            Ok(text) if output::printed(&text) && left > 0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })
    .await?;
    // Apart from the records, for whoever wants to know whether that was all.
    read.iter().for_each(|p| eprintln!("partition {}: read from offset {} to {}", p.partition, p.from, p.end));
    Ok(OK)
}
