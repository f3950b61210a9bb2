//! `migrate`: brings the database to this version. The only thing that changes its schema.

use crate::{OK, connect, output};

const EXAMPLES: &str = "\
Examples:
  doorbuster migrate             show what would run
  doorbuster migrate --apply     run it";

/// Bring the database's schema to this version
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
}

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    const NOTHING: &str = "the database is at this version already";
    let connections = connect::connections()?;
    let migrations = match args.apply {
        true => infra::postgres::migrate(&connections).await?,
        false => infra::postgres::pending_migrations(&connections).await?,
    };
    let steps: Vec<_> = migrations.iter().map(|migration| format!("run migration {migration}")).collect();
    output::steps(args.apply, &steps, NOTHING);
    Ok(OK)
}
