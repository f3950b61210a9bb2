//! `rebuild redis`: has compensation replay vouchers in Redis from the log.

use domain::VoucherId;
use infra::{config::Connections, redis::Store};
use uuid::Uuid;

use crate::{DIFFERENT, OK, connect, output};

/// Replay vouchers in Redis from the log; reservations in flight stay, purchases get 503 meanwhile
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster rebuild redis tv radio\n  doorbuster rebuild redis tv --apply")]
pub(crate) struct Args {
    #[arg(required = true, value_parser = VoucherId::parse)]
    vouchers: Vec<VoucherId>,
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
}

pub(super) async fn execute(args: Args) -> anyhow::Result<u8> {
    ask(&connect::connections()?, &args.vouchers, args.apply).await
}

/// Asks compensation to replay the vouchers, a frozen one too; without `apply` only shows the plan.
pub(crate) async fn ask(connections: &Connections, vouchers: &[VoucherId], apply: bool) -> anyhow::Result<u8> {
    if !apply {
        let steps: Vec<_> = vouchers.iter().map(|voucher| format!("replay voucher {voucher} in Redis from the log")).collect();
        output::plan(&steps, "");
        return Ok(OK);
    }
    let store = Store::connect(&connections.redis).await?;
    let mut code = OK;
    for voucher in vouchers {
        if store.ask_rebuild(voucher, &Uuid::new_v4().to_string()).await? {
            outln!("did: close the gate of voucher {voucher}; `doorbuster run compensation` replays and opens it");
        } else {
            output::line(&output::red(&format!("Redis does not have voucher {voucher}; compensation rebuilds it unasked")));
            code = DIFFERENT;
        }
    }
    Ok(code)
}
