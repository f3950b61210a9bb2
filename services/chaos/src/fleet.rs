//! The services of a run as child processes.
