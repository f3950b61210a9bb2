//! The workload and the checker, on real services. A checker that cannot fail proves nothing: after a sale in which all is well it must pass,
//! and then find, and name, whatever is planted.

mod plants;

use std::{
    net::TcpListener,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use chaos::{
    buyers::{Buyers, Plan},
    check::check,
    keeper::Keeper,
    ledger::{Call, Change, Done, Ledger, Offer, Outcome},
};
use devstack::{Server, redis};
use domain::VoucherId;
use testkit::{Service, World, wait_until};

/// For things to happen in a sale on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Visits a second: few, since everything is looked at once for each plant.
const RATE: f64 = 40.0;

static ALONE: Mutex<()> = Mutex::new(());

/// The services of one world. Nobody else runs while it lives.
pub(crate) struct Shop {
    // In the order of dropping: the services go before the database.
    purchases: [Service; 2],
    compensation: Service,
    orders: Service,
    pub(crate) world: World,
    // Its own: whatever else a shared one holds would be in it without being in the log.
    _redis: Server,
    _alone: MutexGuard<'static, ()>,
}

impl Shop {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let redis = redis::start(redis::RedisOptions::default()).unwrap();
        let world = World::builder().redis(redis.endpoint()).build();
        let [orders, compensation] = ["orders", "compensation"].map(|name| world.launch_service(name, name, &[]));
        let purchases = ["purchase-1", "purchase-2"].map(|name| world.launch_service("purchase", name, &[]));
        [&orders, &compensation].into_iter().chain(&purchases).for_each(Service::wait_ready);
        Self { purchases, compensation, orders, world, _redis: redis, _alone: alone }
    }

    fn urls(&self) -> Vec<String> {
        self.purchases.iter().map(Service::url).collect()
    }

    /// From then on nobody repairs anything.
    fn end(&self) {
        self.purchases.iter().chain([&self.orders, &self.compensation]).for_each(Service::end);
    }

    fn buyers(&self, seed: u64, rate: f64, ledger: &Ledger) -> Buyers {
        Buyers::start(&self.world, self.urls(), Plan::new(seed, rate), ledger.clone()).unwrap()
    }

    /// Buyers and a keeper at work, until enough has happened; then a small voucher, until it is sold out.
    fn sell(&self, ledger: &Ledger) -> VoucherId {
        let seed = 7;
        eprintln!("seed {seed}");
        let keeper = Keeper::start(&self.world, seed, ledger.clone()).unwrap();
        wait_until(PATIENCE, "something to be on sale", || !ledger.offers().is_empty());
        let (buyers, began) = (self.buyers(seed, RATE, ledger), Instant::now());
        let kept = |wanted: fn(&Change) -> bool| ledger.book().deeds.iter().any(|d| wanted(&d.change) && d.done == Done::Yes);
        wait_until(PATIENCE, "a sale with changes", || {
            let changed = kept(|c| matches!(c, Change::Stock { .. })) && kept(|c| *c == Change::Pause);
            changed && ledger.counts().orders >= 300
        });
        let orders_a_second = ledger.counts().orders as f64 / began.elapsed().as_secs_f64();
        let vouchers = keeper.stop();
        buyers.stop();
        let known: Vec<VoucherId> = ledger.book().deeds.iter().map(|deed| deed.voucher.clone()).collect();
        assert!(vouchers.len() >= 8 && vouchers.iter().all(|voucher| known.contains(voucher)), "{vouchers:?}");
        eprintln!("{orders_a_second:.0} accepted orders a second; {:?}", ledger.counts());

        let small = self.world.voucher_id();
        self.world.open(&small, self.world.terms(5, 1, 1));
        ledger.set_offers(vec![Offer { voucher: small.clone(), per_user_limit: 1, share: 1 }]);
        let buyers = self.buyers(seed + 1, 50.0, ledger);
        let is_sold_out = |call: &Arc<Call>| matches!(&call.outcome, Outcome::Refused { code } if code == "sold_out");
        let sold_out = || ledger.book().calls.iter().filter(|call| is_sold_out(call)).count() >= 20;
        wait_until(PATIENCE, "it to be sold out", sold_out);
        buyers.stop();
        small
    }
}

#[test]
fn a_sale_in_which_all_is_well_passes_and_every_breach_planted_afterwards_is_found_by_name() {
    let shop = Shop::new();
    let ledger = Ledger::new();
    let small = shop.sell(&ledger);
    let summary = check(&shop.world, &ledger, PATIENCE).unwrap_or_else(|violations| panic!("{}", told(&violations)));
    println!("{summary}");
    assert!(
        summary.orders >= 300 && summary.events == summary.requests && summary.confirmed + summary.rejected == summary.orders
    );
    let counts = summary.answers;
    assert_eq!(counts.calls, counts.accepted + counts.refused + counts.busy + counts.unknown);
    assert!(counts.refused > 0 && counts.unknown > 0, "{counts:?}");
    shop.end();
    plants::in_the_ledger(&shop, &ledger, &small);
    plants::in_postgres(&shop, &ledger);
    plants::in_redis(&shop, &ledger, &small);
    plants::in_the_log(&shop, &ledger, &small);
}

/// Calls that a stopped process takes into its queue and never answers are made all the same, at their rate.
#[test]
fn buyers_keep_coming_while_nobody_answers_and_leave_when_told() {
    let world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let ledger = Ledger::new();
    ledger.set_offers(vec![Offer { voucher: world.voucher_id(), per_user_limit: 1, share: 1 }]);
    let timeout = Duration::from_secs(2);
    let plan = Plan { timeout, ..Plan::new(1, 50.0) };
    let began = Instant::now();
    let buyers = Buyers::start(&world, vec![url], plan, ledger.clone()).unwrap();
    wait_until(Duration::from_secs(30), "100 calls without an answer", || ledger.counts().unknown >= 100);
    // One after the other they would have taken 200 s.
    assert!(began.elapsed() < Duration::from_secs(30));
    let stopping = Instant::now();
    buyers.stop();
    assert!(stopping.elapsed() < timeout * 3, "{:?}", stopping.elapsed());
    let counts = ledger.counts();
    assert_eq!((counts.accepted, counts.refused, counts.busy), (0, 0, 0));
    assert_eq!(counts.calls, counts.unknown);
}

pub(crate) fn told(violations: &[chaos::check::Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
