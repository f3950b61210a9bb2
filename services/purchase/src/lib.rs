//! The HTTP gate: reserves in Redis, emits OrderRequested.
