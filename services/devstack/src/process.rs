//! A program that is started again when it fails.
//!
//! Doorbuster's services end themselves with an abort when a watchdog finds them stuck; whoever runs them starts them
//! again. This is that somebody in the demo and in tests, as systemd or Kubernetes is elsewhere. A program that fails at
//! once each time is not tried for ever: after a few quick failures in a row it is left alone, and says so.

use std::{
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::{Result, StackError, folder, logs, pid::ProcessId, server::try_wait, spawn::Launch};

/// How soon an end is noticed.
const POLL: Duration = Duration::from_millis(10);

/// What to run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Names the log and the pid file; unique within `folder`.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Set on top of this process' environment.
    pub env: Vec<(String, String)>,
    /// For `NAME.log` and `NAME.pid`; made if missing.
    pub folder: PathBuf,
    pub restarts: RestartPolicy,
}

impl Program {
    /// A program without arguments, started again by the default policy.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>, folder: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            folder: folder.into(),
            restarts: RestartPolicy::default(),
        }
    }
}

/// When a program that failed is started again.
#[derive(Clone, Copy, Debug)]
pub struct RestartPolicy {
    /// Wait after a first failure; doubles with each quick failure after it.
    pub first_wait: Duration,
    /// Waits grow up to this.
    pub longest_wait: Duration,
    /// A run shorter than this is a quick failure.
    pub quick: Duration,
    /// So many quick failures in a row end the matter. 0: it is never started again.
    pub quick_failures: u32,
}

impl Default for RestartPolicy {
    /// Gives a program five tries, and servers it depends on about three seconds to come back.
    fn default() -> Self {
        Self {
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(5),
            quick: Duration::from_secs(5),
            quick_failures: 5,
        }
    }
}

impl RestartPolicy {
    fn wait(&self, quick_failures: u32) -> Duration {
        let doublings = quick_failures.saturating_sub(1).min(16);
        self.first_wait.saturating_mul(1 << doublings).min(self.longest_wait)
    }
}

/// What a supervised program is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    /// It failed and is about to be started again.
    Waiting,
    /// It ended by itself with success, or was asked to end. It stays so.
    Ended(ExitStatus),
    /// It failed too often, or could not be started again. It stays so.
    GaveUp(ExitStatus),
}

/// A program under supervision. Killed for good when this value is dropped, and when this process ends.
pub struct Supervised {
    shared: Arc<Shared>,
    supervisor: Option<JoinHandle<()>>,
}

struct Shared {
    name: String,
    launch: Launch,
    pid_file: PathBuf,
    policy: RestartPolicy,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    child: Option<Child>,
    state: State,
    /// The last run's begin.
    begin: Instant,
    /// When it is started again, while waiting.
    due: Instant,
    restarts: u32,
    quick_failures: u32,
    /// The next end is asked for.
    ending: bool,
}

impl Supervised {
    /// Starts a program and the thread that watches it. Does not wait for anything the program does: see
    /// [`Supervised::wait_until`].
    ///
    /// # Errors
    /// When it cannot be started the first time, or already runs in this folder.
    pub fn start(program: Program) -> Result<Supervised> {
        folder::make(&program.folder)?;
        let pid_file = program.folder.join(format!("{}.pid", program.name));
        if let Some(id) = ProcessId::read_from(&pid_file).filter(|id| id.is_alive()) {
            return Err(StackError::AlreadyRunning { what: program.name, pid: id.pid });
        }
        let log = program.folder.join(format!("{}.log", program.name));
        let launch = Launch { env: program.env, ..Launch::new(program.program, program.args, log) };
        let child = launch.spawn()?;
        let now = Instant::now();
        let inner = Inner {
            child: Some(child),
            state: State::Running,
            begin: now,
            due: now,
            restarts: 0,
            quick_failures: 0,
            ending: false,
        };
        let shared = Arc::new(Shared {
            name: program.name,
            launch,
            pid_file,
            policy: program.restarts,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        });
        shared.write_pid(&mut shared.lock());
        let watched = shared.clone();
        let supervisor = thread::Builder::new()
            .name(format!("supervise {}", shared.name))
            .spawn(move || watched.watch())
            .map_err(StackError::system("start a thread"))?;
        Ok(Supervised { shared, supervisor: Some(supervisor) })
    }

    /// Its name, as given.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What it is doing now.
    pub fn state(&self) -> State {
        self.shared.lock().state
    }

    /// The process, if it is running.
    pub fn pid(&self) -> Option<u32> {
        self.shared.lock().child.as_ref().map(Child::id)
    }

    /// How often it was started again.
    pub fn restarts(&self) -> u32 {
        self.shared.lock().restarts
    }

    /// Its log, over all restarts.
    pub fn log(&self) -> &Path {
        &self.shared.launch.log
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        logs::tail(self.log(), lines)
    }

