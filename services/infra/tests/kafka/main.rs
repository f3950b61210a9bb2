//! The Kafka side of `infra` on a real broker.

mod cluster;
mod group;
mod reader;
mod support;
mod topics;
