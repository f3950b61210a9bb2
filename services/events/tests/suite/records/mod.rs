//! Records for the tests: one sample of each kind with fixed values, and strategies for arbitrary ones.

mod any;
mod history;
mod samples;

pub(crate) use any::{event, request};
pub(crate) use history::{history, line};
pub(crate) use samples::{PARTITION, events, requests};
