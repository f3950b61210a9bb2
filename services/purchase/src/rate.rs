//! How often one user may try: a token bucket a user (as GCRA, which needs one instant a user instead of a level and an instant).

use std::time::{Duration, Instant};

use domain::UserId;
use parking_lot::Mutex;

use crate::generations::Generations;

/// Users whose buckets are remembered, at least: about 10 MB. Only more users than this within one burst's time can make it lenient.
const USERS: usize = 50_000;

/// Limits each user to a rate with bursts.
pub(crate) struct RateLimit {
    started: Instant,
    /// Between two tries at the full rate.
    interval: Duration,
    /// How far a user may run ahead of the rate.
    ahead: Duration,
    /// For each user: when his bucket will be full again, since `started`.
    full_at: Mutex<Generations<UserId, Duration>>,
}

impl RateLimit {
    /// `per_second` and `burst` are at least 1.
    pub(crate) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        Self { started: now, interval, ahead: interval * burst, full_at: Mutex::new(Generations::new(USERS)) }
    }

    /// Counts a try of this user; or says how long he must wait, without counting it.
    pub(crate) fn admit(&self, user: &UserId, now: Instant) -> Result<(), Duration> {
        let now = now.saturating_duration_since(self.started);
        let forgotten;
        {
            let mut full_at = self.full_at.lock();
            let next = full_at.get(user).map_or(now, |at| now.max(*at)) + self.interval;
            if next > now + self.ahead {
                return Err(next - now - self.ahead);
            }
            forgotten = full_at.insert(user.clone(), next);
        }
        drop(forgotten);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate_and_others_are_untouched() {
        let start = Instant::now();
        let rate = RateLimit::new(10, 5, start);
        let (a, b) = (UserId::parse("a").unwrap(), UserId::parse("b").unwrap());
        let tries =
            |user: &UserId, at: u64| (0..100).filter(|_| rate.admit(user, start + Duration::from_millis(at)).is_ok()).count();
        assert_eq!(tries(&a, 0), 5);
        assert_eq!(rate.admit(&a, start), Err(Duration::from_millis(100)));
        assert_eq!(tries(&b, 0), 5);
        assert_eq!(tries(&a, 99), 0);
        assert_eq!(tries(&a, 100), 1);
        assert_eq!(tries(&a, 350), 2);
        assert_eq!(tries(&a, 60_000), 5);
    }
}
