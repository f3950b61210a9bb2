//! `verify decisions`: whether each event is the one that the rules make of its request.

use clap::Subcommand;
use replay::Verified;

use crate::{audit, connect, output};

/// Verify what the log says
#[derive(Subcommand)]
pub(crate) enum Verb {
    Decisions(Args),
}

const EXAMPLES: &str = "\
Each answered request is decided again, from the beginning of the log, and compared with its event. Events of other rules_versions than
this program's cannot be judged by it. No store is asked: `doorbuster audit` and `rebuild orders` compare the log with those.

Exit code: 0 equal; 1 different; 2 could not tell.

Examples:
  doorbuster verify decisions
  doorbuster verify decisions --json";

/// Decide every request of the log again and compare with its event
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    let Verb::Decisions(args) = verb;
    let (connections, codec) = connect::log().await?;
    let verified = replay::verify(&connections, &codec).await;
    output::show(args.json, &verified, |Verified { verdict, partitions, read, requests, events, unanswered }| {
        audit::print_read(read);
        outln!("{requests} requests, {events} events on {partitions} partitions; {unanswered} not answered yet");
        audit::print_verdict(verdict, "requests and events");
    })?;
    Ok(audit::code_of(&verified.verdict))
}
