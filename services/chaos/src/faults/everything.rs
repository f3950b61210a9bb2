//! All at once.

use anyhow::Result;
use rand::rngs::SmallRng;

use super::{kafka, processes::kill, registry, restart_all};
use crate::{
    fault::{Fault, Kind, seconds, steps},
    site::Site,
};

pub(crate) const KINDS: &[Kind] = &[Kind {
    name: "everything-killed",
    bound: seconds(60),
    why: "start of the processes 5 s + leaders 5 s + session time-out 6 s + rebalance 3 s + a lane's recovery 5 s + repair 9 s + the sweeper's turn 11 s",
    hold: (seconds(0), seconds(5)),
    rare: true,
    needs: None,
    uses: &["kafka", "redis", "postgres", "registry", "purchase", "orders", "compensation"],
    make: killed,
}];

/// As when a machine room loses its power, but that what the servers wrote is still in the system's hands.
fn killed(_: &mut SmallRng) -> Fault {
    let begin = |site: &mut Site| {
        site.fleet.all().for_each(kill);
        site.servers.all().for_each(|(_, proxied)| proxied.server.kill());
        Ok(())
    };
    let end = |site: &mut Site, ()| -> Result<()> {
        restart_all(site.servers.all().map(|(_, proxied)| &proxied.server))?;
        kafka::whole(site)?;
        registry::register(site)
    };
    let what = "kill -9 of all servers and all services at once; the registry comes back empty, and schemas are registered again";
    steps(what, begin, end)
}
