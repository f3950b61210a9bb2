//! `voucher`: publishes a voucher, changes its terms, shows where it stands.
//!
//! A change is a request like any other: it is appended to `order-requests`, a lane decides it, and what was decided is read back
//! from `order-events`. Only `thaw` concerns Redis alone.

mod change;
mod decision;
mod publish;
mod show;
mod thaw;

use clap::Subcommand;

pub(crate) use decision::decide;

/// Publish vouchers, change their terms, show where they stand
#[derive(Subcommand)]
pub(crate) enum Verb {
    Publish(publish::Args),
    Stock(change::StockArgs),
    Pause(change::PauseArgs),
    Resume(change::ResumeArgs),
    Close(change::CloseArgs),
    Thaw(thaw::Args),
    Show(show::Args),
    List(show::ListArgs),
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    match verb {
        Verb::Publish(args) => publish::execute(args).await,
        Verb::Stock(args) => change::stock(args).await,
        Verb::Pause(args) => change::pause(args).await,
        Verb::Resume(args) => change::resume(args).await,
        Verb::Close(args) => change::close(args).await,
        Verb::Thaw(args) => thaw::execute(args).await,
        Verb::Show(args) => show::execute(args).await,
        Verb::List(args) => show::list(args).await,
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
    #[arg(long, default_value = "30s", value_parser = crate::time::parse_millis)]
    wait: i64,
    /// Print the decision as JSON
    #[arg(long)]
    json: bool,
}
