//! What tests share: a [`World`] of their own on the real servers of `make test`, the real services in it, and waiting for conditions.
//!
//! ```no_run
//! let world = testkit::World::new();              // own topics, own database, own names; gone when dropped
//! let codec = world.codec();
//! # let _ = codec;
//! testkit::wait_until(std::time::Duration::from_secs(5), "the event", || !world.events(0).is_empty());
//! ```
//! Everything here blocks and panics on failure, which is what a test wants; all of it may be called from async tests too.

mod clocks;
mod log;
mod proxy;
mod sale;
mod services;
mod wait;
mod world;

pub use clocks::{CLOCK_VARIABLES, wrong_clock};
pub use proxy::{Mode, Proxy};
pub use sale::{buy, buy_again, buyers, get, plan, sale, token};
pub use services::{END_DEADLINE, Service, binary, doorbuster};
pub use wait::{block_on, wait_for, wait_until, wait_until_async};
pub use world::{World, WorldBuilder, order_request, voucher_request, with_database};
