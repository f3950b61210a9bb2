//! A short run with a fixed seed, as `make chaos` makes long ones.

use std::time::Duration;

use chaos::{
    drive::{self, Run},
    fault::{Kind, kinds},
};

/// Drawn so that faults of several families meet within the time.
const SEED: u64 = 7;

#[test]
fn a_short_run_breaks_no_promise() {
    let quick: Vec<Kind> = kinds().iter().filter(|kind| !kind.rare).copied().collect();
    let run = Run { seed: SEED, length: Duration::ZERO, epoch: Duration::from_secs(45), rate: 40.0, kinds: quick, other: None };
    let report = drive::run(&run, &|line| eprintln!("{line}")).expect("the servers start");
    assert!(report.faults >= 2 && report.orders >= 100, "too little happened: {report}");
}
