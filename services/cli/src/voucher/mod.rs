//! `voucher`: publishes a voucher, changes its terms, shows where it stands.
//!
//! A change is a request like any other: it is appended to `order-requests`, a lane decides it, and what was decided is read back
//! from `order-events`. Only `thaw` concerns Redis alone.

mod change;
mod decision;
mod ledger;
mod publish;
mod show;
mod thaw;

use clap::Subcommand;
use domain::RequestBody::{StockChanged, VoucherClosed, VoucherPaused, VoucherResumed};

use self::change::StockArgs;
pub(crate) use self::{
    decision::{decide, undecided},
    show::print_row,
};

/// Publish vouchers, change their terms, show where they stand
#[derive(Subcommand)]
pub(crate) enum Verb {
    Publish(publish::Args),
    /// Add units, or take unsold ones away
    #[command(after_help = "Examples:\n  doorbuster voucher stock tv --delta 500 --apply\n  \
                            doorbuster voucher stock tv --delta -500 --expect 3 --apply")]
    Stock(change::StockArgs),
    /// Let nobody buy for now; orders accepted before are decided
    #[command(after_help = "Examples:\n  doorbuster voucher pause tv --reason 'price is wrong' --apply")]
    Pause(change::Args),
    /// Let people buy again after a pause
    #[command(after_help = "Examples:\n  doorbuster voucher resume tv --apply")]
    Resume(change::Args),
    /// End the sale for good
    #[command(after_help = "Examples:\n  doorbuster voucher close tv --reason 'recalled' --apply")]
    Close(change::Args),
    Thaw(thaw::Args),
    Show(show::Args),
    List(show::ListArgs),
    Ledger(ledger::Args),
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    match verb {
        Verb::Publish(args) => publish::execute(args).await,
        Verb::Stock(StockArgs { delta, change }) => {
            let body = |expected| StockChanged { delta, expected_terms_version: expected };
            change::request(change, &format!("change the total by {delta:+}"), body).await
        }
        Verb::Pause(args) => change::request(args, "pause", |v| VoucherPaused { expected_terms_version: v }).await,
        Verb::Resume(args) => change::request(args, "resume", |v| VoucherResumed { expected_terms_version: v }).await,
        Verb::Close(args) => change::request(args, "close for good", |v| VoucherClosed { expected_terms_version: v }).await,
        Verb::Thaw(args) => thaw::execute(args).await,
        Verb::Show(args) => show::execute(args).await,
        Verb::List(args) => show::list(args).await,
        Verb::Ledger(args) => ledger::execute(args).await,
    }
}

/// What every changing verb takes.
#[derive(clap::Args, Clone)]
struct Act {
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
    /// Why, for the audit trail
    #[arg(long)]
    reason: Option<String>,
    /// Who asks, for the audit trail
    #[arg(long, env = "USER", default_value = "cli", hide_env_values = true)]
    actor: String,
    /// How long to wait for the decision
    #[arg(long, default_value = "30s", value_parser = crate::time::parse_duration)]
    wait: std::time::Duration,
    /// Print the decision as JSON
    #[arg(long)]
    json: bool,
}
