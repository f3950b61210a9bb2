//! The ceilings: what each part does alone, called by the same client library as the services use, with nothing of theirs around it.

pub(crate) mod handler;
pub(crate) mod kafka;
pub(crate) mod postgres;
pub(crate) mod redis;

use anyhow::Result;
use tokio::runtime::Runtime;

/// Callers at one moment wherever the system has 64 connections.
pub(crate) const CALLERS: usize = 64;

/// What a service's `main` has.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
