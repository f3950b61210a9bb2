//! Buyers who come at a steady rate for as long as something is done to the shop.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use domain::VoucherId;
use load::Plan;
use testkit::{buyers, plan, sale};

use crate::Shop;

/// They come in stretches, each in an open loop: the rate holds whatever the shop does. The next one begins when the last of all has his answer, so
/// that a machine which cannot keep up (a purchase costs a debug build 9 ms of processor time and more) has so much before it and no more.
const STRETCH: Duration = Duration::from_secs(2);
/// For a test that never says that it is enough.
const MOST_STRETCHES: u64 = 100;
/// Of the rate, what must have been offered in the best stretch (buyers sleep on the same machine), and of the buyers, who must hold an order in
/// the end.
const OFFERED: f64 = 0.8;
const MOST: f64 = 0.9;

/// Buyers `NAME-0`, `NAME-1`, ...
pub(crate) struct Crowd {
    leaving: Arc<AtomicBool>,
    thread: thread::JoinHandle<Bought>,
}

/// What came of a crowd.
#[derive(Default)]
pub(crate) struct Bought {
    came: usize,
    /// Those that were promised, one a buyer at most.
    pub(crate) orders: Vec<String>,
    /// By kind, each try counted.
    answers: BTreeMap<String, u64>,
}

impl Crowd {
    /// From now on so many a second come, who try again while they are turned away.
    pub(crate) fn come(shop: &Shop, voucher: &VoucherId, name: &'static str, rate: u32) -> Self {
        let (leaving, plan) = (Arc::new(AtomicBool::new(false)), plan(shop.url(), voucher, STRETCH));
        let left = leaving.clone();
        let run = move || {
            let (each, mut bought) = (rate as usize * STRETCH.as_secs() as usize, Bought::default());
            let (mut stretches, mut offered) = (0, 0.0_f64);
            while !left.load(Relaxed) {
                assert!(stretches < MOST_STRETCHES, "nobody wanted these buyers to leave: {bought}");
                let names = (bought.came..bought.came + each).map(|n| format!("{name}-{n}"));
                let report = sale(Plan { retries: 40, seed: stretches, ..plan.clone() }, buyers(names)).join().unwrap();
                offered = offered.max(each as f64 / report.offered.as_secs_f64());
                report.answers.into_iter().for_each(|(kind, count)| *bought.answers.entry(kind).or_default() += count);
                bought.came += report.visits.len();
                assert!(report.visits.iter().all(|visit| visit.orders.len() <= 1), "two orders for one wish");
                bought.orders.extend(report.visits.into_iter().flat_map(|visit| visit.orders));
                stretches += 1;
            }
            assert!(offered >= OFFERED * f64::from(rate), "at most {offered:.0} buyers/s came, not {rate}");
            bought
        };
        Self { leaving, thread: thread::spawn(run) }
    }

    /// Nobody comes any more. Panics unless they have come at the rate.
    pub(crate) fn leave(self) -> Bought {
        self.leaving.store(true, Relaxed);
        self.thread.join().expect("they came at the rate")
    }
}

impl Bought {
    #[track_caller]
    pub(crate) fn assert_most(&self) {
        assert!(self.orders.len() as f64 >= MOST * self.came as f64, "{self}");
    }
}

impl fmt::Display for Bought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} buyers hold an order: {:?}", self.orders.len(), self.came, self.answers)
    }
}
