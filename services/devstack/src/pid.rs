//! A process' identity: its pid and the instant it started. A pid alone may belong to somebody else by now, so every
//! signal to a process that is not our own unreaped child compares both first.

use std::{
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

const POLL: Duration = Duration::from_millis(10);

/// A process that cannot be taken for a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// As the kernel numbers it.
    pub pid: i32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub started: u64,
}

struct Stat {
    state: char,
    parent: i32,
    started: u64,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, started })
}

impl ProcessId {
    /// The identity of the process that has this pid now.
    pub fn of(pid: u32) -> Option<ProcessId> {
        let pid = i32::try_from(pid).ok()?;
        Some(ProcessId { pid, started: stat(pid)?.started })
    }

    /// The identity of this process.
    pub fn own() -> Option<ProcessId> {
        Self::of(std::process::id())
    }

    /// Whether it runs. A zombie does not.
    pub fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|now| now.started == self.started && !matches!(now.state, 'Z' | 'X'))
    }

    /// Whether it was stopped by a signal.
    pub fn is_stopped(self) -> bool {
        stat(self.pid).is_some_and(|now| now.started == self.started && now.state == 'T')
    }

    /// Sends a signal, if the process is still this one. Says whether it was sent.
    pub fn signal(self, signal: Signal) -> bool {
        self.is_alive() && signal::kill(Pid::from_raw(self.pid), signal).is_ok()
    }

    /// Waits until it is gone; false if it is still there after `deadline`.
    pub fn wait_gone(self, deadline: Duration) -> bool {
        let begin = Instant::now();
        while self.is_alive() {
            if begin.elapsed() >= deadline {
                return false;
            }
            thread::sleep(POLL);
        }
        true
    }

    /// The processes it has started and that run now.
    pub fn children(self) -> Vec<ProcessId> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter_map(|pid| stat(pid).map(|found| (pid, found)))
            .filter(|(_, found)| found.parent == self.pid)
            .map(|(pid, found)| ProcessId { pid, started: found.started })
            .collect()
    }

    pub(crate) fn write_to(self, file: &Path) -> io::Result<()> {
        fs::write(file, format!("{} {}\n", self.pid, self.started))
    }

    /// The process a pid file names; `None` if there is no such file or it makes no sense.
    pub(crate) fn read_from(file: &Path) -> Option<ProcessId> {
        let text = fs::read_to_string(file).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        Some(ProcessId { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_with_another_start_time_is_somebody_else() {
        let own = ProcessId::own().unwrap();
        assert!(own.is_alive());
        let other = ProcessId { started: own.started + 1, ..own };
        assert!(!other.is_alive());
        assert!(!other.signal(Signal::SIGKILL));
    }

    #[test]
    fn a_pid_file_gives_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pid");
        let own = ProcessId::own().unwrap();
        own.write_to(&file).unwrap();
        assert_eq!(ProcessId::read_from(&file), Some(own));
        fs::write(&file, "nonsense").unwrap();
        assert_eq!(ProcessId::read_from(&file), None);
        assert_eq!(ProcessId::read_from(&folder.path().join("missing")), None);
    }
}
