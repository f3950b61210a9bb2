//! `voucher thaw`: sells a voucher again that compensation has frozen.

use std::time::Duration;

use domain::VoucherId;
use infra::redis::Store;

use crate::{DIFFERENT, connect, output, rebuild, time};

/// Sell a voucher again that was frozen because its units did not add up twice; it is replayed from the log first
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster voucher thaw tv\n  doorbuster voucher thaw tv --apply && doorbuster audit")]
pub(crate) struct Args {
    #[arg(value_parser = VoucherId::parse)]
    voucher: VoucherId,
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
    /// How long to wait until it is replayed
    #[arg(long, default_value = "2m", value_parser = time::parse_duration)]
    wait: Duration,
}

pub(super) async fn execute(args: Args) -> anyhow::Result<u8> {
    let connections = connect::connections()?;
    if !Store::connect(&connections.redis).await?.is_frozen(&args.voucher).await? {
        output::line(&output::red(&format!("voucher {} is not frozen in Redis", args.voucher)));
        return Ok(DIFFERENT);
    }
    rebuild::ask(&connections, Some(&[args.voucher]), args.apply, args.wait).await
}
