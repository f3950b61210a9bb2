//! What every call of a run was answered.
