//! Ends the process when a loop stands still for too long; whoever runs the process starts it again.
//!
//! A call into the client library that never comes back cannot be cancelled from outside: only the end of the process helps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::partition::Service;

/// The loops that are watched.
#[derive(Default)]
pub(crate) struct Beats {
    loops: Mutex<Vec<(String, Arc<Beat>)>>,
}

/// One loop's sign of life.
pub(crate) struct Beat {
    started: Instant,
    last_ms: AtomicU64,
}

impl Beats {
    pub(crate) fn add(&self, name: String) -> Arc<Beat> {
        let beat = Arc::new(Beat { started: Instant::now(), last_ms: AtomicU64::new(0) });
        self.loops.lock().push((name, beat.clone()));
        beat
    }
}

impl Beat {
    pub(crate) fn beat(&self) {
        self.last_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn silent(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.last_ms.load(Ordering::Relaxed)))
    }
}

/// Watches until the task is aborted, also through shutdown.
pub(crate) fn start(service: Arc<Service>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let bound = service.config.watchdog;
        loop {
            tokio::time::sleep(bound / 10).await;
            for (name, beat) in service.beats.loops.lock().iter() {
                if beat.silent() > bound {
                    tracing::error!(r#loop = name, ?bound, "stands still: ending the process");
                    std::process::abort();
                }
            }
        }
    })
}
