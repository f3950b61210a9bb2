//! `lag`: how far the lanes and compensation are behind.

use crate::{DIFFERENT, OK, connect, output};

const EXAMPLES: &str = "\
Exit code: 0 nobody is behind; 1 somebody is.

Examples:
  doorbuster lag
  until doorbuster lag; do sleep 1; done";

/// Show how far the lanes and compensation are behind
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Also the partitions that are not behind
    #[arg(long)]
    all: bool,
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    let (connections, codec) = connect::log().await?;
    let lag = replay::lag(&connections, &codec).await?;
    let code = if lag.is_none() { OK } else { DIFFERENT };
    if args.json {
        output::json(&lag)?;
        return Ok(code);
    }
    let shown = lag.partitions.iter().filter(|p| args.all || p.undecided + p.unpublished + p.unsettled > 0);
    let rows = shown.map(|p| {
        let oldest = output::or_dash(p.oldest_seconds.map(|s| format!("{s:.1}")));
        row![p.partition, p.undecided, p.unpublished, p.unsettled, oldest]
    });
    output::table(["PARTITION", "UNDECIDED", "UNPUBLISHED", "UNSETTLED", "OLDEST (S)"], rows);
    if lag.is_none() {
        output::line(&output::green("nobody is behind"));
    }
    Ok(code)
}
