//! Given, when, then: a small language for tests of the rules.
