//! The runner against what a real log looks like, and the example against kill -9.

mod killed;
mod reading;
