//! `run`: one of the three services, in the foreground, until SIGTERM.

use clap::ValueEnum;
use infra::shutdown;

use crate::{OK, connect};

const EXAMPLES: &str = "\
The service is set up by environment variables, listed in docs/CONFIGURATION.md. SIGTERM or Ctrl-C: it finishes what it has begun
and ends with 0; the second one ends it at once with 130. Its watchdog ends it by SIGABRT when it no longer gets on; whoever runs
it should start it again.

Examples:
  doorbuster run purchase
  DOORBUSTER_LOG=debug doorbuster run orders";

/// Run one of the services in the foreground
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    service: Service,
}

#[derive(Clone, Copy, ValueEnum)]
enum Service {
    /// The HTTP gate: reserves in Redis, emits OrderRequested
    Purchase,
    /// Decides: a lane a partition, from order-requests to Postgres and order-events
    Orders,
    /// Settles decided orders in Redis, repairs it, publishes forgotten reservations
    Compensation,
}

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    infra::telemetry::init_logs();
    let stop = shutdown::on_signals()?;
    let env = connect::env();
    for name in env.unknown() {
        tracing::warn!(name, "this variable is not known, so it changes nothing: docs/CONFIGURATION.md lists those that are");
    }
    match args.service {
        Service::Purchase => purchase::run(&env, stop).await?,
        Service::Orders => orders::run(&env, stop).await?,
        Service::Compensation => compensation::run(&env, stop).await?,
    }
    Ok(OK)
}
