//! Waiting until everything is at rest: every request decided and published, every event settled, no reservation left, every gate open.

use std::time::{Duration, Instant};

use anyhow::Context;
use domain::Voucher;
use infra::redis::{Gate, Store};
use testkit::World;

use super::{Subject, stores::patient_store};

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Redis may forget a voucher an hour after its end (`docs/ARCHITECTURE.md`, Audit); before, it must have it.
pub(super) const KEPT_MS: i64 = 3_600_000;

/// What is not at rest, and why.
pub(super) type Unrest = Vec<(Subject, String)>;

/// Looks again and again; after `deadline`, gives what was not at rest at the last look.
pub(super) async fn wait(world: &World, deadline: Duration) -> Result<(), Unrest> {
    let began = Instant::now();
    loop {
        let unrest = look(world).await.unwrap_or_else(|error| vec![(Subject::Whole, format!("{error:#}"))]);
        if unrest.is_empty() {
            return Ok(());
        }
        if began.elapsed() >= deadline {
            return Err(unrest);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(world: &World) -> anyhow::Result<Unrest> {
    let connections = world.connections();
    let mut unrest = Unrest::new();
    let lag = replay::lag(connections, &world.codec()).await.context("how far everybody came cannot be told")?;
    for p in lag.partitions.iter().filter(|p| p.undecided + p.unpublished + p.unsettled > 0) {
        let (undecided, unpublished, unsettled) = (p.undecided, p.unpublished, p.unsettled);
        let what = format!(
            "partition {}: {undecided} requests undecided, {unpublished} events unpublished, {unsettled} offsets unsettled",
            p.partition
        );
        unrest.push((Subject::Whole, what));
    }
    let pool = infra::postgres::pool(connections, 1)?;
    let store = patient_store(connections).await?;
    let now = store.now().await?;
    for row in infra::postgres::vouchers(&pool, None).await? {
        let kept = row.terms.ends_at.plus(KEPT_MS) > now;
        unrest.extend(of_voucher(&store, &row, kept).await?);
    }
    Ok(unrest)
}

/// `kept`: Redis must have it.
async fn of_voucher(store: &Store, row: &Voucher, kept: bool) -> anyhow::Result<Unrest> {
    let of = |what: String| (Subject::Voucher(row.id.clone()), format!("voucher {} {what}", row.id));
    let Some(found) = store.voucher(&row.id).await? else {
        return Ok(if kept { vec![of("is not in Redis".to_owned())] } else { Vec::new() });
    };
    let mut unrest = Unrest::new();
    if found.gate != Gate::Ready {
        unrest.push(of(format!("has its gate {:?} in Redis", found.gate).to_lowercase()));
    }
    if found.seq != row.seq {
        unrest.push(of(format!("is at voucher_seq {} in Redis, {} in Postgres", found.seq, row.seq)));
    }
    let mut reservations = store.reservations(&row.id).await?;
    reservations.sort_by_key(|reservation| reservation.requested_at);
    if reservations.is_empty() && found.reserved != 0 {
        unrest.push(of(format!("has {} units reserved by nobody in Redis", found.reserved)));
    }
    for reservation in reservations {
        let (order, user, quantity) = (reservation.order_id, &reservation.user_id, reservation.quantity);
        unrest.push((Subject::Order(order), format!("order {order} of {user} still has {quantity} units reserved in Redis")));
    }
    Ok(unrest)
}
