//! The machine's side: on which cores all of it runs, and what each process costs in processor time and memory, from `/proc`.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use devstack::ProcessId;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Length of a clock tick in `/proc/PID/stat`: Linux shows 100 a second to every program (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// Binds this process, and every one it starts from now on, to these cores. Must come before the first further thread.
pub(crate) fn pin(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cores.iter().try_for_each(|core| set.set(*core))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot run on cores {cores:?}: is there each of them?"))
}

/// Processor time that a process has used, with its children, those that have ended included. Zero where it is gone.
fn cpu_of(pid: u32) -> Duration {
    let living: u64 = ProcessId::of(pid).map_or(0, |id| id.children().iter().map(|child| ticks(child.pid, 2)).sum());
    TICK * u32::try_from(ticks(i32::try_from(pid).unwrap_or(0), 4) + living).unwrap_or(u32::MAX)
}

/// The sum of the first so many of: user time, kernel time, user and kernel time of children that were waited for.
fn ticks(pid: i32, fields: usize) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is the program's name in parentheses, which may hold spaces itself.
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_ascii_whitespace().skip(11).take(fields).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Resident memory of a process in bytes; `None` where it is gone.
pub(crate) fn resident(pid: u32) -> Option<f64> {
    memory(pid, "VmRSS:")
}

/// The most that it ever was.
pub(crate) fn peak(pid: u32) -> Option<f64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, what: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib: f64 = text.lines().find_map(|line| line.strip_prefix(what))?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0)
}

/// Measures what processes use from its making on.
pub(crate) struct Meter(Vec<(String, u32, Duration)>);

impl Meter {
    /// `processes`: names and pids. This process is counted as `generator`.
    pub(crate) fn start(processes: Vec<(String, u32)>) -> Self {
        let own = ("generator".to_owned(), std::process::id());
        // Its children are the servers and services: only its own time is its cost.
        let all = std::iter::once(own).chain(processes);
        Self(all.map(|(name, pid)| (name, pid, used(pid))).collect())
    }

    /// Microseconds of each process for each of `count` things done meanwhile, the dearest first.
    pub(crate) fn each(&self, count: u64) -> String {
        let mut costs: Vec<(f64, &str)> = self
            .0
            .iter()
            .map(|(name, pid, before)| (used(*pid).saturating_sub(*before).as_secs_f64() * 1e6 / count.max(1) as f64, &**name))
            .collect();
        costs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let sum: f64 = costs.iter().map(|(micros, _)| micros).sum();
        let parts: Vec<String> = costs.iter().map(|(micros, name)| format!("{name} {micros:.1}")).collect();
        format!("{} = {sum:.1} us of processor time each", parts.join(" + "))
    }
}

fn used(pid: u32) -> Duration {
    if pid == std::process::id() { TICK * u32::try_from(ticks(pid.cast_signed(), 2)).unwrap_or(u32::MAX) } else { cpu_of(pid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_time() {
        let meter = Meter::start(Vec::new());
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        assert!(meter.each(1).starts_with("generator "), "{}", meter.each(1));
        assert!(used(std::process::id()) >= TICK);
        assert!(resident(std::process::id()).is_some_and(|bytes| bytes > 1e6));
        assert_eq!(resident(u32::MAX), None);
    }
}
