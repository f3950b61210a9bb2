//! Whether the invariants hold after a run.
