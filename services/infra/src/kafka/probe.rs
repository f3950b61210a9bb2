//! Asks the brokers for offsets, outside any group: where the topics end, and which offset an instant has.

use std::sync::Arc;

use domain::Timestamp;
use events::Topics;
use rdkafka::{consumer::BaseConsumer, error::KafkaError};

use super::{ClientLog, LogError, client_config, reader};
use crate::config::Connections;

/// A client that reads no records. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Probe {
    client: Arc<BaseConsumer<ClientLog>>,
    topics: Topics,
}

impl Probe {
    pub fn new(connections: &Connections) -> Result<Self, KafkaError> {
        let client = client_config(connections).set("isolation.level", "read_committed").create_with_context(ClientLog)?;
        Ok(Self { client: Arc::new(client), topics: connections.topics.clone() })
    }

    /// First offset still there, and offset of the next request. (Requests are not transactional, so that all isolation levels see the same
    /// end.) Blocks.
    pub fn requests(&self, partition: i32) -> Result<(i64, i64), LogError> {
        reader::watermarks(&self.client, &self.topics.requests, partition)
    }

    /// The last stable offset of a partition's events: everything below is committed or aborted for good. Blocks.
    pub fn stable_events(&self, partition: i32) -> Result<i64, LogError> {
        Ok(self.events(partition)?.1)
    }

    /// The first offset of a partition's events that is still there, and the last stable one. Blocks.
    pub fn events(&self, partition: i32) -> Result<(i64, i64), LogError> {
        reader::watermarks(&self.client, &self.topics.events, partition)
    }

    /// Offset of the first request that the broker's clock put after `at`; where there is none yet, the log's end as read after asking. Blocks.
    pub fn first_request_after(&self, partition: i32, at: Timestamp) -> Result<i64, LogError> {
        match reader::offset_at(&self.client, &self.topics.requests, partition, at.plus(1))? {
            Some(offset) => Ok(offset),
            None => Ok(self.requests(partition)?.1),
        }
    }

    /// Asks on a thread that may block.
    pub async fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        let probe = self.clone();
        super::blocking(move || call(&probe)).await
    }
}
