//! `rebuild`: what can be built anew from the log.

mod orders;
mod redis;

use clap::Subcommand;

pub(crate) use self::redis::ask;

/// Build anew what can be built from the log
#[derive(Subcommand)]
pub(crate) enum Verb {
    Orders(orders::Args),
    Redis(redis::Args),
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    match verb {
        Verb::Orders(args) => orders::execute(args).await,
        Verb::Redis(args) => redis::execute(args).await,
    }
}
