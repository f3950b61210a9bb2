//! The purchase service in the test's process on real servers: each answer of its calls, bad input, hostile and slow clients, many buyers at
//! once, faults, the end.

mod answers;
mod faults;
mod hostile;
mod input;
mod keys;
mod lost_answers;
mod parallel;
mod reading;
mod shop;
mod slow;
mod starting;
