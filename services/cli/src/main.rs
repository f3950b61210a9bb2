//! The command line of Doorbuster.
fn main() {}
