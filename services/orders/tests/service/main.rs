//! The orders service in this process, on real servers.

mod good_path;
mod running;
