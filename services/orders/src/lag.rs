//! Measures how far each lane is behind.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::Service;

/// Measures every lane's lag until the service is gone, also while a lane stands still.
pub(crate) fn start(service: &Arc<Service>) -> std::io::Result<()> {
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
        // A lane that was given up meanwhile has no gauges any more, and must not get them back for good.
        let lanes = service.lanes.lock();
        if lanes.get(&lane.partition).is_some_and(|present| Arc::ptr_eq(present, &lane)) {
            service.metrics.lag(lane.partition, lag, age);
        }
    }
    Some(service.config.idle_check)
}

fn since(millis: i64) -> Duration {
    let then = UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or_default());
    SystemTime::now().duration_since(then).unwrap_or_default()
}
