//! Waiting for a condition with a deadline, instead of sleeping and hoping.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Pause between two looks: short beside every deadline a test uses, long enough to leave the processor to the system under test.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks at `condition` again and again until it holds. Panics, naming `what`, if it does not within `deadline`.
#[track_caller]
pub fn wait_until(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(deadline, what, || condition().then_some(()));
}

/// As [`wait_until`], for a condition that gives something.
#[track_caller]
pub fn wait_for<T>(deadline: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(started.elapsed() < deadline, "gave up after {deadline:?} waiting for {what}");
        thread::sleep(PAUSE);
    }
}

/// As [`wait_until`], for a condition that has to be awaited.
pub async fn wait_until_async(deadline: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < deadline, "gave up after {deadline:?} waiting for {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Runs a future to its end on a thread and runtime of its own, so that it can be called from anywhere, async tests included.
pub fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be built").block_on(future)
    };
    thread::scope(|scope| match scope.spawn(run).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
