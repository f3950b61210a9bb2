//! Adapters to Kafka, Redis and Postgres, and what every service needs: configuration, telemetry, shutdown.

pub mod config;
pub mod crash;
pub mod kafka;
pub mod postgres;
pub mod redis;
pub mod shutdown;
pub mod start;
pub mod telemetry;
pub mod watchdog;
