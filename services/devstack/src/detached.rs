//! A stack that outlives the command that started it: `up`, `down` and `status`.
//!
//! The servers die with their parent, so a process of its own, the keeper, holds them: `up` starts a program (the
//! running one once more) as `PROGRAM keep --dir DIR`, whose hidden verb calls [`keeper_main`]. Keeper and commands talk through files
//! in the folder: `options.json` (what `up` asks for), `stack.json` (what came of it; replaced by a rename, so never half
//! written) and `keeper.log`. The keeper holds a lock on `keeper.lock`, so a folder never has two.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    Endpoints, ProcessId, Result, START_DEADLINE, STOP_DEADLINE, Stack, StackError, StackOptions, ask, endpoints,
    folder::{self, Folder},
    ports, registry, side_by_side,
};

const OPTIONS: &str = "options.json";
const STATE: &str = "stack.json";
const LOCK: &str = "keeper.lock";
const LOG: &str = "keeper.log";
/// Beyond the servers' own deadlines, for the keeper's work around them.
const MARGIN: Duration = Duration::from_secs(10);
/// How often the keeper's file is looked at.
const POLL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    keeper: ProcessId,
    outcome: Outcome,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Ready { endpoints: Endpoints, servers: Vec<ServerRecord> },
    Failed { error: String },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ServerRecord {
    name: String,
    endpoint: String,
    process: ProcessId,
}

/// One server of a detached stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerStatus {
    /// `kafka`, `redis`, `postgres` or `registry`.
    pub name: String,
    /// As in [`Endpoints`].
    pub endpoint: String,
    pub pid: i32,
    pub state: ServerState,
    pub log: PathBuf,
}

/// Whether a server of a detached stack serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It has just answered.
    Answering,
    /// Its process is there, but gives no good answer.
    Silent,
    /// Its process is gone.
    Ended,
}

/// Starts a stack that stays when this process ends, and waits until its servers answer. Data that an earlier stack left
/// in `dir` is used again, and so are its ports where `options` names none and nobody took them meanwhile.
/// `program`: the one whose `keep` keeps it, usually the running one.
///
/// A complete stack that already runs in `dir` is left as it is, whatever `options` says; one of whose servers ended is
/// stopped and started again. `options.dir` is not used.
///
/// # Errors
/// What kept the servers from answering, with the ends of their logs. Nothing is left running then.
pub fn up(program: &Path, dir: &Path, options: StackOptions) -> Result<Endpoints> {
    let folder = Folder::open(Some(dir))?;
    let dir = folder.path();
    let servers = status(dir)?;
    if let Some(Record { keeper, outcome: Outcome::Ready { endpoints, .. } }) = record(dir)
        && keeper.is_alive()
    {
        if servers.iter().all(|server| server.state == ServerState::Answering) {
            return Ok(endpoints);
        }
        down(dir)?;
    }
    let options = StackOptions { dir: Some(dir.to_path_buf()), ports: earlier_ports(dir, &options), ..options };
    write_json(&dir.join(OPTIONS), &options)?;
    remove(&dir.join(STATE))?;
    let keeper = spawn_keeper(program, dir)?;
    let end = Instant::now() + START_DEADLINE + MARGIN;
    loop {
        match record(dir).map(|record| record.outcome) {
            Some(Outcome::Ready { endpoints, .. }) => return Ok(endpoints),
            Some(Outcome::Failed { error }) => return Err(StackError::Keeper(error)),
            None => {}
        }
        let reason = if !keeper.is_alive() {
            "the keeper ended"
        } else if Instant::now() >= end {
            keeper.signal(Signal::SIGKILL);
            "the keeper reported nothing in time"
        } else {
            thread::sleep(POLL);
            continue;
        };
        return Err(StackError::not_ready("the stack", reason.to_owned(), &dir.join(LOG)));
    }
}

/// Stops the stack of `dir` in good order; its data stays. Says whether there was one to stop.
///
/// # Errors
/// `NotEnded` if the keeper had to be killed, which ends the servers at once.
pub fn down(dir: &Path) -> Result<bool> {
    let Some(found) = record(dir) else { return Ok(false) };
    let was_alive = found.keeper.signal(Signal::SIGTERM);
    let deadline = STOP_DEADLINE + MARGIN;
    if !found.keeper.wait_gone(deadline) {
        found.keeper.signal(Signal::SIGKILL);
        return Err(StackError::not_ended("the keeper", deadline, &dir.join(LOG)));
    }
    Ok(was_alive)
}

/// What the servers of `dir`'s stack do now; empty if none was ever up.
///
/// # Errors
/// When the folder cannot be read.
pub fn status(dir: &Path) -> Result<Vec<ServerStatus>> {
    let Some(Record { outcome: Outcome::Ready { servers, .. }, .. }) = record(dir) else { return Ok(Vec::new()) };
    let dir = dir.canonicalize().map_err(StackError::system(format!("resolve {}", dir.display())))?;
    let status = |server: ServerRecord| ServerStatus {
        state: state(&server),
        pid: server.process.pid,
        log: dir.join(&server.name).join(format!("{}.log", server.name)),
        name: server.name,
        endpoint: server.endpoint,
    };
    Ok(side_by_side(servers.into_iter().map(|server| || status(server))))
}

