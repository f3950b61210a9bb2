//! How far everybody is behind: the lanes behind `order-requests`, compensation behind `order-events`.

use std::{collections::HashMap, ops::ControlFlow, time::SystemTime};

use domain::Timestamp;
use events::Codec;
use infra::{
    config::Connections,
    kafka::{CALL_TIMEOUT, LogError, client_config, partition_count},
};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
};
use serde::Serialize;

use crate::{
    ReplayError,
    compare::positions,
    walk::{Log, blocking, side_by_side},
};

/// What one partition still has to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartitionLag {
    pub partition: i32,
    /// Requests that no lane has decided in Postgres.
    pub undecided: i64,
    /// Requests decided there whose events are not in the log yet.
    pub unpublished: i64,
    /// Offsets of `order-events`, up to its last event, that compensation has not committed. Markers between events count, so this can be
    /// above the number of events, but at rest it is 0.
    pub unsettled: i64,
    /// Age of the oldest undecided request in seconds, between the broker's clock and this machine's.
    pub oldest_seconds: Option<f64>,
}

/// All partitions, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lag {
    pub partitions: Vec<PartitionLag>,
}

impl Lag {
    /// Whether everything appended is decided, published and settled.
    pub fn is_none(&self) -> bool {
        self.partitions.iter().all(|p| p.undecided == 0 && p.unpublished == 0 && p.unsettled == 0)
    }
}

/// Looks at every partition of the topics.
pub async fn lag(connections: &Connections, codec: &Codec) -> Result<Lag, ReplayError> {
    let client = infra::postgres::connect(connections).await?;
    let positions = positions(&client, &connections.topics.requests).await?;
    let (log, asked) = (Log::of(connections, codec), connections.clone());
    let (count, settled) = blocking(move || {
        let count = partition_count(&asked, &asked.topics.requests)?;
        Ok((count, settled(&asked, count)?))
    })
    .await?;
    let one = move |partition| {
        let (position, settled) = (positions.get(&partition).copied(), settled.get(&partition).copied());
        of_partition(&log, partition, position, settled)
    };
    Ok(Lag { partitions: side_by_side(0..count, one).await? })
}

fn of_partition(log: &Log, partition: i32, position: Option<i64>, settled: Option<i64>) -> Result<PartitionLag, ReplayError> {
    let mut requests = log.requests(partition)?;
    let ends = requests.ends()?;
    let next = position.unwrap_or(0);
    if next > ends.high {
        let (topic, start, end) = (requests.topic, ends.start, ends.high);
        return Err(LogError::OutOfRange { topic, partition, start, end, wanted: next }.into());
    }
    let mut oldest = None;
    requests.records(next, ends.stable, |_, _, record| {
        oldest = Some(record.timestamp);
        Ok(ControlFlow::Break(()))
    })?;
    let mut events = log.events(partition)?;
    let last = events.last()?;
    let answered = match &last {
        Some((event, _)) => event.request_offset + 1,
        None => events.whole().map(|_| 0)?,
    };
    let to_settle = last.map_or(0, |(_, offset)| offset + 1 - settled.unwrap_or(0));
    Ok(PartitionLag {
        partition,
        undecided: (ends.high - next).max(0),
        unpublished: (next - answered).max(0),
        unsettled: to_settle.max(0),
        oldest_seconds: oldest.map(seconds_since),
    })
}

/// Where compensation's group stands in each partition of `order-events`.
fn settled(connections: &Connections, partitions: i32) -> Result<HashMap<i32, i64>, ReplayError> {
    let mut config = client_config(connections);
    config.set("group.id", connections.group("compensation")).set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create().map_err(LogError::from)?;
    let mut asked = TopicPartitionList::new();
    for partition in 0..partitions {
        asked.add_partition(&connections.topics.events, partition);
    }
    let answered = consumer.committed_offsets(asked, CALL_TIMEOUT).map_err(LogError::from)?;
    let offset = |offset| match offset {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    };
    Ok(answered.elements().iter().filter_map(|e| Some((e.partition(), offset(e.offset())?))).collect())
}

fn seconds_since(at: Timestamp) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis());
    i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(at.0).max(0) as f64 / 1e3
}
