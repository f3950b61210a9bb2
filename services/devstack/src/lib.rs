//! Real servers for tests, demos and development: Kafka, Redis, Postgres and a schema registry as child processes, each
//! in a folder of its own on a free port, ready when it has answered. No containers; `make setup` brings the programs.
//!
//! - [`Stack`] runs all four; [`kafka`], [`redis`], [`postgres`] and [`registry`] run one alone. A [`Server`] can be
//!   killed, paused and started again on the same port and data.
//! - A [`Disk`] is a folder for a server that can be full.
//! - [`process`] runs the programs under test and starts them again when they fail.
//! - [`detached`] is a stack that outlives the command that started it.
//!
//! **Nothing outlives its owner**: a child is killed by the kernel when this process ends, however it ends.
//! **Nothing else is touched**: a signal goes only to a process whose pid *and* start time are those of one we started.

pub mod detached;
pub mod kafka;
pub mod postgres;
pub mod process;
pub mod redis;
pub mod registry;

mod ask;
mod disk;
mod endpoints;
mod error;
mod folder;
mod logs;
mod native;
mod pid;
mod ports;
mod secured;
mod server;
mod spawn;
mod stack;
mod threads;

pub use ask::http_get;
pub use disk::Disk;
pub use endpoints::Endpoints;
pub use error::{Result, StackError};
pub use native::kept_logs;
pub use pid::ProcessId;
pub use ports::free as free_port;
pub use secured::Secured;
pub use server::{START_DEADLINE, STOP_DEADLINE, Server};
pub use stack::{Ports, Stack, StackOptions};
pub use threads::{joined, side_by_side};
