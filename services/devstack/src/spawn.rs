//! Starting child processes that cannot outlive this process.
//!
//! Every child runs under `setpriv --pdeathsig KILL` (util-linux): the kernel kills it when its parent ends, however the
//! parent ends. "Parent" there means the *thread* that forked, not the process. A test thread that starts a server and
//! returns would take the server with it, so all children are started by one thread that lives as long as the process.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{OnceLock, mpsc},
    thread,
};

use crate::{Result, StackError};

/// A program to start: what, with which arguments and environment, and where its output goes.
#[derive(Clone, Default)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Set on top of this process' environment.
    pub(crate) env: Vec<(String, String)>,
    /// Working folder; `None`: that of this process.
    pub(crate) cwd: Option<PathBuf>,
    /// Output and errors are appended to this file.
    pub(crate) log: PathBuf,
    /// Options of `setpriv` that give the child another user.
    pub(crate) account: Vec<&'static str>,
}

impl Launch {
    /// With the environment, the folder and the user of this process.
    pub(crate) fn new(program: PathBuf, args: Vec<String>, log: PathBuf) -> Self {
        Self { program, args, log, ..Self::default() }
    }

    /// Starts the program in a process group of its own, so that Ctrl-C at a terminal reaches its owner only, who then
    /// ends it in good order.
    pub(crate) fn spawn(&self) -> Result<Child> {
        let log = open_log(&self.log)?;
        let errors = log.try_clone().map_err(StackError::system("duplicate a log's handle"))?;
        let mut command = bound(&self.program, &self.account);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        spawn(command)
    }
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(StackError::system(format!("open the log {}", path.display())))
}

/// A command for `program` that dies with this process. Must be started with [`spawn`].
pub(crate) fn bound(program: &Path, account: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).args(account).arg("--").arg(program);
    command
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a command on the thread that outlives all others.
pub(crate) fn spawn(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    // Whoever asked waits for the answer.
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        orders
    });
    let program = describe(&command);
    let (answer, inbox) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts programs is gone");
    spawner
        .send((command, answer))
        .map_err(|_| gone())
        .and_then(|()| inbox.recv().map_err(|_| gone()))
        .and_then(|started| started)
        .map_err(StackError::system(format!("start {program}")))
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = command.get_args().skip_while(|word| *word != "--").skip(1).collect();
    words.first().unwrap_or(&command.get_program()).to_string_lossy().into_owned()
}

/// Runs a command to its end; anything but success is an error with what it printed.
pub(crate) fn complete(mut command: Command, name: &str) -> Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn(command)?.wait_with_output().map_err(StackError::system(format!("run {name}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(StackError::system(format!("run {name}"))(io::Error::other(format!("{}: {said}", output.status))))
}
