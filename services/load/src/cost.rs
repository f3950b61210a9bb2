//! What the generator itself costs, so that nobody takes its limits for the shop's.

use std::time::{Duration, Instant};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

/// Processor time of this process over a stretch of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// In user and kernel mode, all threads.
    pub cpu: Duration,
    pub wall: Duration,
}

impl Cost {
    /// Cores kept busy on average.
    pub fn cores(&self) -> f64 {
        if self.wall.is_zero() { 0.0 } else { self.cpu.as_secs_f64() / self.wall.as_secs_f64() }
    }
}

/// Measures from its making on.
pub(crate) struct Meter {
    since: Instant,
    cpu: Duration,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { since: Instant::now(), cpu: cpu_of_process() }
    }

    pub(crate) fn read(&self) -> Cost {
        Cost { cpu: cpu_of_process().saturating_sub(self.cpu), wall: self.since.elapsed() }
    }
}

/// Zero where the system does not say; the cost is information, nothing depends on it.
fn cpu_of_process() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
