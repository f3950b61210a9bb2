//! The whole system: real binaries on real servers, looked at from outside. One test at a time, since each wants the machine.

mod audit_finds;
mod audit_watch;
mod backup;
mod crash_points;
mod crashes;
mod crowd;
mod dead_letters;
mod deleted_history;
mod explain;
mod log_ends;
mod rebuild;
mod redis_lost;
mod remedies;
mod rollback;
mod runbook;
mod sale;
mod secrets;
mod shutdown;
mod stock;
mod window;

use std::sync::{Mutex, MutexGuard, PoisonError};

use devstack::{Server, redis};
use testkit::{Service, World, WorldBuilder};

static ALONE: Mutex<()> = Mutex::new(());

/// The services of one world. Nobody else runs while it lives.
struct Shop {
    // In the order of dropping: the services go before the database, and the next test comes when all is gone.
    purchase: Service,
    compensation: Service,
    orders: Service,
    world: World,
    /// Its own: whatever else a shared one holds would be in it without being in the log.
    redis: Server,
    _alone: MutexGuard<'static, ()>,
}

/// Orphaned reservations are published soon after the delivery time-out, not 5 s later: this machine has one clock.
const QUICK_SWEEPER: [(&str, &str); 1] = [("DOORBUSTER_COMPENSATION_SWEEP_MARGIN_MS", "500")];

impl Shop {
    fn new() -> Self {
        Self::on(WorldBuilder::build, &[])
    }

    /// `world`: makes the world; `more`: variables for all services.
    fn on(world: impl FnOnce(WorldBuilder) -> World, more: &[(&str, &str)]) -> Self {
        // A test that failed has poisoned it, and tells that by itself.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let redis = redis::start(redis::RedisOptions::default()).unwrap();
        let world = world(World::builder().redis(redis.endpoint()));
        let more = [&QUICK_SWEEPER[..], more].concat();
        let [orders, compensation, purchase] =
            ["orders", "compensation", "purchase"].map(|name| world.launch_service(name, name, &more));
        [&orders, &compensation, &purchase].into_iter().for_each(Service::wait_ready);
        Self { purchase, compensation, orders, world, redis, _alone: alone }
    }

    /// Puts a voucher of so many units, one a user, on sale.
    fn open(&self, units: i64) -> domain::VoucherId {
        let voucher = self.world.voucher_id();
        self.world.open(&voucher, self.world.terms(units, 1, 1));
        voucher
    }

    fn url(&self) -> String {
        self.purchase.url()
    }

    /// How often each service had to be started again.
    fn restarts(&self) -> [u32; 3] {
        [&self.orders, &self.compensation, &self.purchase].map(|service| service.process.restarts())
    }
}

/// `buyer-0`, `buyer-1`, ...
fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|i| format!("buyer-{i}"))
}
