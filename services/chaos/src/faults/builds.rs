//! Two builds of the services side by side: while nothing is broken, every second process of a kind is of the other one.

use anyhow::Result;
use rand::{Rng, rngs::SmallRng};

use super::processes::{REBALANCES, SHORT, START, wait_ready};
use crate::{
    fault::{Fault, Kind, Need, kind, needing, steps},
    fleet::Role::{self, Compensation, Orders, Purchase},
    site::Site,
};

pub(crate) const KINDS: &[Kind] = &[
    needing(Need::OtherBuild, kind("purchase-other-build", 15, START, SHORT, &["purchase"], |rng| replaced(Purchase, rng))),
    needing(Need::OtherBuild, kind("orders-other-build", 20, REBALANCES, SHORT, &["orders"], |rng| replaced(Orders, rng))),
    needing(
        Need::OtherBuild,
        kind("compensation-other-build", 20, REBALANCES, SHORT, &["compensation"], |rng| replaced(Compensation, rng)),
    ),
];

/// One by one, as a deployment does it, until all are of one build, and then until every second one is of the other again: an upgrade and a
/// downgrade, in this order or the other.
fn replaced(role: Role, rng: &mut SmallRng) -> Fault {
    let by_other = rng.random_bool(0.5);
    let number = usize::from(by_other);
    let begin = move |site: &mut Site| roll(site, role, |_| number);
    let end = move |site: &mut Site, ()| roll(site, role, |number| number);
    let build = if by_other { "the other build" } else { "this build" };
    steps(format!("all {} processes replaced by such of {build}, one by one, and back", role.name()), begin, end)
}

/// Makes each process one of the build that the process of the number given by `like` usually is of.
fn roll(site: &mut Site, role: Role, like: impl Fn(usize) -> usize) -> Result<()> {
    for number in 0..site.fleet.of(role).len() {
        let build = site.fleet.build_of(like(number));
        let service = &mut site.fleet.of_mut(role)[number];
        if service.program_mut().program != build {
            service.program_mut().program = build;
            service.restart()?;
            wait_ready(service);
        }
    }
    Ok(())
}
