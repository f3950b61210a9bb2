//! `voucher stock|pause|resume|close`: changes of terms. Each names the version of the terms it was made against, so that a repeat
//! of it, or one made on old knowledge, is refused and not applied.

use anyhow::Context;
use domain::{RequestBody, Voucher, VoucherId};

use super::{Act, decision};
use crate::connect;

/// What every change takes.
#[derive(clap::Args)]
struct Change {
    #[arg(value_parser = VoucherId::parse)]
    voucher: VoucherId,
    /// The terms version this change is meant for; without: the one in Postgres now
    #[arg(long)]
    expect: Option<i64>,
    #[command(flatten)]
    act: Act,
}

/// Add units, or take unsold ones away
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  doorbuster voucher stock tv --delta 500 --apply\n  doorbuster voucher stock tv --delta -500 --expect 3 --apply"
)]
pub(crate) struct StockArgs {
    /// Units more; fewer where negative
    #[arg(long, allow_hyphen_values = true)]
    delta: i64,
    #[command(flatten)]
    change: Change,
}

/// Let nobody buy for now; orders accepted before are decided
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster voucher pause tv --reason 'price is wrong' --apply")]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    change: Change,
}

/// Let people buy again after a pause
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster voucher resume tv --apply")]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    change: Change,
}

/// End the sale for good
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster voucher close tv --reason 'recalled' --apply")]
pub(crate) struct CloseArgs {
    #[command(flatten)]
    change: Change,
}

pub(super) async fn stock(args: StockArgs) -> anyhow::Result<u8> {
    let delta = args.delta;
    request(args.change, &format!("change the total by {delta:+}"), |expected_terms_version| RequestBody::StockChanged {
        delta,
        expected_terms_version,
    })
    .await
}

pub(super) async fn pause(args: PauseArgs) -> anyhow::Result<u8> {
    request(args.change, "pause", |expected_terms_version| RequestBody::VoucherPaused { expected_terms_version }).await
}

pub(super) async fn resume(args: ResumeArgs) -> anyhow::Result<u8> {
    request(args.change, "resume", |expected_terms_version| RequestBody::VoucherResumed { expected_terms_version }).await
}

pub(super) async fn close(args: CloseArgs) -> anyhow::Result<u8> {
    request(args.change, "close for good", |expected_terms_version| RequestBody::VoucherClosed { expected_terms_version }).await
}

async fn request(change: Change, what: &str, body: impl FnOnce(i64) -> RequestBody) -> anyhow::Result<u8> {
    let voucher: Voucher = {
        let pool = infra::postgres::pool(&connect::connections()?, 1)?;
        let found = infra::postgres::voucher(&pool, &change.voucher).await?;
        found.with_context(|| format!("Postgres has no voucher {}", change.voucher))?
    };
    let expected = change.expect.unwrap_or(voucher.terms_version);
    let plan = format!(
        "would {what}: voucher {} (now {}, {} units in all, {} left), made against terms version {expected}",
        voucher.id,
        voucher.state.as_str(),
        voucher.terms.total,
        voucher.remaining
    );
    decision::ask(&change.act, voucher.id, voucher.terms.partition, body(expected), &plan)
        .await
        .with_context(|| format!("cannot {what}"))
}
