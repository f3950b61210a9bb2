//! The two signals, on a process of its own: this test program, started again.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

const IS_CHILD: &str = "SHUTDOWN_TEST_CHILD";

/// What the child runs; says nothing and passes where nobody asked for it.
#[tokio::test]
async fn the_process_that_is_told() {
    if std::env::var_os(IS_CHILD).is_none() {
        return;
    }
    let stop = infra::shutdown::on_signals().expect("signals can be had");
    eprintln!("ready");
    stop.cancelled().await;
    eprintln!("stopping");
    // Work that does not end.
    std::future::pending::<()>().await;
}

#[test]
fn the_first_signal_asks_and_the_second_ends() {
    for signals in [["TERM", "TERM"], ["INT", "INT"], ["TERM", "INT"]] {
        let mut child = Command::new(std::env::current_exe().expect("it has a path"))
            .args(["--exact", "--nocapture", "the_process_that_is_told"])
            .env(IS_CHILD, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        for (signal, said) in signals.into_iter().zip(["ready", "stopping"]) {
            let seen = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(said)));
            assert!(seen.is_some(), "it never said {said}");
            let sent = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status();
            assert!(sent.is_ok_and(|status| status.success()));
        }
        let ended = child.wait().expect("it is ours");
        assert_eq!(ended.code(), Some(130), "{signals:?}");
    }
}
