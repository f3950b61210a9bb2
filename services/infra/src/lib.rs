//! Adapters to Kafka, Redis and Postgres, and what every service needs: configuration, telemetry, shutdown.
