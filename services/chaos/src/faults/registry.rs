//! The schema registry: away, frozen, or back without its schemas.

use std::time::Duration;

use anyhow::{Result, ensure};
use rand::{Rng, rngs::SmallRng};
use testkit::doorbuster;

use super::{frozen, processes::kill};
use crate::{
    fault::{Fault, Kind, kind, rare, seconds, steps},
    fleet::Role,
    site::Site,
};

const HOLD: (Duration, Duration) = (seconds(3), seconds(12));

const IDS_KEPT: &str = "nothing waits for it but a start, which is tried twice a second: 5 s";
const START: &str = "start of the processes 5 s + rebalance 3 s + a lane's recovery 5 s";

pub(crate) const KINDS: &[Kind] = &[
    kind("registry-frozen", 10, IDS_KEPT, HOLD, &["registry"], |_| frozen("the registry", |servers| &servers.registry)),
    rare(kind("registry-emptied", 15, IDS_KEPT, HOLD, &["registry"], |_| emptied())),
    kind("registry-away-at-start", 25, START, HOLD, &["registry", "purchase", "orders", "compensation"], |rng| {
        away_at_start(rng)
    }),
];

/// Its schemas are in memory, so a restart has none. Whoever runs it registers them again, as for a new deployment.
fn emptied() -> Fault {
    let begin = |site: &mut Site| {
        site.servers.registry.server.kill();
        Ok(site.servers.registry.server.restart()?)
    };
    steps("the registry restarted without its schemas, which are registered again later", begin, |site, ()| register(site))
}

pub(super) fn register(site: &Site) -> Result<()> {
    let (code, said) = doorbuster(&site.world, &["topics", "apply", "--apply"]);
    ensure!(code == 0, "`doorbuster topics apply` ended with {code}: {said}");
    Ok(())
}

/// Every process of one kind has to start while nobody answers for schemas.
fn away_at_start(rng: &mut SmallRng) -> Fault {
    let role = Role::ALL[rng.random_range(0..Role::ALL.len())];
    let begin = move |site: &mut Site| {
        site.servers.registry.server.kill();
        site.fleet.of(role).iter().for_each(kill);
        Ok(())
    };
    let end = |site: &mut Site, ()| {
        site.servers.registry.server.restart()?;
        register(site)
    };
    let role = role.name();
    let what =
        format!("the registry is away while all {role} processes start; it comes back empty, and schemas are registered again");
    steps(what, begin, end)
}
