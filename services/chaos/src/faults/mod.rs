//! The faults, one file a family.
