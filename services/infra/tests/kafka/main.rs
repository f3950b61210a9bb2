//! The Kafka side of `infra` on a real broker.

mod cluster;
mod reader;
mod support;
mod topics;
