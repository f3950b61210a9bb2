//! The faults, one file a family: each a table of kinds, then how they are made.

pub(crate) mod builds;
pub(crate) mod clocks;
pub(crate) mod crashes;
pub(crate) mod everything;
pub(crate) mod kafka;
pub(crate) mod network;
pub(crate) mod postgres;
pub(crate) mod processes;
pub(crate) mod redis;
pub(crate) mod registry;

use std::{thread, time::Duration};

use anyhow::Result;
use devstack::Server;
use rand::{Rng, rngs::SmallRng};

/// Picks one of however many there will be.
fn draw(rng: &mut SmallRng) -> impl Fn(usize) -> usize + Clone + Send + 'static {
    let drawn: usize = rng.random_range(0..usize::MAX);
    move |count| drawn % count.max(1)
}

/// A time between two, in whole milliseconds.
fn draw_time(rng: &mut SmallRng, from: Duration, to: Duration) -> Duration {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(rng.random_range(millis(from)..=millis(to)))
}

/// Starts servers again side by side: brokers need each other for it.
fn restart_all<'a>(servers: impl IntoIterator<Item = &'a Server>) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = servers.into_iter().map(|server| scope.spawn(|| server.restart())).collect();
        let results: Vec<_> =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect();
        results.into_iter().try_for_each(|restarted| restarted.map_err(anyhow::Error::from))
    })
}
