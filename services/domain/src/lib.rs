//! The rules of the sale, and the words they are written in.
//!
//! A **request** is something somebody asked for. [`decide`] looks at the facts and turns each request into exactly one
//! **event**; [`State::evolve`] applies an event to the state. Nothing here reads a clock, draws a random number or does I/O, so a
//! decision depends on the log and on nothing else: live decision, rebuild, audit and the checkers all call these two.

pub mod conservation;
mod decide;
mod event;
mod evolve;
mod ids;
mod order;
mod request;
mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod voucher;
mod why;

pub use decide::{ALLOWED_SKEW_MS, MAX_TOTAL, RULES_VERSION, decide};
pub use event::{Event, EventBody, RefusalReason};
pub use ids::{InvalidId, OrderId, OrderKey, RequestId, UserId, VoucherId};
pub use order::{Order, OrderStatus, RejectReason};
pub use request::{CancelledBy, LoggedRequest, Request, RequestBody, RequestKind};
pub use state::State;
pub use voucher::{Money, Terms, Timestamp, Voucher, VoucherState};
