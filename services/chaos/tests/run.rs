//! A short run with a fixed seed, as `make chaos` makes long ones.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use chaos::{
    drive::{self, Run},
    fault::{Kind, kinds},
};

/// Drawn so that faults of several families meet within the time.
const SEED: u64 = 7;
/// A run has servers and services for itself, and wants the machine.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_short_run_breaks_no_promise() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let quick: Vec<Kind> = kinds().iter().filter(|kind| !kind.rare).copied().collect();
    let run = Run { seed: SEED, length: Duration::ZERO, epoch: Duration::from_secs(45), rate: 40.0, kinds: quick, other: None };
    let report = drive::run(&run, &|line| eprintln!("{line}")).expect("the servers start");
    assert!(report.faults >= 2 && report.orders >= 100, "too little happened: {report}");
}

/// One bound is too short for anything, so the first round breaks it.
#[test]
fn a_run_that_breaks_says_what_it_had_counted() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let of = |kind: &&Kind| kind.name == "registry-frozen";
    let kinds = kinds().iter().filter(of).map(|kind| Kind { bound: Duration::ZERO, ..*kind }).collect();
    let run = Run { seed: SEED, length: Duration::ZERO, epoch: Duration::from_secs(60), rate: 40.0, kinds, other: None };
    let broken = catch_unwind(AssertUnwindSafe(|| drive::run(&run, &|line| eprintln!("{line}")).map(drop)));
    let said = *broken.unwrap_err().downcast::<String>().unwrap();
    let counted = said.split_once("this epoch until then: ").unwrap().1.lines().next().unwrap();
    let number = |word: &str| -> u64 {
        let before = counted.split_once(&format!(" {word}")).unwrap().0;
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(number("orders accepted") > 0 && number("calls") >= number("orders accepted"), "{counted}");
    assert_eq!(number("faults"), 1, "{counted}");
    assert!(said.contains(&format!("make chaos SEED={SEED} MINUTES=1")), "{said}");
}
