//! `up|down|status`: real servers for development, kept by a process of their own. `keep` is that process.

use std::path::PathBuf;

use devstack::{
    StackOptions,
    detached::{self, ServerState},
};

use crate::{DIFFERENT, OK, output};

/// The folder of the stack that a command finds without being told.
pub(crate) const DEFAULT_FOLDER: &str = ".doorbuster";

/// Which stack.
#[derive(clap::Args)]
pub(crate) struct Folder {
    /// The stack's folder, with its data and logs
    #[arg(long, default_value = DEFAULT_FOLDER)]
    dir: PathBuf,
}

/// Start Kafka, Redis, Postgres and a schema registry, and keep them running
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster up\n  doorbuster up --redis-aof\n  eval \"$(doorbuster up --export)\"")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    folder: Folder,
    /// Redis keeps what it holds over a restart
    #[arg(long)]
    redis_aof: bool,
    /// Print lines for a shell to take over
    #[arg(long)]
    export: bool,
}

/// Show which of them answer
#[derive(clap::Args)]
#[command(after_help = "Exit code 0 if all answer, 1 if not.\n\nExamples:\n  doorbuster status\n  doorbuster status --json")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    folder: Folder,
    #[arg(long)]
    json: bool,
}

pub(crate) fn up(args: UpArgs) -> anyhow::Result<u8> {
    // The registry keeps its schemas where the topics' records outlive a restart: their ids must, too.
    let options = StackOptions { redis_aof: args.redis_aof, registry_data: true, ..StackOptions::default() };
    let endpoints = detached::up(&std::env::current_exe()?, &args.folder.dir, options)?;
    for (name, value) in endpoints.env() {
        let word = if args.export { "export " } else { "" };
        outln!("{word}{name}={value}");
    }
    Ok(OK)
}

pub(crate) fn down(folder: Folder) -> anyhow::Result<u8> {
    let was_up = detached::down(&folder.dir)?;
    output::line(if was_up { "stopped" } else { "nothing was running" });
    Ok(OK)
}

pub(crate) fn status(args: StatusArgs) -> anyhow::Result<u8> {
    let servers = detached::status(&args.folder.dir)?;
    let all_answer = !servers.is_empty() && servers.iter().all(|s| s.state == ServerState::Answering);
    let code = if all_answer { OK } else { DIFFERENT };
    if args.json {
        output::json(&servers)?;
        return Ok(code);
    }
    if servers.is_empty() {
        outln!("no stack was started in {}", args.folder.dir.display());
        return Ok(code);
    }
    let rows = servers.iter().map(|s| {
        let state = match s.state {
            ServerState::Answering => "answering",
            ServerState::Silent => "silent",
            ServerState::Ended => "ended",
        };
        row![s.name, state, s.pid, s.endpoint, s.log.display()]
    });
    output::table(["SERVER", "STATE", "PID", "ENDPOINT", "LOG"], rows);
    Ok(code)
}

pub(crate) fn keep(folder: Folder) -> anyhow::Result<u8> {
    detached::keeper_main(&folder.dir)?;
    Ok(OK)
}
