//! Ends the process when one attempt (a lane's, a turn of a consumer's loop, a blocking call of a task) takes longer than its bound; whoever
//! runs the process starts it again.
//!
//! A call into the client library that never comes back cannot be cancelled: only the end of the process helps. What is measured is one
//! attempt, so a database that is away (many short attempts) never ends the process.

use std::{
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Looks a bound is divided into: an overdue attempt is noticed at most a tenth of the bound late.
const LOOKS: u32 = 10;

/// All that is watched.
#[derive(Default)]
pub struct Beats(Mutex<Vec<Weak<Beat>>>);

/// What one thread is doing, and since when.
pub struct Beat {
    name: String,
    attempt: Mutex<Option<(&'static str, Instant)>>,
}

impl Beat {
    /// A new attempt begins (and the last one, if any, is over).
    pub fn begin(&self, what: &'static str) {
        *self.attempt.lock() = Some((what, Instant::now()));
    }

    /// Nothing is being attempted; waiting may take any time.
    pub fn end(&self) {
        *self.attempt.lock() = None;
    }
}

impl Beats {
    /// Watches until the beat is dropped.
    pub fn add(&self, name: String) -> Arc<Beat> {
        let beat = Arc::new(Beat { name, attempt: Mutex::new(None) });
        let mut beats = self.0.lock();
        beats.retain(|b| b.strong_count() > 0);
        beats.push(Arc::downgrade(&beat));
        beat
    }

    /// The first attempt that takes longer than `bound`, as "who: what".
    pub fn overdue(&self, bound: Duration) -> Option<String> {
        self.0.lock().iter().filter_map(Weak::upgrade).find_map(|beat| {
            let attempt = *beat.attempt.lock();
            let (what, since) = attempt?;
            (since.elapsed() > bound).then(|| format!("{}: {what}", beat.name))
        })
    }
}

/// Watches on a thread of its own until the beats are gone. The process is aborted, not stopped: whatever hangs would hang a stop as well.
pub fn start(beats: &Arc<Beats>, bound: Duration) -> std::io::Result<()> {
    let beats = Arc::downgrade(beats);
    thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        while let Some(beats) = beats.upgrade() {
            if let Some(attempt) = beats.overdue(bound) {
                tracing::error!(attempt, ?bound, "takes too long: ending the process");
                std::process::abort();
            }
            drop(beats);
            thread::sleep(bound / LOOKS);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_beyond_its_bound_is_named_and_waiting_is_not() {
        let beats = Beats::default();
        let (lane, consumer) = (beats.add("lane 3".into()), beats.add("consumer".into()));
        lane.begin("publish");
        consumer.begin("turn");
        assert_eq!(beats.overdue(Duration::from_secs(60)), None);
        consumer.end();
        let overdue = || beats.overdue(Duration::ZERO);
        while overdue().is_none() {
            std::hint::spin_loop();
        }
        assert_eq!(overdue().as_deref(), Some("lane 3: publish"));
        lane.end();
        assert_eq!(overdue(), None);
        lane.begin("publish");
        drop(lane);
        assert_eq!(overdue(), None);
    }
}
