//! Services that are killed, ended, frozen, rolled, or become more and fewer.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use testkit::Service;

use super::draw;
use crate::{
    fault::{Fault, Kind, at_once, kind, seconds, steps},
    fleet::Role::{self, Compensation, Orders, Purchase},
    site::Site,
};

/// Longer than the worlds' session time-out of 6 s, so that the group gives a frozen member's partitions away.
const FROZEN: (Duration, Duration) = (seconds(8), seconds(15));
pub(super) const SHORT: (Duration, Duration) = (seconds(0), seconds(3));
const NONE: (Duration, Duration) = (seconds(0), seconds(1));

pub(super) const START: &str = "start of a process 5 s";
const TAKEOVER: &str = "session time-out 6 s + rebalance 3 s + a lane's recovery 5 s + start of a process 5 s";
const AWAKE: &str =
    "the others took over while it was frozen; it joins again: rebalance 3 s + a lane's recovery 5 s + back-off 2 s";
pub(super) const REBALANCES: &str = "the last rebalance 3 s + a lane's recovery 5 s + start of a process 5 s";

pub(crate) const KINDS: &[Kind] = &[
    kind("purchase-killed", 15, START, NONE, &["purchase"], |rng| killed(Purchase, rng)),
    kind("orders-killed", 25, TAKEOVER, NONE, &["orders"], |rng| killed(Orders, rng)),
    kind("compensation-killed", 25, TAKEOVER, NONE, &["compensation"], |rng| killed(Compensation, rng)),
    kind("purchase-all-killed", 15, START, NONE, &["purchase"], |_| all_killed(Purchase)),
    kind("orders-all-killed", 25, TAKEOVER, NONE, &["orders"], |_| all_killed(Orders)),
    kind("compensation-all-killed", 25, TAKEOVER, NONE, &["compensation"], |_| all_killed(Compensation)),
    kind("purchase-restarted", 15, START, NONE, &["purchase"], |rng| restarted(Purchase, rng)),
    kind("orders-restarted", 20, REBALANCES, NONE, &["orders"], |rng| restarted(Orders, rng)),
    kind("compensation-restarted", 20, REBALANCES, NONE, &["compensation"], |rng| restarted(Compensation, rng)),
    kind("purchase-frozen", 15, "what it held in memory is sent: 5 s + back-off 2 s", FROZEN, &["purchase"], |rng| {
        frozen(Purchase, rng)
    }),
    kind("orders-frozen", 20, AWAKE, FROZEN, &["orders"], |rng| frozen(Orders, rng)),
    kind("compensation-frozen", 20, AWAKE, FROZEN, &["compensation"], |rng| frozen(Compensation, rng)),
    kind("purchase-rolled", 15, START, NONE, &["purchase"], |_| rolled(Purchase)),
    kind("orders-rolled", 20, REBALANCES, NONE, &["orders"], |_| rolled(Orders)),
    kind("compensation-rolled", 20, REBALANCES, NONE, &["compensation"], |_| rolled(Compensation)),
    kind("orders-scaled", 25, REBALANCES, SHORT, &["orders"], |_| scaled()),
];

fn killed(role: Role, rng: &mut SmallRng) -> Fault {
    let which = draw(rng);
    at_once(format!("kill -9 of one {} process", role.name()), move |site| {
        let services = site.fleet.of(role);
        kill(&services[which(services.len())]);
        Ok(())
    })
}

fn all_killed(role: Role) -> Fault {
    at_once(format!("kill -9 of all {} processes at once", role.name()), move |site| {
        site.fleet.of(role).iter().for_each(kill);
        Ok(())
    })
}

/// One that ended by itself a moment ago, and is about to be started again, is as dead as can be.
pub(super) fn kill(service: &Service) {
    let _ = service.kill();
}

fn restarted(role: Role, rng: &mut SmallRng) -> Fault {
    let which = draw(rng);
    at_once(format!("SIGTERM to one {} process, then a start", role.name()), move |site| {
        let services = site.fleet.of_mut(role);
        let count = services.len();
        Ok(services[which(count)].restart()?)
    })
}

fn frozen(role: Role, rng: &mut SmallRng) -> Fault {
    let which = draw(rng);
    let begin = move |site: &mut Site| {
        let services = site.fleet.of(role);
        let index = which(services.len());
        // It may be dead just now; then there is nothing to freeze.
        let _ = services[index].process.pause();
        Ok(index)
    };
    let end = move |site: &mut Site, index: usize| {
        let _ = site.fleet.of(role)[index].process.resume();
        Ok(())
    };
    steps(format!("SIGSTOP of one {} process, longer than the session time-out", role.name()), begin, end)
}

/// As a deployment does it: each is ready before the next one is ended. One that cannot be ready, since something else is broken too, is not
/// waited for without end.
fn rolled(role: Role) -> Fault {
    at_once(format!("rolling restart of all {} processes", role.name()), move |site| {
        for service in site.fleet.of_mut(role) {
            service.restart()?;
            wait_ready(service);
        }
        Ok(())
    })
}

fn scaled() -> Fault {
    let begin = |site: &mut Site| {
        site.fleet.shrink(Orders, 1)?;
        site.fleet.grow(&site.world, Orders, 4);
        site.fleet.of(Orders).iter().for_each(wait_ready);
        Ok(())
    };
    let end = |site: &mut Site, ()| {
        site.fleet.shrink(Orders, 1)?;
        site.fleet.as_usual(&site.world, Orders)
    };
    steps("orders from all to 1 to 4 to 1 processes, and back", begin, end)
}

/// Not without end: it may lack something else that is broken.
pub(super) fn wait_ready(service: &Service) {
    const DEADLINE: Duration = seconds(15);
    const PAUSE: Duration = Duration::from_millis(20);
    let begun = Instant::now();
    while !service.is_ready() && begun.elapsed() < DEADLINE {
        std::thread::sleep(PAUSE);
    }
}
