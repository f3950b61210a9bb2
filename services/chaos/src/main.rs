//! `make chaos`: breaks things under a running sale until the time is over or a promise is broken.

#![allow(clippy::print_stdout, reason = "a command's result")]

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use chaos::{
    drive::{self, Run},
    fault::{self, Kind},
};
use clap::Parser;

/// Break servers, networks and processes under a running sale, and check that nothing is lost, sold twice or left behind
#[derive(Parser)]
struct Args {
    /// What is drawn follows from it; none: another one each time
    #[arg(long)]
    seed: Option<u64>,
    /// No epoch begins after this
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Length of an epoch without its judgement; each has fresh topics, tables and vouchers
    #[arg(long, default_value_t = 4)]
    epoch_minutes: u64,
    /// Visits of buyers a second
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Only kinds whose names begin with one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Folder with another build's `doorbuster`: every second process of each service is of that one
    #[arg(long)]
    other: Option<PathBuf>,
    /// Print the kinds of faults and end
    #[arg(long)]
    list: bool,
}

/// The binary in a folder of another build.
fn binary_in(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join("doorbuster");
    let found = path.canonicalize().with_context(|| format!("--other {}: there is no build", folder.display()))?;
    anyhow::ensure!(found.is_file(), "{} is not a program", path.display());
    Ok(found)
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let is_wanted = |kind: &&Kind| args.only.is_empty() || args.only.iter().any(|start| kind.name.starts_with(start.as_str()));
    let kinds: Vec<Kind> = fault::kinds().iter().filter(is_wanted).copied().collect();
    if args.list {
        kinds.iter().for_each(|kind| println!("{:32} bound {:3} s: {}", kind.name, kind.bound.as_secs(), kind.why));
        return Ok(());
    }
    anyhow::ensure!(!kinds.is_empty(), "no kind of fault begins with {:?}; --list names them", args.only);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let run = Run {
        seed: args.seed.unwrap_or(now % 1_000_000 * 1_000),
        length: minutes(args.minutes),
        epoch: minutes(args.epoch_minutes.min(args.minutes)),
        rate: args.rate,
        kinds,
        other: args.other.as_deref().map(binary_in).transpose()?,
    };
    let began = std::time::Instant::now();
    let say = |line: &str| println!("{:7.1} {line}", began.elapsed().as_secs_f64());
    println!("\n{}", drive::run(&run, &say)?);
    Ok(())
}
