//! The events that answer some requests, waited for.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use domain::Event;
use events::Codec;
use infra::config::Connections;

use crate::{
    ReplayError,
    walk::{Log, Walk, blocking, understand},
};

/// Pause between two looks at the logs' ends.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is appended to some partitions of `order-events` from one moment on: each with the offset from which on it was not read yet.
pub struct Answers(Vec<(Walk, i64)>);

impl Answers {
    /// Begins where the partitions end now: before the requests are sent, so that no answer can be missed.
    pub async fn watch(connections: &Connections, codec: &Codec, partitions: BTreeSet<i32>) -> Result<Self, ReplayError> {
        let log = Log::of(connections, codec);
        let open = move |partition| {
            let walk = log.events(partition)?;
            let end = walk.ends()?.stable;
            Ok((walk, end))
        };
        Ok(Self(blocking(move || partitions.into_iter().map(open).collect()).await?))
    }

    /// The first answers with these keys that came within `patience`; the events of newer versions are somebody else's answers.
    pub async fn wait<K: Ord + Send + 'static>(
        mut self,
        mut wanted: BTreeSet<K>,
        key: impl Fn(&Event) -> K + Send + 'static,
        patience: Duration,
    ) -> Result<BTreeMap<K, Event>, ReplayError> {
        let deadline = Instant::now() + patience;
        blocking(move || {
            let mut found = BTreeMap::new();
            loop {
                for (walk, from) in &mut self.0 {
                    let end = walk.ends()?.stable;
                    walk.records(*from, end, |log, _, record| {
                        let decode = || log.codec.decode_event(&record.payload, record.partition);
                        if let Ok(Ok(event)) = understand(&log.codec, &log.runtime, decode)
                            && let Some(key) = wanted.take(&key(&event))
                        {
                            found.insert(key, event);
                        }
                        Ok(ControlFlow::Continue(()))
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
