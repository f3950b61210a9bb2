//! The producers on a real broker (and on librdkafka's mock cluster, for errors that a broker gives only in a bad hour).

mod coordinator;
mod requests;
mod support;
mod transactions;
