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

use std::time::Duration;

use anyhow::Result;
use devstack::{Server, side_by_side};
use rand::{Rng, rngs::SmallRng};

use crate::{
    fault::{Fault, steps},
    site::{Proxied, Servers},
};

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
    let restarted = side_by_side(servers.into_iter().map(|server| || server.restart()));
    Ok(restarted.into_iter().collect::<Result<_, _>>()?)
}

/// SIGSTOP of a server.
fn frozen(what: &str, of: fn(&Servers) -> &Proxied) -> Fault {
    steps(
        format!("SIGSTOP of {what}"),
        move |site| Ok(of(&site.servers).server.pause()?),
        move |site, ()| Ok(of(&site.servers).server.resume()?),
    )
}
