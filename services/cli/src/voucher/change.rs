//! `voucher stock|pause|resume|close`: changes of terms. Each names the version of the terms it was made against, so that a repeat
//! of it, or one made on old knowledge, is refused and not applied.

use anyhow::Context;
use domain::{RequestBody, Voucher, VoucherId};

use super::{Act, decision};
use crate::connect;

/// What every change takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(value_parser = VoucherId::parse)]
    voucher: VoucherId,
    /// The terms version this change is meant for; without: the one in Postgres now
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..))]
    expect: Option<i64>,
    #[command(flatten)]
    act: Act,
}

#[derive(clap::Args)]
pub(crate) struct StockArgs {
    /// Units more; fewer where negative
    #[arg(long)]
    pub(super) delta: i64,
    #[command(flatten)]
    pub(super) change: Args,
}

/// `what` says what is changed; `body` makes the request, given the terms version it is made against.
pub(super) async fn request(change: Args, what: &str, body: impl FnOnce(i64) -> RequestBody) -> anyhow::Result<u8> {
    let voucher: Voucher = {
        let pool = infra::postgres::pool(&connect::connections()?, 1)?;
        let found = infra::postgres::voucher(&pool, &change.voucher).await?;
        found.with_context(|| {
            format!("Postgres has no voucher {}: `doorbuster voucher list` shows those it has", change.voucher)
        })?
    };
    let expected = change.expect.unwrap_or(voucher.terms_version);
    let plan = format!(
        "{what}: voucher {} (now {}, {} units in all, {} left), made against terms version {expected}",
        voucher.id,
        voucher.state.as_str(),
        voucher.terms.total,
        voucher.remaining
    );
    decision::ask(&change.act, voucher.id, voucher.terms.partition, body(expected), &plan)
        .await
        .with_context(|| format!("cannot {what}"))
}
