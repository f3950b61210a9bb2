//! One server as a child process: started on a free port, ready once it has answered, ended with us.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    sync::{Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::{Result, StackError, endpoints, folder::Folder, logs, pid::ProcessId, ports, spawn::Launch};

/// From the launch to the first answer. The slowest takes 4 s on two idle cores; a machine that also compiles needs more.
pub const START_DEADLINE: Duration = Duration::from_secs(90);
/// For ending in good order: Kafka writes its snapshot, Postgres its checkpoint.
pub const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// For a killed process to leave the process table.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// How often a server that starts is asked.
const POLL: Duration = Duration::from_millis(20);
/// Starts on other ports when somebody else took ours between the choice and the start.
const PORT_TRIES: u32 = 5;
/// What programs say when their port is taken, in lower case.
const PORT_TAKEN: [&str; 2] = ["address already in use", "in use by another process"];

/// Asks a starting server; the text says what is missing.
pub(crate) type Probe = Box<dyn Fn(&Started<'_>) -> Result<(), String> + Send + Sync>;

/// How to run a server on certain ports.
pub(crate) struct Recipe {
    pub(crate) launch: Launch,
    pub(crate) endpoint: String,
    pub(crate) probe: Probe,
    /// The signal on which it ends in good order.
    pub(crate) stop_signal: Signal,
}

impl Recipe {
    /// Of a server that ends in good order on SIGTERM.
    pub(crate) fn new(
        launch: Launch,
        endpoint: String,
        probe: impl Fn(&Started<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { launch, endpoint, probe: Box::new(probe), stop_signal: Signal::SIGTERM }
    }
}

/// What a probe may look at.
pub(crate) struct Started<'a> {
    pub(crate) pid: u32,
    pub(crate) log: &'a Path,
    /// Where this run's part of the log begins.
    pub(crate) log_begin: u64,
}

struct Running {
    child: Child,
    id: ProcessId,
}

/// A server that this process has started. Ends with this value, and in any case with this process.
pub struct Server {
    name: &'static str,
    recipe: Recipe,
    pid_file: PathBuf,
    running: Mutex<Option<Running>>,
    // After `running`: the folder goes when the process is gone.
    folder: Folder,
}

impl Server {
    /// Starts a server on `wanted` ports, where 0 means any free one. `plan` says how, for the ports that were found.
    pub(crate) fn start(
        name: &'static str,
        folder: Folder,
        wanted: &[u16],
        plan: impl Fn(&Path, &[u16]) -> Result<Recipe>,
    ) -> Result<Server> {
        let pid_file = folder.path().join(format!("{name}.pid"));
        if let Some(id) = ProcessId::read_from(&pid_file).filter(|id| id.is_alive()) {
            return Err(StackError::AlreadyRunning { what: format!("{name} of {}", folder.path().display()), pid: id.pid });
        }
        let mut tries = 1;
        loop {
            let found: Vec<u16> =
                wanted.iter().map(|&port| if port == 0 { ports::free() } else { Ok(port) }).collect::<Result<_>>()?;
            let recipe = plan(folder.path(), &found)?;
            let log_begin = length(&recipe.launch.log);
            match run(name, &recipe, &[], &pid_file) {
                Ok(running) => return Ok(Server { name, recipe, pid_file, running: Mutex::new(Some(running)), folder }),
                Err(error) if tries < PORT_TRIES && another_may_do(wanted) && is_port_clash(&error, log_begin) => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// `kafka`, `redis`, `sentinel`, `postgres` or `registry`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What clients need to reach it, written as in [`crate::Endpoints`]. The same after a restart.
    pub fn endpoint(&self) -> &str {
        &self.recipe.endpoint
    }

    /// The port in its endpoint, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        endpoints::port(self.endpoint()).unwrap_or_default()
    }

    /// The process, if there is one.
    pub fn pid(&self) -> Option<u32> {
        self.lock().as_ref().map(|running| running.child.id())
    }

    /// The process' identity, if there is one.
    pub fn process(&self) -> Option<ProcessId> {
        self.lock().as_ref().map(|running| running.id)
    }

    /// Its log, over all restarts.
    pub fn log(&self) -> &Path {
        &self.recipe.launch.log
    }

    /// The end of its log, with the latest lines above it that speak of an error.
    pub fn log_excerpt(&self) -> String {
        logs::excerpt(self.log())
    }

    /// The folder with its data and log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills it and its children at once (SIGKILL), as a crash would. Nothing happens if it is not running.
    pub fn kill(&self) {
        if let Some(running) = self.lock().take() {
            end_at_once(running, &self.pid_file);
        }
    }

    /// Ends it in good order. Nothing happens if it is not running; a paused one is resumed for it.
    ///
    /// # Errors
    /// `NotEnded` if it took longer than [`STOP_DEADLINE`]; it was killed then.
    pub fn stop(&self) -> Result<()> {
        self.stop_running(&mut self.lock())
    }

    fn stop_running(&self, slot: &mut Option<Running>) -> Result<()> {
        let Some(mut running) = slot.take() else { return Ok(()) };
        signal_all(&running, Signal::SIGCONT);
        running.id.signal(self.recipe.stop_signal);
        let ended = wait_ended(&mut running.child, STOP_DEADLINE);
        end_at_once(running, &self.pid_file);
        ended.map(drop).ok_or_else(|| StackError::not_ended(self.name, STOP_DEADLINE, self.log()))
    }

    /// Freezes it and its children (SIGSTOP): connections stay open, nobody answers.
    ///
    /// # Errors
    /// `NotRunning`.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// `NotRunning`.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Starts it again on the same ports and data, stopping it first if it runs, and waits until it answers.
    ///
    /// # Errors
    /// As for stopping and for a first start. It is not running then.
    pub fn restart(&self) -> Result<()> {
        self.restart_with(&[])
    }

    /// As [`Server::restart`], with these variables on top of its own until it is started again.
    ///
    /// # Errors
    /// As for a restart.
    pub fn restart_with(&self, env: &[(String, String)]) -> Result<()> {
        let mut slot = self.lock();
        self.stop_running(&mut slot)?;
        *slot = Some(run(self.name, &self.recipe, env, &self.pid_file)?);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match &*self.lock() {
            Some(running) if running.id.is_alive() => {
                signal_all(running, signal);
                Ok(())
            }
            _ => Err(StackError::NotRunning { name: self.name.to_owned() }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.name).field("endpoint", &self.endpoint()).field("pid", &self.pid()).finish()
    }
}

/// Launches the program and waits until it answers.
fn run(name: &'static str, recipe: &Recipe, env: &[(String, String)], pid_file: &Path) -> Result<Running> {
    let mut launch = recipe.launch.clone();
    launch.env.extend_from_slice(env);
    let log = &launch.log;
    let log_begin = length(log);
    let begin = Instant::now();
    let mut child = launch.spawn()?;
    let pid = child.id();
    let not_ready = |reason: String| StackError::not_ready(name, reason, log);
    let Some(id) = ProcessId::of(pid) else { return Err(not_ready("its process is gone".into())) };
    if let Err(error) = id.write_to(pid_file) {
        end_at_once(Running { child, id }, pid_file);
        return Err(StackError::system(format!("write {}", pid_file.display()))(error));
    }
    loop {
        if let Some(status) = try_wait(&mut child) {
            end_at_once(Running { child, id }, pid_file);
            return Err(not_ready(format!("it ended with {status}")));
        }
        match (recipe.probe)(&Started { pid, log, log_begin }) {
            Ok(()) => return Ok(Running { child, id }),
            Err(last) if begin.elapsed() > START_DEADLINE => {
                end_at_once(Running { child, id }, pid_file);
                return Err(not_ready(format!("no good answer within {START_DEADLINE:?}: {last}")));
            }
            Err(_) => thread::sleep(POLL),
        }
    }
}

/// Whether some port is ours to choose, and no prescribed one is taken.
fn another_may_do(wanted: &[u16]) -> bool {
    wanted.contains(&0) && wanted.iter().all(|&port| port == 0 || ports::is_free(port))
}

fn is_port_clash(error: &StackError, log_begin: u64) -> bool {
    let StackError::NotReady { log, .. } = error else { return false };
    let text = logs::read_from(log, log_begin).unwrap_or_default().to_lowercase();
    PORT_TAKEN.iter().any(|words| text.contains(words))
}

fn length(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |file| file.len())
}

pub(crate) fn try_wait(child: &mut Child) -> Option<ExitStatus> {
    child.try_wait().ok().flatten()
}

fn wait_ended(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        let ended = try_wait(child);
        if ended.is_some() || begin.elapsed() >= deadline {
            return ended;
        }
        thread::sleep(POLL);
    }
}

/// Signals a server first and then its children: a Postgres that is stopped forks no further one meanwhile.
fn signal_all(running: &Running, signal: Signal) {
    running.id.signal(signal);
    for child in running.id.children() {
        child.signal(signal);
    }
}

/// Kills what is left of a server and waits until it is gone, so that its data and port are free.
/// Postgres' children would notice their parent's death, but only when they next look.
fn end_at_once(mut running: Running, pid_file: &Path) {
    running.id.signal(Signal::SIGSTOP);
    let children = running.id.children();
    // Not reaped yet, so the pid is still its own, even if it has ended.
    let _ = running.child.kill();
    let _ = running.child.wait();
    for child in &children {
        child.signal(Signal::SIGKILL);
    }
    for child in &children {
        child.wait_gone(KILL_DEADLINE);
    }
    let _ = fs::remove_file(pid_file);
}
