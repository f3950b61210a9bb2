//! Asks where the topics end: for recovery, for the lag, and for what is published for good. Two clients for the process, outside any group.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use events::Topics;
use infra::{
    config::Connections,
    kafka::{ClientLog, LogError, client_config, watermarks},
};
use rdkafka::{config::FromClientConfigAndContext, consumer::BaseConsumer, error::KafkaError};

use crate::Service;

pub(crate) struct Probe {
    any: BaseConsumer<ClientLog>,
    committed: BaseConsumer<ClientLog>,
    topics: Topics,
}

impl Probe {
    pub(crate) fn new(connections: &Connections) -> Result<Self, KafkaError> {
        let client = |isolation| {
            let mut config = client_config(connections);
            BaseConsumer::from_config_and_context(config.set("isolation.level", isolation), ClientLog)
        };
        let topics = connections.topics.clone();
        Ok(Self { any: client("read_uncommitted")?, committed: client("read_committed")?, topics })
    }

    /// First offset still there, and offset of the next request. Blocks.
    pub(crate) fn requests(&self, partition: i32) -> Result<(i64, i64), LogError> {
        watermarks(&self.any, &self.topics.requests, partition)
    }

    /// Below this offset every event's transaction is decided for good. Blocks.
    pub(crate) fn stable_events(&self, partition: i32) -> Result<i64, LogError> {
        Ok(watermarks(&self.committed, &self.topics.events, partition)?.1)
    }
}

/// Measures every lane's lag until the service is gone, also while a lane stands still.
pub(crate) fn measure_lag(service: &Arc<Service>) -> std::io::Result<()> {
    let service = Arc::downgrade(service);
    thread::Builder::new().name("lag".to_owned()).spawn(move || {
        let mut behind = HashMap::new();
        while let Some(pause) = measure(&service, &mut behind) {
            thread::sleep(pause);
        }
    })?;
    Ok(())
}

/// `behind`: since when a partition was seen to lag at this position without being worked on.
fn measure(service: &Weak<Service>, behind: &mut HashMap<i32, (i64, Instant)>) -> Option<Duration> {
    let service = service.upgrade()?;
    let lanes: Vec<_> = service.lanes.lock().values().cloned().collect();
    for lane in lanes {
        let Some((position, working_on)) = lane.progress() else { continue };
        let end = match service.probe.requests(lane.partition) {
            Ok((_, end)) => end,
            Err(error) => {
                tracing::debug!(%error, partition = lane.partition, "the lag is not known");
                continue;
            }
        };
        let lag = (end - position).max(0);
        let age = match working_on {
            _ if lag == 0 => Duration::ZERO,
            Some(appended_at) => since(appended_at),
            None => match behind.get(&lane.partition) {
                Some((at, since)) if *at == position => since.elapsed(),
                _ => Duration::ZERO,
            },
        };
        if age.is_zero() {
            behind.insert(lane.partition, (position, Instant::now()));
        }
        service.metrics.lag(lane.partition, lag, age);
    }
    Some(service.config.idle_check)
}

fn since(millis: i64) -> Duration {
    let then = UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or_default());
    SystemTime::now().duration_since(then).unwrap_or_default()
}
