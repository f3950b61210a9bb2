//! `make bench`: what each path of the system does beside what its parts can do alone, measured in the same run on the same servers.
//!
//! A ceiling is made of **bare** parts ([`bare`]): the same client library, the same script, statement or settings, and nothing around it. Parts
//! that a request passes one after the other give the harmonic sum of their rates. Everything (servers, services and the generator, which is
//! this process) runs on the same cores, under the ceilings as under the system: so the costs of all parts add up in both, and a share of
//! the machine that the generator takes is missing from both. What it took is printed with each round.
//!
//! - [`gate`]: purchase alone; [`lane`]: orders and compensation on a backlog; [`replay`]: what an operator waits for; [`latency`]: all of it
//!   with room to spare.
//! - [`http`] is the generator; [`site`] has the servers and what is asked of services; [`machine`] has cores, processor time and memory.

#![allow(clippy::print_stdout, reason = "a command's result")]

mod bare;
mod buyers;
mod figure;
mod gate;
mod http;
mod lane;
mod latency;
mod machine;
mod replay;
mod site;

use std::{path::PathBuf, thread};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use crate::site::{Scale, Site};

/// Measure each path of the system against ceilings measured alone in the same run
#[derive(Parser)]
struct Args {
    /// Only figures whose names begin with one of these, and what is measured together with them
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Two rounds and a twentieth of everything: shows that it runs, not how fast
    #[arg(long)]
    quick: bool,
    /// Where all of it runs: servers, services and the generator
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// The list of figures (default: bench.json above this program's folder)
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// A bare handler in a process of its own
    #[command(hide = true)]
    Handler,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Part::Handler) = args.part {
        return bare::handler::serve();
    }
    ensure!(!cfg!(debug_assertions) || args.quick, "figures of a debug build say nothing: run `make bench`");
    let cores = match args.cores {
        // At most four, so that runs on larger machines can be compared.
        none if none.is_empty() => (0..thread::available_parallelism()?.get().min(4)).collect(),
        cores => cores,
    };
    machine::pin(&cores)?;
    let is_wanted = |names: &[&str]| {
        args.only.is_empty() || names.iter().any(|name| args.only.iter().any(|start| name.starts_with(start.as_str())))
    };
    let groups = [&gate::FIGURES[..], &lane::FIGURES, &lane::TWO_PARTITIONS, &latency::FIGURES];
    ensure!(groups.iter().any(|names| is_wanted(names)), "no figure begins with {:?}: {:?}", args.only, groups.concat());
    let out = match args.out {
        Some(out) => out,
        None => std::env::current_exe()?.ancestors().nth(2).context("this program lies in a folder")?.join("bench.json"),
    };

    let site = Site::start(if args.quick { Scale::QUICK } else { Scale::FULL })?;
    let mut figures = Vec::new();
    let (mut accept_rate, mut drained) = (None, None);
    if is_wanted(&gate::FIGURES) {
        let (found, rate) = gate::measure(&site)?;
        figures.extend(found);
        accept_rate = Some(rate);
    }
    if is_wanted(&lane::FIGURES) {
        let found = lane::measure(&site)?;
        drained = found.iter().find(|figure| figure.name == "drained").map(|figure| figure.value);
        figures.extend(found);
    }
    if is_wanted(&lane::TWO_PARTITIONS) {
        figures.push(lane::two_partitions(&site, drained, cores.len())?);
    }
    if is_wanted(&latency::FIGURES) {
        let rate = accept_rate.map_or_else(|| gate::accept_rate(&site), Ok)?;
        figures.extend(latency::measure(&site, rate)?);
    }
    println!("\nservers, services and generator on cores {cores:?}; Kafka with C2, fsync and synchronous_commit on\n");
    print!("{}", figure::table(&figures));
    let json = serde_json::to_string_pretty(&figures)?;
    std::fs::write(&out, json + "\n").with_context(|| format!("cannot write {}", out.display()))?;
    println!("\n{}", out.display());
    site.stack.stop()?;
    Ok(())
}
