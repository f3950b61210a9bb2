//! Clocks that are wrong, for one process at a time.
//!
//! The services decide nothing by their own clocks, so theirs may be wrong by hours; purchase's by less than one, since it judges tokens, and
//! since after an hour a voucher that is not in Redis counts as over. Redis' TIME opens and closes the windows: as long as it differs from the
//! brokers' by less than what is allowed, the same is sold.

use std::time::Duration;

use anyhow::Error;
use rand::{Rng, rngs::SmallRng};
use testkit::{CLOCK_VARIABLES, wrong_clock};

use super::{
    draw,
    processes::{REBALANCES, START, wait_ready},
};
use crate::{
    fault::{Fault, Kind, Need, kind, needing, seconds, steps},
    fleet::Role::{self, Compensation, Orders, Purchase},
    site::Site,
};

const HOLD: (Duration, Duration) = (seconds(2), seconds(12));

/// In seconds, either way.
const SERVICES: i64 = 12 * 3_600;
/// Below an hour, which is also how long the buyers' tokens hold on either side.
const PURCHASE: i64 = 50 * 60;
/// A second below [`domain::ALLOWED_SKEW_MS`].
const REDIS: i64 = domain::ALLOWED_SKEW_MS / 1_000 - 1;

const REDIS_AGAIN: &str = "reconnection 1 s + the backlog; no data is lost";

pub(crate) const KINDS: &[Kind] = &[
    needing(Need::Clocks, kind("purchase-clock-wrong", 15, START, HOLD, &["purchase"], |rng| service(Purchase, PURCHASE, rng))),
    needing(Need::Clocks, kind("orders-clock-wrong", 20, REBALANCES, HOLD, &["orders"], |rng| service(Orders, SERVICES, rng))),
    needing(
        Need::Clocks,
        kind("compensation-clock-wrong", 20, REBALANCES, HOLD, &["compensation"], |rng| service(Compensation, SERVICES, rng)),
    ),
    needing(Need::Clocks, kind("redis-clock-wrong", 15, REDIS_AGAIN, HOLD, &["redis"], redis)),
];

/// Seconds up to `most`, forward or back: as often few as many.
fn draw_skew(rng: &mut SmallRng, most: i64) -> i64 {
    let size = (most as f64).powf(rng.random()).round() as i64;
    if rng.random_bool(0.5) { size } else { -size }
}

/// A process is ended and started again with another clock, and once more with the right one.
fn service(role: Role, most: i64, rng: &mut SmallRng) -> Fault {
    let (which, skew) = (draw(rng), draw_skew(rng, most));
    let begin = move |site: &mut Site| {
        let services = site.fleet.of_mut(role);
        let index = which(services.len());
        let service = &mut services[index];
        service.program_mut().env.extend(wrong_clock(skew).map_err(Error::msg)?);
        service.restart()?;
        wait_ready(service);
        Ok(index)
    };
    let end = move |site: &mut Site, index: usize| {
        let service = &mut site.fleet.of_mut(role)[index];
        service.program_mut().env.retain(|(name, _)| !CLOCK_VARIABLES.contains(&name.as_str()));
        Ok(service.restart()?)
    };
    steps(format!("the clock of one {} process is wrong by {skew} s", role.name()), begin, end)
}

fn redis(rng: &mut SmallRng) -> Fault {
    let skew = draw_skew(rng, REDIS);
    let begin = move |site: &mut Site| Ok(site.servers.redis.server.restart_with(&wrong_clock(skew).map_err(Error::msg)?)?);
    steps(format!("Redis' clock is wrong by {skew} s"), begin, |site, ()| Ok(site.servers.redis.server.restart()?))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn clocks_are_wrong_by_seconds_and_by_hours_either_way() {
        let drawn: Vec<i64> = (0..200).map(|seed| draw_skew(&mut SmallRng::seed_from_u64(seed), SERVICES)).collect();
        assert!(drawn.iter().all(|skew| (1..=SERVICES).contains(&skew.abs())), "{drawn:?}");
        let some = |wanted: fn(i64) -> bool| drawn.iter().filter(|skew| wanted(**skew)).count() > 10;
        assert!(some(|s| s > 3_600) && some(|s| s < -3_600) && some(|s| (1..60).contains(&s)) && some(|s| (-60..0).contains(&s)));
    }
}
