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
/// Of the buyers, who must hold an order in the end.
const MOST: f64 = 0.9;

/// Buyers `NAME-0`, `NAME-1`, ...
pub(crate) struct Crowd {
    leaving: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Bought>>,
}

/// What came of a crowd.
#[derive(Default)]
pub(crate) struct Bought {
    came: usize,
    /// A second, in the quickest stretch: how busy the machine was.
    offered: f64,
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
            let mut stretches = 0;
            while !left.load(Relaxed) {
                let names = (bought.came..bought.came + each).map(|n| format!("{name}-{n}"));
                let report = sale(Plan { retries: 40, seed: stretches, ..plan.clone() }, buyers(names)).join().unwrap();
                bought.offered = bought.offered.max(each as f64 / report.offered.as_secs_f64());
                report.answers.into_iter().for_each(|(kind, count)| *bought.answers.entry(kind).or_default() += count);
                bought.came += report.visits.len();
                assert!(report.visits.iter().all(|visit| visit.orders.len() <= 1), "two orders for one wish");
                bought.orders.extend(report.visits.into_iter().flat_map(|visit| visit.orders));
                stretches += 1;
            }
            bought
        };
        Self { leaving, thread: Some(thread::spawn(run)) }
    }

    /// Nobody comes any more. Gives what came of those who did, when the last of them has his answer.
    pub(crate) fn leave(mut self) -> Bought {
        self.leaving.store(true, Relaxed);
        self.thread.take().expect("they leave once").join().expect("nobody got two orders for one wish")
    }
}

/// Where a test failed they leave, too.
impl Drop for Crowd {
    fn drop(&mut self) {
        self.leaving.store(true, Relaxed);
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
        write!(f, "{} of {} buyers ({:.0}/s) hold an order: {:?}", self.orders.len(), self.came, self.offered, self.answers)
    }
}
