//! Services that die between two writes, at the points of [`infra::crash`], again and again.

use std::{fs, io, time::Duration};

use infra::crash::{self, Order, POINTS};
use rand::{Rng, rngs::SmallRng, seq::IndexedRandom};

use crate::{
    fault::{Fault, Kind, kind, seconds, steps},
    fleet::Role::{self, Compensation, Orders, Purchase},
    site::Site,
};

/// Long enough for several deaths of a purchase process, and for a rebalance and further deaths of the others.
const HOLD: (Duration, Duration) = (seconds(5), seconds(20));
/// Passages of one process, before it dies, of a point that is passed all the time: up to this many. Of another, the first.
const PASSAGES: u64 = 20;

pub(crate) const KINDS: &[Kind] = &[
    kind("purchase-dies", 15, "start of a process 5 s + back-off 1 s", HOLD, &["purchase"], |rng| dies(Purchase, rng)),
    kind(
        "orders-dies",
        25,
        "session time-out 6 s + rebalance 3 s + a lane's recovery 5 s + start of a process 5 s",
        HOLD,
        &["orders"],
        |rng| dies(Orders, rng),
    ),
    kind(
        "compensation-dies",
        25,
        "session time-out 6 s + rebalance 3 s + a repair's wait 3 s + start of a process 5 s",
        HOLD,
        &["compensation"],
        |rng| dies(Compensation, rng),
    ),
];

/// Every process of the role dies at one point, as often as it comes by.
fn dies(role: Role, rng: &mut SmallRng) -> Fault {
    let points: Vec<&str> = POINTS.iter().filter(|point| point.starts_with(role.name())).copied().collect();
    let point = points.choose(rng).copied().unwrap_or_default();
    let passage = if crash::is_passed_often(point) { rng.random_range(1..=PASSAGES) } else { 1 };
    let order = Order { passage, again: true };
    let begin = move |site: &mut Site| {
        let folder = site.world.crash_points();
        fs::create_dir_all(&folder)?;
        Ok(crash::arm(&folder, point, order)?)
    };
    let end = move |site: &mut Site, ()| {
        let folder = site.world.crash_points();
        match fs::remove_file(folder.join(point)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        // Another fault may still be in it.
        let _ = fs::remove_dir(folder);
        Ok(())
    };
    let what = format!("each {} process dies at the passage {} of {point}, again and again", role.name(), order.passage);
    steps(what, begin, end)
}
