//! The command line of Doorbuster: runs the services, sets up what they need, and shows and proves what they did.
//!
//! One file a verb. A verb that changes something prints its plan and acts only with `--apply` (`rebuild orders` with `--swap`). Exit codes,
//! the same for all: 0 done, or equal; 1 refused, or different; 2 could not be done, or could not tell; 64 the command line makes no sense.

#[macro_use]
mod output;

mod audit;
mod catch_up;
mod connect;
mod demo;
mod dlq;
mod explain;
mod lag;
mod load;
mod migrate;
mod rebuild;
mod run;
mod snapshot;
mod stack;
mod state;
mod tail;
mod time;
mod token;
mod topics;
mod verify;
mod voucher;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A sixth of a purchase's time went into the C library's allocator, which works over what it has freed from time to time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Done, or equal.
const OK: u8 = 0;
/// Refused by the log, or different.
const DIFFERENT: u8 = 1;
/// Could not be done, or could not tell.
const UNKNOWN: u8 = 2;
/// The command line makes no sense (EX_USAGE of sysexits.h).
const USAGE: u8 = 64;

const AFTER_HELP: &str = "\
Exit codes: 0 done, or equal; 1 refused, or different; 2 could not be done, or could not tell; 64 wrong usage.

The servers are those of the variables DOORBUSTER_KAFKA, DOORBUSTER_REDIS, DOORBUSTER_POSTGRES and DOORBUSTER_REGISTRY; where one
is not set, that of the stack that `doorbuster up` started in this folder.

Examples:
  doorbuster demo                        a whole sale on servers of its own, with the proof at the end
  doorbuster up                          start Kafka, Redis, Postgres and a schema registry, and keep them
  doorbuster topics apply --apply        make the topics, register the schemas
  doorbuster migrate --apply             bring the database to this version
  doorbuster run orders                  run one of the three services in the foreground
  doorbuster audit                       prove that no unit was lost or sold twice
  doorbuster explain ORDER               tell one order's story";

/// A flash-sale order system on an event log.
#[derive(Parser)]
#[command(name = "doorbuster", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Up(stack::UpArgs),
    Down(stack::DownArgs),
    Status(stack::StatusArgs),
    #[command(hide = true)]
    Keep(stack::KeepArgs),
    Run(run::Args),
    #[command(subcommand)]
    Topics(topics::Verb),
    Migrate(migrate::Args),
    #[command(subcommand)]
    Voucher(voucher::Verb),
    #[command(subcommand)]
    Rebuild(rebuild::Verb),
    #[command(subcommand)]
    CatchUp(catch_up::Verb),
    #[command(subcommand)]
    Snapshot(snapshot::Verb),
    Token(token::Args),
    Audit(audit::Args),
    #[command(subcommand)]
    Verify(verify::Verb),
    #[command(subcommand)]
    Tail(tail::Verb),
    #[command(subcommand)]
    Dlq(dlq::Verb),
    Explain(explain::Args),
    State(state::Args),
    Lag(lag::Args),
    Load(load::Args),
    Demo(demo::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Only a closed terminal can make this fail, and then nobody reads the message.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { OK });
        }
    };
    match execute(cli.verb) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("doorbuster: {error:#}");
            ExitCode::from(UNKNOWN)
        }
    }
}

fn execute(verb: Verb) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(async {
        match verb {
            Verb::Up(args) => stack::up(args),
            Verb::Down(args) => stack::down(args),
            Verb::Status(args) => stack::status(args),
            Verb::Keep(args) => stack::keep(args),
            Verb::Run(args) => run::execute(args).await,
            Verb::Topics(verb) => topics::execute(verb).await,
            Verb::Migrate(args) => migrate::execute(args).await,
            Verb::Voucher(verb) => voucher::execute(verb).await,
            Verb::Rebuild(verb) => rebuild::execute(verb).await,
            Verb::CatchUp(verb) => catch_up::execute(verb).await,
            Verb::Snapshot(verb) => snapshot::execute(verb).await,
            Verb::Token(args) => token::execute(args),
            Verb::Audit(args) => audit::execute(args).await,
            Verb::Verify(verb) => verify::execute(verb).await,
            Verb::Tail(verb) => tail::execute(verb).await,
            Verb::Dlq(verb) => dlq::execute(verb).await,
            Verb::Explain(args) => explain::execute(args).await,
            Verb::State(args) => state::execute(args).await,
            Verb::Lag(args) => lag::execute(args).await,
            Verb::Load(args) => load::execute(args).await,
            Verb::Demo(args) => demo::execute(args).await,
        }
    });
    // A blocking call to a server that is away may still be running; nothing depends on it any more.
    runtime.shutdown_background();
    code
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_a_line_of_help() {
        let described = |command: &clap::Command| command.is_hide_set() || command.get_about().is_some();
        let mut root = Cli::command();
        root.build();
        for verb in root.get_subcommands().filter(|verb| verb.get_name() != "help") {
            assert!(described(verb), "{}", verb.get_name());
            assert!(verb.get_subcommands().all(described), "{}", verb.get_name());
        }
    }
}
