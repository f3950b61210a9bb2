//! Open-loop buyers: they arrive by a schedule made beforehand, whether or not the shop keeps up.
//!
//! Latency counts from the instant a buyer *meant* to click, so a shop that stalls cannot hide it by slowing its own callers down
//! (coordinated omission). Every answer is recorded, by kind and by buyer, so that a caller can check afterwards that each answer
//! was kept.

mod answer;
mod cost;
mod report;
mod run;
mod schedule;

pub use answer::Answer;
pub use cost::Cost;
pub use report::{Progress, Quantiles, Report, Visit};
pub use run::{Buyer, LoadError, Plan, run};
pub use schedule::Shape;
