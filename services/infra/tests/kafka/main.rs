//! The Kafka side of `infra` on a real broker.

mod reader;
mod support;
mod topics;
