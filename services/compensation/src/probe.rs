//! Asks the brokers for offsets, outside any group: where the topics end, and which offset an instant has. One client for the process.

use std::sync::Arc;

use domain::Timestamp;
use events::Topics;
use infra::{
    config::Connections,
    kafka::{ClientLog, LogError, client_config, offset_at, watermarks},
};
use rdkafka::{consumer::BaseConsumer, error::KafkaError};

/// A client that reads no records.
#[derive(Clone)]
pub(crate) struct Probe {
    client: Arc<BaseConsumer<ClientLog>>,
    topics: Topics,
}

impl Probe {
    pub(crate) fn new(connections: &Connections) -> Result<Self, KafkaError> {
        let client = client_config(connections).set("isolation.level", "read_committed").create_with_context(ClientLog)?;
        Ok(Self { client: Arc::new(client), topics: connections.topics.clone() })
    }

    /// Offset of the next request of this partition. (Requests are not transactional, so that all isolation levels see the same end.)
    pub(crate) async fn requests_end(&self, partition: i32) -> Result<i64, LogError> {
        self.ask(move |client, topics| Ok(watermarks(client, &topics.requests, partition)?.1)).await
    }

    /// The last stable offset of this partition's events: everything below is committed or aborted.
    pub(crate) async fn events_end(&self, partition: i32) -> Result<i64, LogError> {
        self.ask(move |client, topics| Ok(watermarks(client, &topics.events, partition)?.1)).await
    }

    /// Offset of the first request that the broker's clock put after `at`; where there is none yet, the log's end as read after asking.
    pub(crate) async fn first_request_after(&self, partition: i32, at: Timestamp) -> Result<i64, LogError> {
        let found = self.ask(move |client, topics| offset_at(client, &topics.requests, partition, at.plus(1))).await?;
        match found {
            Some(offset) => Ok(offset),
            None => self.requests_end(partition).await,
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&BaseConsumer<ClientLog>, &Topics) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        let Self { client, topics } = self.clone();
        let answer = tokio::task::spawn_blocking(move || call(&client, &topics)).await;
        answer.unwrap_or(Err(LogError::Kafka(KafkaError::Canceled)))
    }
}
