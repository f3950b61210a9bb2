//! The shop keeper of a chaos run: publishes vouchers and changes them.
