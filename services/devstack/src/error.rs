//! What can go wrong with a stack: one enum for the whole crate.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::logs;

/// Why a server, a program or a whole stack does not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// Something that the set-up script brings is not on this machine.
    #[error("{what} is missing: run `make setup`")]
    NotInstalled { what: String },

    /// A system call failed; `what` says which one and on what.
    #[error("cannot {what}: {cause}")]
    System { what: String, cause: io::Error },

    /// A program ended, or never answered, while it was waited for. `tail` is the end of its log.
    #[error("{name} is not ready: {reason}\n--- the end of {}\n{tail}", log.display())]
    NotReady { name: String, reason: String, log: PathBuf, tail: String },

    /// A program that was asked to end was still there after the time given to it, and was killed.
    #[error("{name} did not end within {deadline:?} and was killed\n--- the end of {}\n{tail}", log.display())]
    NotEnded { name: String, deadline: Duration, log: PathBuf, tail: String },

    /// A supervised program failed at once, again and again, and is not started any more.
    #[error("{name} failed {failures} times in a row soon after its start, the last time with {status}\n--- the end of {}\n{tail}", log.display())]
    GaveUp { name: String, failures: u32, status: String, log: PathBuf, tail: String },

    /// There is no process to act on: it was stopped or killed, or it ended.
    #[error("{name} is not running")]
    NotRunning { name: String },

    /// The folder belongs to a stack that is running.
    #[error("{what} is running already (process {pid})")]
    AlreadyRunning { what: String, pid: i32 },

    /// Postgres does not run as root, and its own user cannot enter the folder it was given.
    #[error("user postgres cannot enter {}: choose a folder that everybody may pass through", folder.display())]
    FolderNotPassable { folder: PathBuf },

    /// Several servers of one stack failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<StackError>),

    /// The process that keeps a detached stack reported this.
    #[error("the stack did not start: {0}")]
    Keeper(String),
}

impl StackError {
    /// Turns a failed system call into an error that says what was tried.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> StackError {
        let what = what.into();
        move |cause| StackError::System { what, cause }
    }

    /// `NotReady`, with the end of the log.
    pub(crate) fn not_ready(name: &str, reason: String, log: &Path) -> StackError {
        StackError::NotReady { name: name.to_owned(), reason, log: log.to_owned(), tail: logs::excerpt(log) }
    }

    /// `NotEnded`, with the end of the log.
    pub(crate) fn not_ended(name: &str, deadline: Duration, log: &Path) -> StackError {
        StackError::NotEnded { name: name.to_owned(), deadline, log: log.to_owned(), tail: logs::excerpt(log) }
    }

    /// All values, or `Several` with all errors.
    pub(crate) fn all<T>(results: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(value) => values.push(value),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(values) } else { Err(StackError::Several(errors)) }
    }
}

/// Short for a result of this crate.
pub type Result<T, E = StackError> = std::result::Result<T, E>;
