//! `devstack exec -- CMD ...`: runs a command with real servers around it, and nothing left behind.
//!
//! The command finds the servers in the environment variables of [`Endpoints::env`]. Postgres does not wait for the
//! disk. If the command fails, the servers' logs are kept and their ends printed.

use std::{
    ffi::OsString,
    io::{IsTerminal, stdin},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, ExitCode, ExitStatus},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI32, Ordering},
    },
    thread,
};

use clap::Parser;
use devstack::{Endpoints, ProcessId, Stack, StackOptions, detached};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

/// As `timeout` and `env` use it: we failed, not the command.
const NO_SERVERS: u8 = 125;

/// Runs a command with a real Kafka, Redis, Postgres and schema registry around it
#[derive(Parser)]
enum Call {
    /// Start the servers, run the command, stop the servers
    #[command(after_help = "\
The command finds the servers in DOORBUSTER_KAFKA, DOORBUSTER_REDIS, DOORBUSTER_POSTGRES and DOORBUSTER_REGISTRY.
Exit code: the command's; 128 + N if signal N ended it, or us; 125 if the servers did not start; 127 if there is no such
command; 2 for a wrong call.")]
    Exec {
        /// Keep the servers' data and logs there (default: a temporary folder)
        #[arg(long)]
        dir: Option<PathBuf>,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// What [`detached::up`] starts
    #[command(hide = true)]
    Keep {
        #[arg(long)]
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    match Call::parse() {
        Call::Exec { dir, command } => exec(dir, &command),
        Call::Keep { dir } => match detached::keeper_main(&dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed("keep the servers", &error),
        },
    }
}

fn exec(dir: Option<PathBuf>, command: &[OsString]) -> ExitCode {
    let interrupt = match Interrupt::listen() {
        Ok(interrupt) => interrupt,
        Err(error) => return failed("listen to signals", &error),
    };
    let stack = match Stack::start(StackOptions { dir, postgres_fsync: false, ..StackOptions::default() }) {
        Ok(stack) => stack,
        Err(error) => return failed("start the servers", &error),
    };
    let code = match interrupt.run(command, stack.endpoints()) {
        Ok(None) => interrupt.code(),
        Ok(Some(status)) => interrupt.code().max(code_of(status)),
        Err(error) => return failed("start the command", &error),
    };
    if code != 0 {
        keep_logs(&stack);
    }
    if let Err(error) = stack.stop() {
        eprintln!("devstack: {error}");
    }
    ExitCode::from(code)
}

fn failed(what: &str, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("devstack: cannot {what}: {error}");
    ExitCode::from(NO_SERVERS)
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn keep_logs(stack: &Stack) {
    for server in stack.servers() {
        eprintln!("--- the end of {}'s log\n{}", server.name(), server.log_excerpt());
    }
    match stack.keep_logs() {
        Ok(folder) => eprintln!("--- the servers' logs are in {}", folder.display()),
        Err(error) => eprintln!("devstack: {error}"),
    }
}

/// Signals from outside: the first one ends the command, and so the run, in good order; the second one ends us at once,
/// and the kernel then ends our children.
#[derive(Clone)]
struct Interrupt {
    signal: Arc<AtomicI32>,
    command: Arc<Mutex<Option<Running>>>,
}

/// The command while it runs.
#[derive(Clone, Copy)]
struct Running {
    id: ProcessId,
    /// It leads a process group, so that its own children can be reached, too.
    leads: bool,
}

impl Interrupt {
    fn listen() -> std::io::Result<Interrupt> {
        let interrupt = Interrupt { signal: Arc::default(), command: Arc::default() };
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let heard = interrupt.clone();
        thread::spawn(move || {
            for signal in signals.forever() {
                if heard.signal.swap(signal, Ordering::SeqCst) != 0 {
                    std::process::exit(128 + signal);
                }
                if let Some(running) = *heard.command() {
                    running.signal(signal);
                }
            }
        });
        Ok(interrupt)
    }

    fn command(&self) -> MutexGuard<'_, Option<Running>> {
        self.command.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// 128 and the signal that came; 0 if none did.
    fn code(&self) -> u8 {
        match self.signal.load(Ordering::SeqCst) {
            0 => 0,
            signal => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }

    /// Runs the command to its end. `None`: a signal came before it was started.
    fn run(&self, command: &[OsString], endpoints: &Endpoints) -> std::io::Result<Option<ExitStatus>> {
        let mut child = {
            // Held over the start: a signal finds either no command and the flag, or the command.
            let mut slot = self.command();
            if self.signal.load(Ordering::SeqCst) != 0 {
                return Ok(None);
            }
            let leads = !stdin().is_terminal();
            let child = start(command, endpoints, leads)?;
            *slot = ProcessId::of(child.id()).map(|id| Running { id, leads });
            child
        };
        let status = child.wait();
        *self.command() = None;
        status.map(Some)
    }
}

/// It dies with us: this is called on the main thread, whose end is ours. At a terminal it stays in our process group,
/// so that it can read from there and Ctrl-C reaches it.
fn start(command: &[OsString], endpoints: &Endpoints, leads: bool) -> std::io::Result<Child> {
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL", "--"]).args(command).envs(endpoints.env());
    if leads {
        bound.process_group(0);
    }
    bound.spawn()
}

impl Running {
    fn signal(self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        if !self.leads {
            self.id.signal(signal);
        } else if self.id.is_alive() {
            // Gone a moment later is as good as signalled.
            let _ = killpg(Pid::from_raw(self.id.pid), signal);
        }
    }
}
