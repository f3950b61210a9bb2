//! Who buys: names, tokens and calls, all made before anything is measured.

use std::time::Duration;

use domain::{OrderId, VoucherId};
use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::World;
use uuid::Uuid;

/// Buyers nobody else uses, named by UUIDs as many shops do.
pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count).map(|_| Uuid::new_v4().to_string()).collect()
}

/// What a buyer's purchase of one unit looks like on a connection that stays open.
pub(crate) fn call(voucher: &VoucherId, user: &str) -> Vec<u8> {
    let token = testkit::token(user);
    format!(
        "POST /v1/vouchers/{voucher}/orders HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer {token}\r\ncontent-length: 0\r\n\r\n"
    )
    .into_bytes()
}

/// Calls of as many new buyers.
pub(crate) fn calls(voucher: &VoucherId, count: usize) -> Vec<Vec<u8>> {
    names(count).iter().map(|user| call(voucher, user)).collect()
}

/// A call and the order that it will be.
pub(crate) fn call_and_order(world: &World, voucher: &VoucherId) -> (Vec<u8>, OrderId) {
    let user = Uuid::new_v4().to_string();
    (call(voucher, &user), world.order_id(voucher, &user, None))
}

/// Instants of arrivals at a mean rate, each independent of the others (a Poisson process), over a time. The same seed gives the same.
pub(crate) fn arrivals(rate: f64, time: Duration, seed: u64) -> Vec<Duration> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut at = 0.0;
    let next = || {
        at += -(1.0 - random.random::<f64>()).ln() / rate;
        (at < time.as_secs_f64()).then(|| Duration::from_secs_f64(at))
    };
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_keep_their_rate_and_their_seed() {
        let second = Duration::from_secs(10);
        let found = arrivals(1_000.0, second, 7);
        assert!((9_500..10_500).contains(&found.len()), "{}", found.len());
        assert!(found.is_sorted() && found.iter().all(|at| *at < second));
        assert_eq!(found, arrivals(1_000.0, second, 7));
        assert_ne!(found, arrivals(1_000.0, second, 8));
    }
}
