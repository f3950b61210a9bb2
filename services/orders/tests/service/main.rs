//! The orders service in this process, on real servers.

mod bad_records;
mod faults;
mod frozen;
mod good_path;
mod kafka_faults;
mod owners;
mod recovery;
mod running;
