//! Reads the log again: folds it, compares it with Redis and Postgres, says how far everybody came. Reads only: no producer of ours
//! is among this crate's dependencies, so nothing here can publish, settle or decide.

mod audit;
mod error;
mod lag;
mod walk;

pub use audit::{Audit, AuditOptions, Difference, Kind, Verdict, VoucherCut, audit};
pub use error::ReplayError;
pub use lag::{Lag, PartitionLag, lag};
