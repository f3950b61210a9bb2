//! What can be broken.
