//! The one place where librdkafka's C API is called: whether a message that failed may still have been persisted, and a group's generation.
#![allow(unsafe_code)]
