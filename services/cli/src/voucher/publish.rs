//! `voucher publish`: puts a voucher on sale.

use anyhow::{Context, ensure};
use domain::{MAX_TOTAL, Money, RequestBody, Terms, Timestamp, VoucherId};

use super::{Act, decision};
use crate::{connect, time};

const EXAMPLES: &str = "\
The voucher lives in one partition for ever: the one that Kafka clients compute from its id, or --partition N to give a hot one
a partition of its own.

Examples:
  doorbuster voucher publish tv --title 'TV for 1 EUR' --units 5000 --price 100 --ends +1h
  doorbuster voucher publish tv --title 'TV for 1 EUR' --units 5000 --price 100 --begins 2026-11-27T09:00:00+01:00 \\
      --ends 2026-11-27T10:00:00+01:00 --per-user 2 --apply";

/// Put a voucher on sale
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Its id: 1 to 64 of A-Z a-z 0-9 . _ : -
    #[arg(value_parser = VoucherId::parse)]
    voucher: VoucherId,
    #[arg(long)]
    title: String,
    /// Units on sale
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..=MAX_TOTAL))]
    units: i64,
    /// Units one user may hold
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..=MAX_TOTAL))]
    per_user: i64,
    /// First instant of the sale: now, +10m, or RFC 3339 with its offset
    #[arg(long, default_value = "now", value_parser = time::parse_instant)]
    begins: Timestamp,
    /// First instant after the sale
    #[arg(long, value_parser = time::parse_instant)]
    ends: Timestamp,
    /// Price of one unit in minor units (cents)
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    price: i64,
    /// ISO 4217 code of the price's currency
    #[arg(long, default_value = "EUR")]
    currency: String,
    /// The partition it lives in, instead of the computed one
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    #[command(flatten)]
    act: Act,
}

pub(super) async fn execute(args: Args) -> anyhow::Result<u8> {
    let connections = connect::connections()?;
    let partitions = connect::partitions(&connections).await?;
    let partition = args.partition.unwrap_or_else(|| events::partition_for(&args.voucher, partitions));
    ensure!((0..partitions).contains(&partition), "the topics have partitions 0 to {}, not {partition}", partitions - 1);
    let terms = Terms {
        title: args.title,
        total: args.units,
        per_user_limit: args.per_user,
        begins_at: args.begins,
        ends_at: args.ends,
        price: Money::new(args.price, &args.currency),
        // Nobody appends PaymentWindowElapsed yet, so a window would promise what does not happen.
        payment_window_ms: None,
        partition,
    };
    let plan = format!(
        "publish voucher {} on partition {partition}: {} units, {} per user, {} each, from {} to {}",
        args.voucher,
        terms.total,
        terms.per_user_limit,
        terms.price,
        time::format_instant(terms.begins_at),
        time::format_instant(terms.ends_at),
    );
    decision::ask(&args.act, args.voucher, partition, RequestBody::VoucherPublished(terms), &plan)
        .await
        .context("cannot publish the voucher")
}
