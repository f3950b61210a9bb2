//! The orders service in this process, on real servers.

mod bad_records;
mod good_path;
mod owners;
mod recovery;
mod running;
