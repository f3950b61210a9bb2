//! Breaks one thing or several at a time under the real services on real servers, and lets a model that knows every answer of every buyer say
//! whether the promises of `docs/ARCHITECTURE.md` held.
//!
//! - [`site`]: the servers, each behind a proxy of its own, and the [`fleet`] of services on them;
//! - [`fault`]: what can be broken, with the bound within which the system must be well again afterwards;
//! - [`buyers`] and [`keeper`]: who buys and who runs the shop meanwhile, writing what they were told into the [`ledger`];
//! - [`check`]: whether the ledger, Redis, the log and Postgres tell one story.

pub mod buyers;
pub mod check;
pub mod drive;
pub mod fault;
pub mod fleet;
pub mod keeper;
pub mod ledger;
pub mod report;
pub mod site;

mod ask;
mod faults;