/// The endpoints of the stack that runs in `dir`; `None` if its keeper is not running.
pub fn endpoints(dir: &Path) -> Option<Endpoints> {
    match record(dir)? {
        Record { keeper, outcome: Outcome::Ready { endpoints, .. } } if keeper.is_alive() => Some(endpoints),
        _ => None,
    }
}

/// The keeper's whole life: starts the stack that `options.json` in `dir` asks for, reports in `stack.json`, and stops
/// the stack on SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// What is also in `stack.json`, for the exit code.
pub fn keeper_main(dir: &Path) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(StackError::system("listen to signals"))?;
    let keeper = ProcessId::own().ok_or_else(|| StackError::Keeper("/proc does not show this process".to_owned()))?;
    let _lock = lock(dir)?;
    let started = read_json::<StackOptions>(&dir.join(OPTIONS)).and_then(Stack::start);
    let stack = match started {
        Ok(stack) => stack,
        Err(error) => {
            write_json(&dir.join(STATE), &Record { keeper, outcome: Outcome::Failed { error: error.to_string() } })?;
            return Err(error);
        }
    };
    let servers = stack.servers().iter().filter_map(|server| {
        Some(ServerRecord { name: server.name().to_owned(), endpoint: server.endpoint().to_owned(), process: server.process()? })
    });
    let outcome = Outcome::Ready { endpoints: stack.endpoints().clone(), servers: servers.collect() };
    write_json(&dir.join(STATE), &Record { keeper, outcome })?;
    signals.forever().next();
    stack.stop()
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let file = File::create(&path).map_err(StackError::system(format!("open {}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StackError::Keeper(format!("{} has another keeper", dir.display()))),
        Err(TryLockError::Error(error)) => Err(StackError::system(format!("lock {}", path.display()))(error)),
    }
}

/// Starts the keeper in a session of its own, where neither Ctrl-C nor the end of the terminal reaches it.
fn spawn_keeper(program: &Path, dir: &Path) -> Result<ProcessId> {
    let log = File::create(dir.join(LOG)).map_err(StackError::system(format!("open the log {}", dir.join(LOG).display())))?;
    let errors = log.try_clone().map_err(StackError::system("duplicate a log's handle"))?;
    let mut child = Command::new("setsid")
        .arg(program)
        .args(["keep", "--dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(StackError::system(format!("start {} keep", program.display())))?;
    let id = ProcessId::of(child.id());
    // Reaps it, should it end before this process does.
    thread::spawn(move || child.wait());
    id.ok_or_else(|| StackError::Keeper("the keeper ended at once".to_owned()))
}

fn earlier_ports(dir: &Path, options: &StackOptions) -> crate::Ports {
    let mut wanted = options.ports;
    if let Some(Record { outcome: Outcome::Ready { endpoints, .. }, .. }) = record(dir) {
        let reuse = |port: &mut u16, endpoint: &str| {
            if *port == 0 {
                *port = endpoints::port(endpoint).filter(|&earlier| ports::is_free(earlier)).unwrap_or(0);
            }
        };
        reuse(&mut wanted.kafka, &endpoints.kafka);
        reuse(&mut wanted.redis, &endpoints.redis);
        reuse(&mut wanted.postgres, &endpoints.postgres);
        reuse(&mut wanted.registry, &endpoints.registry);
    }
    wanted
}

fn state(server: &ServerRecord) -> ServerState {
    if !server.process.is_alive() {
        return ServerState::Ended;
    }
    let Some(port) = endpoints::port(&server.endpoint) else { return ServerState::Silent };
    let answers = match server.name.as_str() {
        "kafka" => ask::kafka_cluster(port).is_ok_and(|cluster| !cluster.brokers.is_empty()),
        "redis" => ask::redis_pid(port, None).is_ok_and(|pid| i64::from(pid) == i64::from(server.process.pid)),
        "postgres" => crate::postgres::query(&server.endpoint, "select 1").is_ok(),
        _ => registry::subjects(port).is_ok(),
    };
    if answers { ServerState::Answering } else { ServerState::Silent }
}

fn record(dir: &Path) -> Option<Record> {
    read_json(&dir.join(STATE)).ok()
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).map_err(StackError::system(format!("read {}", path.display())))?;
    serde_json::from_slice(&bytes).map_err(|error| StackError::system(format!("read {}", path.display()))(error.into()))
}

/// Whole or not at all: a reader never sees half of it.
fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(value).map_err(|error| StackError::system("write JSON")(error.into()))?;
    let new = path.with_extension("new");
    folder::write(&new, bytes)?;
    fs::rename(&new, path).map_err(StackError::system(format!("write {}", path.display())))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StackError::system(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}
