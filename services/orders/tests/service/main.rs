//! The orders service in this process, on real servers.

mod bad_records;
mod faults;
mod frozen;
mod good_path;
mod growth;
mod kafka_faults;
mod owners;
mod payments;
mod recovery;
mod running;
mod sequence;
mod stable;
mod waiting;
