//! Work that is done side by side.

use std::{
    panic::resume_unwind,
    thread::{self, ScopedJoinHandle},
};

/// Does each on a thread of its own, and gives what came of it, in their order. A panic in one goes on here once all have ended.
pub fn side_by_side<T: Send>(tasks: impl IntoIterator<Item = impl FnOnce() -> T + Send>) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = tasks.into_iter().map(|task| scope.spawn(task)).collect();
        threads.into_iter().map(joined).collect()
    })
}

/// What came of a thread's work; a panic in it goes on here.
pub fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
