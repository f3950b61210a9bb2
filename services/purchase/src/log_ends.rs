//! Where `order-requests` ended a moment ago: a thread asks Kafka a few times a second, so that no reader of an order waits for Kafka.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use infra::{
    config::Connections,
    kafka::{LogError, Probe, partition_count},
    shutdown::CancellationToken,
};
use parking_lot::Mutex;

/// Pause between two rounds: as old as an end usually is.
const REFRESH: Duration = Duration::from_millis(250);

/// Rounds between two looks at the number of partitions, which seldom grows: 30 s.
const ROUNDS_A_COUNT: u32 = 120;

/// An end older than this says too little about now.
const MAX_AGE: Duration = Duration::from_secs(2);

/// The ends of all partitions, all read after one instant.
#[derive(Debug, Default)]
pub(crate) struct LogEnds {
    since: Option<Instant>,
    ends: Vec<i64>,
}

impl LogEnds {
    #[cfg(test)]
    pub(crate) fn of(ends: Vec<i64>) -> Self {
        Self { since: Some(Instant::now()), ends }
    }

    /// The offset of the partition's next record; `None` where it is not known, or was read too long ago.
    pub(crate) fn end(&self, partition: i32) -> Option<i64> {
        self.since.filter(|since| since.elapsed() <= MAX_AGE)?;
        self.ends.get(usize::try_from(partition).ok()?).copied()
    }
}

/// Keeps the ends current until it is stopped.
#[derive(Clone, Default)]
pub(crate) struct LogEndsReader {
    latest: Arc<Mutex<Arc<LogEnds>>>,
}

impl LogEndsReader {
    /// Starts the thread. It ends soon after `stop`.
    pub(crate) fn start(connections: &Connections, stop: CancellationToken) -> anyhow::Result<Self> {
        let probe = Probe::new(connections)?;
        let (connections, topic) = (connections.clone(), connections.topics.requests.clone());
        let reader = Self::default();
        let writer = reader.clone();
        thread::Builder::new().name("log-ends".to_owned()).spawn(move || {
            let mut partitions = 0;
            for round in 0_u32.. {
                if stop.is_cancelled() {
                    return;
                }
                let mut read = || -> Result<LogEnds, LogError> {
                    if round.is_multiple_of(ROUNDS_A_COUNT) || partitions == 0 {
                        partitions = partition_count(&connections, &topic)?;
                    }
                    ends(&probe, partitions)
                };
                match read() {
                    Ok(ends) => *writer.latest.lock() = Arc::new(ends),
                    Err(error) => tracing::debug!(%error, "cannot read where the log ends"),
                }
                thread::sleep(REFRESH);
            }
        })?;
        Ok(reader)
    }

    pub(crate) fn latest(&self) -> Arc<LogEnds> {
        Arc::clone(&self.latest.lock())
    }
}

fn ends(probe: &Probe, partitions: i32) -> Result<LogEnds, LogError> {
    let since = Some(Instant::now());
    let ends = (0..partitions).map(|p| Ok(probe.requests(p)?.1));
    Ok(LogEnds { since, ends: ends.collect::<Result<_, LogError>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_end_is_no_end() {
        let ends = |age: Duration| LogEnds { since: Instant::now().checked_sub(age), ends: vec![3, 4] };
        assert_eq!(
            (ends(Duration::ZERO).end(1), ends(Duration::ZERO).end(2), ends(Duration::ZERO).end(-1)),
            (Some(4), None, None)
        );
        assert_eq!(ends(MAX_AGE).end(1), None);
        assert_eq!(LogEnds::default().end(0), None);
    }
}
