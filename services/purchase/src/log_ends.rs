//! Where `order-requests` ends: a thread asks Kafka a few times a second, so that a reader of an order asks nobody, and waits for the next
//! answer only where everything hangs on it.

use std::{
    thread,
    time::{Duration, Instant},
};

use infra::{
    config::Connections,
    kafka::{LogError, Probe, partition_count},
    shutdown::CancellationToken,
};
use tokio::{sync::watch, time::timeout};

/// Pause between two rounds, and so the longest usual wait for an answer.
const REFRESH: Duration = Duration::from_millis(250);

/// Rounds between two looks at the number of partitions, which seldom grows: 30 s.
const ROUNDS_A_COUNT: u32 = 120;

/// For an answer that was asked for after the reader came.
const PATIENCE: Duration = Duration::from_secs(2);

/// The ends of all partitions, all read after one instant.
#[derive(Debug, Default)]
struct LogEnds {
    since: Option<Instant>,
    ends: Vec<i64>,
}

/// Keeps the ends current until it is stopped.
#[derive(Clone)]
pub(crate) struct LogEndsReader(watch::Receiver<LogEnds>);

impl LogEndsReader {
    /// Starts the thread. It ends soon after `stop`.
    pub(crate) fn start(connections: &Connections, stop: CancellationToken) -> anyhow::Result<Self> {
        let probe = Probe::new(connections)?;
        let (connections, topic) = (connections.clone(), connections.topics.requests.clone());
        let (latest, reader) = watch::channel(LogEnds::default());
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
                    Ok(ends) => drop(latest.send_replace(ends)),
                    Err(error) => tracing::debug!(%error, "cannot read where the log ends"),
                }
                thread::sleep(REFRESH);
            }
        })?;
        Ok(Self(reader))
    }

    /// The offset of the partition's next record, asked for at or after this instant: everything acknowledged before is below it. `None`: Kafka
    /// did not say so in time.
    pub(crate) async fn end(&self, partition: i32, after: Instant) -> Option<i64> {
        let mut latest = self.0.clone();
        let is_fresh = |ends: &LogEnds| ends.since.is_some_and(|since| since >= after);
        let ends = timeout(PATIENCE, latest.wait_for(is_fresh)).await.ok()?.ok()?;
        ends.ends.get(usize::try_from(partition).ok()?).copied()
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

    #[tokio::test]
    async fn an_end_that_was_read_before_is_no_end() {
        let before = Instant::now();
        let (latest, reader) = watch::channel(LogEnds { since: Some(before), ends: vec![3, 4] });
        let reader = LogEndsReader(reader);
        let after = before + Duration::from_millis(1);
        assert_eq!(
            (reader.end(1, before).await, reader.end(2, before).await, reader.end(-1, before).await),
            (Some(4), None, None)
        );
        let (waited, ()) = tokio::join!(reader.end(1, after), async {
            latest.send_replace(LogEnds { since: Some(after), ends: vec![3, 5] });
        });
        assert_eq!(waited, Some(5));
    }
}
