//! Worlds, checkers and faults for tests.
