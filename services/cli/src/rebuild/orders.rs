//! `rebuild orders`: the tables built anew from the log beside the live ones, compared with them, and put in their place if asked for.

use std::{path::PathBuf, sync::Arc, time::Duration};

use indicatif::ProgressBar;
use replay::{Progress, Rebuild, RebuildOptions, Swap, Swapped, Verdict};

use crate::{OK, UNKNOWN, audit, connect, output, time};

const EXAMPLES: &str = "\
May be run while a sale goes on. The tables are built in the schema doorbuster_rebuild, which is dropped at the end, and by the next run
if this one dies; the live ones are only read. With --swap the new tables take the place of the live ones in one transaction: the lanes
stand still for a moment, readers do not. It is refused where views, triggers, foreign keys or indexes of your own hang on the live tables.

Exit code: 0 equal (and swapped, if asked for); 1 different; 2 could not tell, or not swap.

Examples:
  doorbuster rebuild orders
  doorbuster rebuild orders --swap
  doorbuster rebuild orders --swap --accept-differences   take what the log says; the old tables stay in doorbuster_replaced
  doorbuster rebuild orders --from orders-1.snapshot      the log no longer begins at offset 0
  doorbuster rebuild orders --into postgresql://me@elsewhere/copy --json";

/// Build the tables anew from the log, compare them with the live ones, put them in their place
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Put the new tables in the place of the live ones, if they are equal
    #[arg(long, conflicts_with = "into")]
    swap: bool,
    /// With --swap: also if they differ
    #[arg(long, requires = "swap")]
    accept_differences: bool,
    /// Build in this database instead of the live one, and leave the tables there
    #[arg(long, value_name = "ADDRESS")]
    into: Option<String>,
    /// Begin with the rows of this snapshot instead of with nothing, where the beginning of the log was deleted
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// How long to wait for events of decisions that Postgres has
    #[arg(long, default_value = "10s", value_parser = time::parse_duration)]
    patience: Duration,
    #[arg(long)]
    json: bool,
}

pub(super) async fn execute(args: Args) -> anyhow::Result<u8> {
    let (connections, codec) = connect::log().await?;
    let swap = match (args.swap, args.accept_differences) {
        (false, _) => Swap::Never,
        (true, false) => Swap::WhenEqual,
        (true, true) => Swap::Always,
    };
    let options = RebuildOptions { from: args.from, into: args.into, swap, patience: args.patience, ..RebuildOptions::default() };
    let bar = ProgressBar::no_length();
    let shown = bar.clone();
    let rebuilt = replay::rebuild(&connections, &codec, &options, Arc::new(move |p| show(&shown, p))).await;
    bar.finish_and_clear();
    output::show(args.json, &rebuilt, |rebuilt| print(rebuilt, options.into.is_some()))?;
    let code = audit::code_of(&rebuilt.verdict);
    Ok(if code == OK && matches!(rebuilt.swapped, Swapped::Refused { .. }) { UNKNOWN } else { code })
}

/// Moves the bar on stderr; nothing where that is no terminal.
fn show(bar: &ProgressBar, progress: Progress) {
    let (what, done, of) = match progress {
        Progress::Fold { done, of } => ("events", done, of),
        Progress::Index => ("indexes", 0, 0),
        Progress::Compare { done, of } => ("rows compared", done, of),
        Progress::Swap => ("swap", 0, 0),
    };
    if bar.message() != what {
        let template = "{elapsed_precise} [{bar:40}] {pos}/{len} {msg}, {per_sec}, {eta} left";
        output::style(bar, if of > 0 { template } else { "{elapsed_precise} {msg}" });
        bar.reset();
        bar.set_message(what);
    }
    bar.set_length(of.max(done));
    bar.set_position(done);
}

fn print(rebuilt: &Rebuild, is_elsewhere: bool) {
    let Rebuild { partitions, vouchers, order_rows, verdict, swapped, fold_seconds, index_seconds, compare_seconds } = rebuilt;
    audit::print_read(partitions);
    let took = format!("folded in {fold_seconds:.1} s, indexed in {index_seconds:.1} s, compared in {compare_seconds:.1} s");
    outln!("{vouchers} vouchers, {order_rows} rows of orders; {took}");
    audit::print_verdict(verdict, "the log and the live tables");
    let nothing = "the live tables were not changed";
    match (swapped, verdict) {
        (Swapped::NotAsked, Verdict::CannotTell { .. }) => output::line(nothing),
        (Swapped::NotAsked, _) if is_elsewhere => outln!("{nothing}; the new ones are in schema doorbuster_rebuild of --into"),
        (Swapped::NotAsked, Verdict::Equal) => outln!("{nothing}: add --swap to put the new ones in their place"),
        (Swapped::NotAsked, _) => outln!("{nothing}: add --swap --accept-differences to put the new ones in their place"),
        (Swapped::Done { kept: None }, _) => output::line(&output::green("swapped")),
        (Swapped::Done { kept: Some(schema) }, _) => {
            outln!("swapped; the old tables are in schema {schema}: DROP SCHEMA {schema} CASCADE removes them");
        }
        (Swapped::Refused { reason }, _) => output::line(&output::red(&format!("not swapped, nothing was changed: {reason}"))),
    }
}
