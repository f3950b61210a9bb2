//! Why the work on a partition could not go on at the moment. All of it is tried again: nothing is lost by waiting.

use infra::{kafka::LogError, postgres::DatabaseError, redis::StoreError};

use crate::settle::Halt;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Halt(#[from] Halt),
    /// The task that read the log ended without an answer.
    #[error("reading the log was cut off")]
    CutOff,
}
