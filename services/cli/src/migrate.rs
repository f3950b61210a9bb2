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
    let connections = connect::connections()?;
    if args.apply {
        let ran = infra::postgres::migrate(&connections).await?;
        match ran.len() {
            0 => output::line("the database is at this version already"),
            n => output::line(&format!("ran {n} migrations: {}", ran.join(", "))),
        }
        return Ok(OK);
    }
    let pending = infra::postgres::pending_migrations(&connections).await?;
    if pending.is_empty() {
        output::line("the database is at this version already");
    } else {
        output::line(&format!("would run {} migrations: {}", pending.len(), pending.join(", ")));
        output::line("nothing was changed: add --apply to do it");
    }
    Ok(OK)
}
