//! Fold, compare, verify: reads only.
