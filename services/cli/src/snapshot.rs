//! `snapshot export|verify|import`: the rows of Postgres and their positions in the log, in one file.

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;
use replay::{End, Snapshot};

use crate::{OK, connect, output, time};

/// Save the rows of Postgres with their positions in the log, and restore them
#[derive(Subcommand)]
pub(crate) enum Verb {
    Export(ExportArgs),
    Verify(VerifyArgs),
    Import(ImportArgs),
}

const EXPORT: &str = "\
May be run while a sale goes on: all rows are of one moment, and the file says where each partition of the log stood then. It gets its
name only when it is whole and on disk; FILE.part beside it is what an export is writing, or one that was killed has left, which the next
one to the same FILE overwrites.

Exit code: 0 done; 2 could not be done: also where Postgres has decisions whose events do not come into the log.

Examples:
  doorbuster snapshot export orders-1.snapshot
  doorbuster snapshot export orders-1.snapshot --patience 1m --json";

/// Write all rows of Postgres and their positions in the log to a new file
#[derive(clap::Args)]
#[command(after_help = EXPORT)]
pub(crate) struct ExportArgs {
    file: PathBuf,
    /// How long to wait for events of decisions that Postgres has
    #[arg(long, default_value = "10s", value_parser = time::parse_duration)]
    patience: Duration,
    #[arg(long)]
    json: bool,
}

/// Read a file to its end and check it against its digest; no server is asked
#[derive(clap::Args)]
#[command(after_help = "Exit code: 0 whole; 2 cut off, changed, or of a newer version.\n\n\
                        Examples:\n  doorbuster snapshot verify orders-1.snapshot")]
pub(crate) struct VerifyArgs {
    file: PathBuf,
    #[arg(long)]
    json: bool,
}

const IMPORT: &str = "\
Into an empty database that `doorbuster migrate --apply` has made, all or nothing. What the log says beyond the snapshot is folded in by the
orders service when it starts, or by `doorbuster catch-up orders --apply`. Refused where the log no longer holds that.

Exit code: 0 done (or, without --apply, it could be); 2 could not be done: nothing was changed.

Examples:
  doorbuster snapshot import orders-1.snapshot             check the file, the database and the log
  doorbuster snapshot import orders-1.snapshot --apply     restore";

/// Restore rows and positions from a file into an empty database
#[derive(clap::Args)]
#[command(after_help = IMPORT)]
pub(crate) struct ImportArgs {
    file: PathBuf,
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    match verb {
        Verb::Export(args) => {
            let (connections, codec) = connect::log().await?;
            let snapshot = replay::export(&connections, &codec, &args.file, args.patience).await?;
            output::show(args.json, &snapshot, print)?;
        }
        Verb::Verify(args) => output::show(args.json, &replay::verify_file(&args.file).await?, print)?,
        Verb::Import(args) => {
            let (connections, codec) = connect::log().await?;
            let snapshot = replay::import(&connections, &codec, &args.file, args.apply).await?;
            let step = format!("import {} vouchers and {} orders", snapshot.end.vouchers, snapshot.end.orders);
            output::steps(args.apply, &[step], "");
            if args.apply {
                output::line("the orders service, or `doorbuster catch-up orders --apply`, folds in what the log says since");
            }
        }
    }
    Ok(OK)
}

fn print(snapshot: &Snapshot) {
    let rows = snapshot.places.iter().map(|p| row![p.partition, p.next_offset, p.events_from]);
    output::table(["PARTITION", "NEXT REQUEST", "NEXT EVENT"], rows);
    let End { vouchers, orders, sha256 } = &snapshot.end;
    outln!("{vouchers} vouchers, {orders} orders; SHA-256 of the rows {sha256}");
}