    /// Kills it (SIGKILL), as a crash would: it is started again. For an end that stays, drop it or `terminate`.
    ///
    /// # Errors
    /// `NotRunning`.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::SIGKILL)
    }

    /// Freezes it (SIGSTOP).
    ///
    /// # Errors
    /// `NotRunning`.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// `NotRunning`.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Sends any signal; an end that follows from it counts as the program's own.
    ///
    /// # Errors
    /// `NotRunning`.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.shared.lock().signal(signal) { Ok(()) } else { Err(StackError::NotRunning { name: self.name().to_owned() }) }
    }

    /// Asks it to end (SIGTERM) and waits for that; it is not started again. A paused one is resumed for it. If it has
    /// ended already, this gives how.
    ///
    /// # Errors
    /// `NotEnded` when it was still there after `deadline`; it was killed then. `GaveUp` as in [`Supervised::check`].
    pub fn terminate(&self, deadline: Duration) -> Result<ExitStatus> {
        let shared = &*self.shared;
        let end = Instant::now() + deadline;
        let mut inner = shared.lock();
        inner.ending = true;
        inner.signal(Signal::SIGCONT);
        inner.signal(Signal::SIGTERM);
        shared.changed.notify_all();
        loop {
            match inner.state {
                State::Ended(status) => return Ok(status),
                State::GaveUp(_) => {
                    drop(inner);
                    return Err(self.gave_up());
                }
                State::Running | State::Waiting => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                inner.signal(Signal::SIGKILL);
                drop(inner);
                return Err(StackError::not_ended(self.name(), deadline, self.log()));
            }
            inner = shared.wait(inner, left);
        }
    }

    /// Whether it is being kept alive, or ended well.
    ///
    /// # Errors
    /// `GaveUp` with the end of its log.
    pub fn check(&self) -> Result<()> {
        match self.state() {
            State::GaveUp(_) => Err(self.gave_up()),
            _ => Ok(()),
        }
    }

    /// Asks `ready` again and again until it says yes.
    ///
    /// # Errors
    /// `NotReady` with the end of the log when `deadline` passes or the program ended; `GaveUp` if it failed for good.
    pub fn wait_until(&self, deadline: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let end = Instant::now() + deadline;
        while !ready() {
            self.check()?;
            let reason = match self.state() {
                State::Ended(status) => format!("it ended with {status}"),
                _ if Instant::now() >= end => format!("not within {deadline:?}"),
                _ => {
                    thread::sleep(POLL);
                    continue;
                }
            };
            return Err(StackError::not_ready(self.name(), reason, self.log()));
        }
        Ok(())
    }

    fn gave_up(&self) -> StackError {
        let inner = self.shared.lock();
        let status = match inner.state {
            State::GaveUp(status) | State::Ended(status) => status.to_string(),
            _ => String::new(),
        };
        let (log, tail) = (self.log().to_path_buf(), logs::excerpt(self.log()));
        StackError::GaveUp { name: self.name().to_owned(), failures: inner.quick_failures, status, log, tail }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        {
            let mut inner = self.shared.lock();
            inner.ending = true;
            inner.signal(Signal::SIGKILL);
            self.shared.changed.notify_all();
        }
        if let Some(supervisor) = self.supervisor.take() {
            // It ends once the program has; a panic in it has been printed already.
            let _ = supervisor.join();
        }
    }
}

impl std::fmt::Debug for Supervised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervised").field("name", &self.name()).field("state", &self.state()).field("pid", &self.pid()).finish()
    }
}

impl Inner {
    /// Only [`Shared::watch`] reaps the child, and with the lock held, so its pid is still its own here.
    fn signal(&self, signal: Signal) -> bool {
        let id = self.child.as_ref().and_then(|child| ProcessId::of(child.id()));
        id.is_some_and(|id| id.signal(signal))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<'a>(&self, inner: MutexGuard<'a, Inner>, at_most: Duration) -> MutexGuard<'a, Inner> {
        self.changed.wait_timeout(inner, at_most).unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// Until the program has ended for good.
    fn watch(&self) {
        let mut inner = self.lock();
        let mut last_end = None;
        loop {
            inner = match inner.state {
                State::Running => match inner.child.as_mut().and_then(try_wait) {
                    Some(status) => {
                        last_end = Some(status);
                        self.ended(&mut inner, status);
                        inner
                    }
                    None => self.wait(inner, POLL),
                },
                State::Waiting => {
                    let left = inner.due.saturating_duration_since(Instant::now());
                    match last_end {
                        Some(status) if inner.ending => {
                            inner.state = State::Ended(status);
                            inner
                        }
                        Some(status) if left.is_zero() => {
                            self.start_again(&mut inner, status);
                            inner
                        }
                        _ => self.wait(inner, left),
                    }
                }
                State::Ended(_) | State::GaveUp(_) => {
                    let _ = std::fs::remove_file(&self.pid_file);
                    self.changed.notify_all();
                    return;
                }
            };
        }
    }

    fn ended(&self, inner: &mut Inner, status: ExitStatus) {
        inner.child = None;
        if inner.begin.elapsed() < self.policy.quick {
            inner.quick_failures += 1;
        } else {
            inner.quick_failures = 1;
        }
        inner.state = if inner.ending || status.success() {
            State::Ended(status)
        } else if inner.quick_failures >= self.policy.quick_failures {
            State::GaveUp(status)
        } else {
            inner.due = Instant::now() + self.policy.wait(inner.quick_failures);
            State::Waiting
        };
        self.changed.notify_all();
    }

    fn start_again(&self, inner: &mut Inner, last: ExitStatus) {
        match self.launch.spawn() {
            Ok(child) => {
                inner.child = Some(child);
                inner.begin = Instant::now();
                inner.restarts += 1;
                inner.state = State::Running;
                self.write_pid(inner);
            }
            Err(_) => inner.state = State::GaveUp(last),
        }
        self.changed.notify_all();
    }

    /// Without the file, only the check for a program that already runs is lost.
    fn write_pid(&self, inner: &mut Inner) {
        if let Some(id) = inner.child.as_ref().and_then(|child| ProcessId::of(child.id())) {
            let _ = id.write_to(&self.pid_file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let policy = RestartPolicy::default();
        let waits: Vec<u128> = (1..9).map(|failures| policy.wait(failures).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(policy.wait(u32::MAX).as_millis(), 5000);
    }
}
