//! Buyers of a chaos run, with a seed.
