//! Programs under supervision.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use devstack::{
    StackError,
    process::{Program, RestartPolicy, State, Supervised},
};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(10);

fn shell(folder: &Path, script: &str) -> Program {
    let mut program = Program::new("program", "sh", folder);
    program.args = vec!["-c".into(), script.into()];
    program.restarts = RestartPolicy { first_wait: Duration::from_millis(5), ..RestartPolicy::default() };
    program
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_killed_program_is_started_again() {
    let folder = folder();
    let program = Supervised::start(shell(folder.path(), "echo up && exec sleep 600")).unwrap();
    program.wait_until(SOON, || program.log_tail(9) == "up").unwrap();
    let first = program.pid().unwrap();
    program.kill().unwrap();
    program.wait_until(SOON, || program.pid().is_some_and(|pid| pid != first)).unwrap();
    assert_eq!(program.restarts(), 1);
    program.wait_until(SOON, || program.log_tail(9) == "up\nup").unwrap();
}

#[test]
fn a_crash_loop_ends_and_shows_the_log() {
    let folder = folder();
    let program = Supervised::start(shell(folder.path(), "echo no luck >&2; exit 3")).unwrap();
    let error = program.wait_until(SOON, || false).unwrap_err();
    assert!(matches!(&error, StackError::GaveUp { failures: 5, .. }), "{error}");
    assert!(error.to_string().contains("no luck") && error.to_string().contains("exit status: 3"), "{error}");
    assert_eq!(program.restarts(), 4);
    assert!(program.terminate(SOON).is_err());
}

#[test]
fn waits_grow_so_that_a_crash_loop_does_not_spin() {
    let folder = folder();
    let mut looping = shell(folder.path(), "exit 1");
    looping.restarts = RestartPolicy { first_wait: Duration::from_millis(40), quick_failures: 4, ..RestartPolicy::default() };
    let begin = Instant::now();
    let program = Supervised::start(looping).unwrap();
    program.wait_until(SOON, || false).unwrap_err();
    assert!(begin.elapsed() >= Duration::from_millis(40 + 80 + 160));
}

#[test]
fn success_is_an_end_and_no_reason_to_start_again() {
    let folder = folder();
    let program = Supervised::start(shell(folder.path(), "exit 0")).unwrap();
    program.wait_until(SOON, || matches!(program.state(), State::Ended(_))).unwrap();
    assert_eq!(program.restarts(), 0);
    assert!(program.terminate(SOON).unwrap().success());
    assert!(program.kill().is_err());
}

#[test]
fn a_program_that_is_asked_to_end_gives_its_code() {
    let folder = folder();
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let program = Supervised::start(shell(folder.path(), script)).unwrap();
    program.wait_until(SOON, || program.log_tail(1) == "ready").unwrap();
    program.pause().unwrap();
    assert_eq!(program.terminate(SOON).unwrap().code(), Some(9));
    assert_eq!(program.restarts(), 0);
}

#[test]
fn a_program_that_ignores_the_request_is_killed() {
    let folder = folder();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let program = Supervised::start(shell(folder.path(), script)).unwrap();
    program.wait_until(SOON, || program.log_tail(1) == "ready").unwrap();
    let error = program.terminate(Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, StackError::NotEnded { .. }), "{error}");
    program.wait_until(SOON, || program.pid().is_none()).unwrap();
}

#[test]
fn a_program_gets_its_environment_and_a_missing_one_is_an_error() {
    let folder = folder();
    let mut program = shell(folder.path(), "echo $GREETING");
    program.env.push(("GREETING".into(), "hello".into()));
    let program = Supervised::start(program).unwrap();
    program.wait_until(SOON, || program.log_tail(1) == "hello").unwrap();

    let mut missing = Program::new("missing", "/no/such/program", folder.path());
    missing.restarts = RestartPolicy { quick_failures: 0, ..RestartPolicy::default() };
    let missing = Supervised::start(missing).unwrap();
    let error = missing.wait_until(SOON, || false).unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}
