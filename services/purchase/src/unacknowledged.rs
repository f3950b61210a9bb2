//! How much may stand without Kafka's acknowledgement: a bounded number of purchases, and none for too long.
//!
//! A purchase takes its slot before it reserves, so whoever is told "pending" already has the place from which his order goes on being published.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The purchases without an acknowledgement.
pub(crate) struct Unacknowledged {
    slots: Arc<Semaphore>,
    too_long: Duration,
    pending: Mutex<Pending>,
    gauge: Gauge,
}

/// Those whose buyers were told "pending", in the order in which they were.
#[derive(Default)]
struct Pending {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

/// The place of one purchase; dropped once it needs none.
pub(crate) type Slot = OwnedSemaphorePermit;

/// A purchase answered "pending"; dropped once it is acknowledged.
pub(crate) struct PendingGuard {
    owner: Arc<Unacknowledged>,
    number: u64,
    _slot: Slot,
}

impl Unacknowledged {
    /// `gauge` shows how many buyers were told "pending" and are still without an acknowledgement.
    pub(crate) fn new(most: usize, too_long: Duration, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self { slots: Arc::new(Semaphore::new(most)), too_long, pending: Mutex::default(), gauge })
    }

    /// A place for one more purchase, or why there must be none now.
    pub(crate) fn admit(&self) -> Result<Slot, String> {
        if let Some(trouble) = self.trouble() {
            return Err(trouble);
        }
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        slot.map_err(|_| "too many purchases wait for an acknowledgement".to_owned())
    }

    /// From now on this purchase's buyer believes that it is pending.
    pub(crate) fn pending(self: &Arc<Self>, slot: Slot) -> PendingGuard {
        self.gauge.inc();
        let mut pending = self.pending.lock();
        let number = pending.next;
        pending.next += 1;
        pending.since.insert(number, Instant::now());
        PendingGuard { owner: Arc::clone(self), number, _slot: slot }
    }

    /// How many buyers were told "pending" and are still without an acknowledgement.
    pub(crate) fn count(&self) -> usize {
        self.pending.lock().since.len()
    }

    /// Set where one of them has waited too long.
    pub(crate) fn trouble(&self) -> Option<String> {
        let since = self.pending.lock().since.first_key_value().map(|(_, since)| *since)?;
        let waited = since.elapsed();
        (waited >= self.too_long).then(|| format!("an order has waited {} s for Kafka's acknowledgement", waited.as_secs()))
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.owner.gauge.dec();
        self.owner.pending.lock().since.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_bounded_and_come_back() {
        let unacknowledged = Unacknowledged::new(2, Duration::from_secs(60), Gauge::default());
        let first = unacknowledged.admit().unwrap();
        let second = unacknowledged.admit().unwrap();
        assert!(unacknowledged.admit().is_err());
        drop(first);
        let guard = unacknowledged.pending(second);
        assert_eq!(unacknowledged.count(), 1);
        let _third = unacknowledged.admit().unwrap();
        assert!(unacknowledged.admit().is_err());
        drop(guard);
        assert_eq!(unacknowledged.count(), 0);
        assert!(unacknowledged.admit().is_ok());
    }

    #[test]
    fn one_that_waits_too_long_keeps_new_ones_out() {
        let unacknowledged = Unacknowledged::new(9, Duration::ZERO, Gauge::default());
        let guard = unacknowledged.pending(unacknowledged.admit().unwrap());
        assert!(unacknowledged.trouble().is_some());
        assert!(unacknowledged.admit().is_err());
        drop(guard);
        assert!(unacknowledged.admit().is_ok());
    }
}
