//! The events that answer some requests, waited for.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use domain::Event;
use events::Codec;
use infra::{config::Connections, kafka::PartitionReader};
use tokio::runtime::Handle;

use crate::{
    ReplayError,
    walk::{blocking, understand},
};

/// Pause between two looks at the logs' ends.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is appended to some partitions of `order-events` from one moment on.
pub struct Answers {
    /// Each with the offset from which on it was not read yet.
    readers: Vec<(PartitionReader, i64)>,
    codec: Codec,
}

impl Answers {
    /// Begins where the partitions end now: before the requests are sent, so that no answer can be missed.
    pub async fn watch(connections: &Connections, codec: &Codec, partitions: BTreeSet<i32>) -> Result<Self, ReplayError> {
        let (connections, codec) = (connections.clone(), codec.clone());
        let open = move |partition| {
            let reader = PartitionReader::open(&connections, &connections.topics.events, partition)?;
            let end = reader.ends()?.stable;
            Ok((reader, end))
        };
        let readers = blocking(move || partitions.into_iter().map(open).collect::<Result<_, ReplayError>>()).await?;
        Ok(Self { readers, codec })
    }

    /// The first answers with these keys that came within `patience`; the events of newer versions are somebody else's answers.
    pub async fn wait<K: Ord + Send + 'static>(
        mut self,
        mut wanted: BTreeSet<K>,
        key: impl Fn(&Event) -> K + Send + 'static,
        patience: Duration,
    ) -> Result<BTreeMap<K, Event>, ReplayError> {
        let (deadline, runtime) = (Instant::now() + patience, Handle::current());
        blocking(move || {
            let mut found = BTreeMap::new();
            loop {
                for (reader, from) in &mut self.readers {
                    let end = reader.ends()?.stable;
                    reader.read(*from, end, &mut |record| {
                        let decode = || self.codec.decode_event(&record.payload, record.partition);
                        if let Ok(Ok(event)) = understand(&self.codec, &runtime, decode)
                            && let Some(key) = wanted.take(&key(&event))
                        {
                            found.insert(key, event);
                        }
                        ControlFlow::Continue(())
                    })?;
                    *from = end;
                }
                if wanted.is_empty() || Instant::now() >= deadline {
                    return Ok(found);
                }
                thread::sleep(LOOK_EVERY);
            }
        })
        .await
    }
}
