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

use std::{any::TypeId, ops::RangeInclusive, process::ExitCode, time::Duration};

use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use domain::Timestamp;
use replay::Point;

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
    /// Stop them; their data stays
    #[command(after_help = "Examples:\n  doorbuster down")]
    Down(stack::Folder),
    Status(stack::StatusArgs),
    /// Keep a stack running until SIGTERM (what `up` starts)
    #[command(hide = true)]
    Keep(stack::Folder),
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

/// The command line. What begins with a minus and can only be a value is taken for one: whoever refuses it then says for which option.
fn command() -> Command {
    fn with_negatives(command: Command) -> Command {
        command.mut_args(negatives).mut_subcommands(with_negatives)
    }
    fn negatives(arg: Arg) -> Arg {
        let kind = arg.get_value_parser().type_id();
        let points =
            [TypeId::of::<Duration>(), TypeId::of::<Timestamp>(), TypeId::of::<Point>(), TypeId::of::<RangeInclusive<i64>>()];
        let (is_point, takes_value) = (points.iter().any(|point| kind == *point), arg.get_action().takes_values());
        if is_point { arg.allow_hyphen_values(true) } else { arg.allow_negative_numbers(takes_value) }
    }
    with_negatives(Cli::command())
}

fn main() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
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
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    /// Nothing that is asked for from the servers can tell it better.
    #[test]
    fn what_makes_no_sense_is_refused_by_the_name_of_its_option() {
        for (line, named) in [
            ("tail events --partition 1 --offset -5", "--offset <OFFSET>': -5"),
            ("tail events --partition -1", "--partition"),
            ("tail events --limit -1", "--limit"),
            ("tail events --since -5", "--since <SINCE>': write a whole number with its unit"),
            ("state tv --at -5", "--at <TIME|OFFSET>': neither an offset"),
            ("state tv --at 9 --partition -1", "--partition"),
            ("voucher ledger tv --from -5", "--from <TIME|OFFSET>': neither an offset"),
            ("voucher ledger tv --to 1x", "--to <TIME|OFFSET>': neither an offset"),
            ("voucher ledger tv --partition -1", "--partition"),
            ("voucher publish tv --title T --units 5 --price 1 --ends +1h --partition -1", "--partition"),
            ("voucher publish tv --title T --units -5 --price 1 --ends +1h", "--units"),
            ("voucher pause tv --expect -1", "--expect"),
            ("voucher pause tv --wait -1s", "--wait"),
            ("dlq list --partition 0 --offset -5", "--offset <OFFSET>': write one offset"),
            ("dlq list --partition 0 --offset 5--1", "--offset"),
            ("dlq list --partition -1", "--partition"),
            ("dlq list --limit 0", "--limit"),
            ("dlq show 0:-5", "PARTITION:OFFSET"),
            ("dlq redrive --as-schema -1", "--as-schema"),
            ("dlq redrive --max-times 0", "--max-times"),
            ("explain 2f1c9ad0-63b1-8c5e-9d3a-5b2f0c6e7a41 --look -1", "--look"),
            ("topics apply --partitions -1", "--partitions"),
            ("topics apply --partitions 0", "--partitions"),
            ("audit --patience -1s", "--patience"),
            ("audit --watch --listen here", "--listen"),
            ("rebuild redis --all --wait -1s", "--wait"),
            ("load tv --url nonsense", "--url <URLS>': http://HOST:PORT is needed"),
            ("load tv --url http://127.0.0.1:1 --users 0", "--users"),
            ("load tv --url http://127.0.0.1:1 --double-clicks 1.5", "--double-clicks <DOUBLE_CLICKS>': a share"),
            ("load tv --url http://127.0.0.1:1 --quantity -1", "--quantity"),
            ("load tv --url http://127.0.0.1:1 --connections 0", "--connections"),
            ("token ann --valid -1h", "--valid"),
        ] {
            let refused =
                command().try_get_matches_from(["doorbuster"].into_iter().chain(line.split(' '))).unwrap_err().to_string();
            assert!(refused.contains("invalid value") && refused.contains(named), "{line}: {refused}");
        }
        let good = "voucher stock tv --delta -5 --expect 1 --wait 1s";
        assert!(command().try_get_matches_from(["doorbuster"].into_iter().chain(good.split(' '))).is_ok());
    }

    #[test]
    fn every_verb_has_a_line_of_help() {
        let described = |command: &clap::Command| command.is_hide_set() || command.get_about().is_some();
        let mut root = command();
        root.build();
        for verb in root.get_subcommands().filter(|verb| verb.get_name() != "help") {
            assert!(described(verb), "{}", verb.get_name());
            assert!(verb.get_subcommands().all(described), "{}", verb.get_name());
        }
    }
}
