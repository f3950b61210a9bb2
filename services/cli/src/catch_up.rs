//! `catch-up orders`: folds into Postgres, by hand, what the log says and Postgres has lost.

use clap::Subcommand;
use orders::Behind;
use serde_json::json;

use crate::{OK, connect, output};

/// Bring Postgres to where the log is
#[derive(Subcommand)]
pub(crate) enum Verb {
    Orders(Args),
}

const EXAMPLES: &str = "\
For a Postgres that has lost commits: restored from an older backup, or failed over to a replica that lagged. The orders service does the
same by itself when it runs; both may do it at once. Only answers that are in the log are folded in, nothing is decided.

Exit code: 0 nothing is missing any more (or, without --apply, the plan was made); 2 could not be done, and why: where the missing answers
were deleted from the log, nothing is changed.

Examples:
  doorbuster catch-up orders             show how many events Postgres lacks in each partition
  doorbuster catch-up orders --apply     fold them in";

/// Fold into Postgres the events that it has lost
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    let Verb::Orders(args) = verb;
    let (connections, codec) = connect::log().await?;
    let partitions = orders::catch_up(&connections, &codec, args.apply).await?;
    if args.json {
        let one = |p: &Behind| json!({ "partition": p.partition, "next_offset": p.next_offset, "answered": p.answered });
        let told: Vec<_> = partitions.iter().map(one).collect();
        output::json(&json!({ "applied": args.apply, "partitions": told }))?;
        return Ok(OK);
    }
    let behind = partitions.iter().filter(|p| p.answered > p.next_offset);
    let steps: Vec<_> = behind
        .map(|p| {
            let (from, to) = (p.next_offset, p.answered);
            format!("fold {} events into partition {}, the answers to requests {from}..{to}", to - from, p.partition)
        })
        .collect();
    const NOTHING: &str = "Postgres has everything that the log says";
    output::steps(args.apply, &steps, NOTHING);
    if args.apply && !steps.is_empty() {
        output::line(&output::green(NOTHING));
    }
    Ok(OK)
}
