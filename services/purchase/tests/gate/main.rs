//! The purchase service in the test's process on real servers: each answer of its calls, bad input, many buyers at once, faults, the end.

mod answers;
mod faults;
mod input;
mod parallel;
mod reading;
mod shop;
mod starting;
