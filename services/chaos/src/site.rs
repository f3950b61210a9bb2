//! The servers of a run, each behind a proxy.
