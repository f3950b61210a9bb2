//! Starts real Kafka, Redis, Postgres and a schema registry as child processes.
