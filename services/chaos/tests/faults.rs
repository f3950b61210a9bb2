//! Each fault, begun and ended while a few buyers come, leaves a system that sells and settles by itself. By default some of every family;
//! others by name, or all of them: `CHAOS_KINDS=redis-busy,kafka-rolled` or `CHAOS_KINDS=all`.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use chaos::{
    fault::{Kind, Need, kinds, possible},
    fleet::Role,
    site::{Servers, Site},
};
use domain::VoucherId;
use rand::{SeedableRng, rngs::SmallRng};
use replay::Verdict;
use testkit::{Service, block_on, token, wait_until};

/// What takes little time, of every family.
const USUAL: [&str; 10] = [
    "orders-killed",
    "orders-other-build",
    "purchase-clock-wrong",
    "redis-silent",
    "kafka-leader-killed",
    "orders-offsets-deleted",
    "redis-failed-over",
    "postgres-restored",
    "postgres-disk-full",
    "registry-frozen",
];

/// Beyond it nothing will come any more.
const PATIENCE: Duration = Duration::from_secs(120);

fn chosen() -> Vec<Kind> {
    let wanted = std::env::var("CHAOS_KINDS").unwrap_or_else(|_| USUAL.join(","));
    let is_wanted = |kind: &&Kind| wanted == "all" || wanted.split(',').any(|name| name == kind.name);
    let chosen: Vec<Kind> = kinds().iter().filter(is_wanted).copied().collect();
    assert!(wanted == "all" || chosen.len() == wanted.split(',').count(), "CHAOS_KINDS={wanted} names no kind");
    chosen
}

#[test]
fn kinds_have_names_of_their_own_and_bounds() {
    let mut names: Vec<&str> = kinds().iter().map(|kind| kind.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    for kind in kinds() {
        assert!(!kind.uses.is_empty() && !kind.why.is_empty() && kind.hold.0 <= kind.hold.1, "{kind:?}");
    }
}

#[test]
fn the_same_seed_makes_the_same_fault() {
    for kind in kinds() {
        let made = |seed| (kind.make)(&mut SmallRng::seed_from_u64(seed)).describe().to_owned();
        assert_eq!(made(7), made(7));
    }
}

#[test]
fn after_each_fault_the_shop_sells_and_settles() {
    let seed: u64 = std::env::var("CHAOS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("CHAOS_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut shop = Shop::open();
    let mut failed = Vec::new();
    for kind in possible(&chosen(), &shop.site, &|line| println!("{line}")) {
        let mut fault = (kind.make)(&mut rng);
        let tried = catch_unwind(AssertUnwindSafe(|| {
            let buyers = Buyers::come(&shop);
            wait_until(PATIENCE, "buyers", || buyers.bought() >= 4);
            let begun = Instant::now();
            fault.begin(&mut shop.site).unwrap();
            shop.wait_broken(kind);
            thread::sleep(kind.hold.0.max(Duration::from_secs(1)));
            fault.end(&mut shop.site).unwrap();
            let ended = Instant::now();
            buyers.leave();
            shop.site.check().unwrap();
            shop.sell();
            let recovered = ended.elapsed();
            shop.wait_whole();
            // Also what the sweeper publishes later.
            shop.site.world.wait_settled(&[&shop.voucher]);
            shop.assert_audit();
            (ended - begun, recovered, buyers.bought())
        }));
        match tried {
            Ok((broken, recovered, bought)) => {
                let what = fault.describe();
                println!("{}: {what}: broken for {broken:.1?} ({bought} bought), well after {recovered:.1?}", kind.name);
                if recovered > kind.bound {
                    failed.push(format!(
                        "{} took {recovered:.1?}, more than its bound of {:?}: {}",
                        kind.name, kind.bound, kind.why
                    ));
                }
            }
            Err(_) => {
                failed.push(format!("{}: {}", kind.name, fault.describe()));
                // What comes next needs a shop that is whole.
                drop(shop);
                shop = Shop::open();
            }
        }
    }
    // The same servers, nothing else of the old one.
    shop.site.next_world().unwrap();
    Shop::on(shop.site).assert_audit();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Buyers who come one after another, whatever they are told, as long as a fault lasts.
struct Buyers {
    leaving: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    bought: Arc<AtomicUsize>,
}

impl Buyers {
    /// Between two of one purchase process.
    const PAUSE: Duration = Duration::from_millis(50);

    fn come(shop: &Shop) -> Self {
        let (leaving, bought) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let one = |url: String| {
            let (leaving, bought, voucher) = (leaving.clone(), bought.clone(), shop.voucher.clone());
            thread::spawn(move || {
                while !leaving.load(Relaxed) {
                    let user = format!("passer-by-{}", rand::random::<u64>());
                    bought.fetch_add(usize::from(accepts(&url, &voucher, &user)), Relaxed);
                    thread::sleep(Self::PAUSE);
                }
            })
        };
        let threads = shop.site.fleet.urls().into_iter().map(one).collect();
        Self { leaving, threads, bought }
    }

    /// No more come.
    fn leave(&self) {
        self.leaving.store(true, Relaxed);
    }

    fn bought(&self) -> usize {
        self.bought.load(Relaxed)
    }
}

impl Drop for Buyers {
    fn drop(&mut self) {
        self.leave();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Shop {
    site: Site,
    voucher: VoucherId,
    sold: usize,
}

impl Shop {
    fn open() -> Self {
        Self::on(Site::new(Servers::start().unwrap(), Some(other_build())))
    }

    fn on(site: Site) -> Self {
        site.fleet.wait_ready();
        let voucher = site.world.voucher_id();
        site.world.open(&voucher, site.world.terms(1_000_000, 1, 1));
        let mut shop = Self { site, voucher, sold: 0 };
        // Something that can be lost.
        (0..10).for_each(|_| shop.sell());
        shop.site.world.wait_settled(&[&shop.voucher]);
        shop
    }

    /// Sees a fault in the processes it is about, where they show it.
    fn wait_broken(&self, kind: Kind) {
        let services =
            || Role::ALL.into_iter().filter(|role| kind.uses.contains(&role.name())).flat_map(|r| self.site.fleet.of(r));
        wait_until(PATIENCE, kind.name, || match kind.needs {
            Some(Need::OtherBuild) => {
                let of_other = services().filter(|service| is_of(service, &other_build())).count();
                let of_this = services().filter(|service| is_of(service, &testkit::binary())).count();
                of_other * of_this == 0 && of_other + of_this == services().count()
            }
            Some(Need::Clocks) if !kind.uses.contains(&"redis") => services().filter(|s| has_other_clock(s)).count() == 1,
            _ => true,
        });
    }

    /// Every second process is of the other build, and all clocks are right.
    fn wait_whole(&self) {
        let builds = [testkit::binary(), other_build()];
        let is_usual = |role| {
            let services = self.site.fleet.of(role);
            services.iter().zip(&builds).all(|(service, build)| is_of(service, build)) && !services.iter().any(has_other_clock)
        };
        wait_until(PATIENCE, "usual builds and clocks", || Role::ALL.into_iter().all(is_usual));
    }

    /// Redis, the log and Postgres tell the same story. On a busy machine one of them may fail to answer in time.
    fn assert_audit(&self) {
        const TRIES: usize = 10;
        let told = (0..TRIES).map(|_| self.site.world.audit()).find(|audit| !matches!(audit.verdict, Verdict::CannotTell { .. }));
        assert_eq!(told.as_ref().map(|audit| &audit.verdict), Some(&Verdict::Equal), "{told:#?}");
    }

    /// Every purchase process accepts a purchase, and nothing appended is left to do.
    fn sell(&mut self) {
        for url in self.site.fleet.urls() {
            self.sold += 1;
            let user = format!("buyer-{}", self.sold);
            let begun = Instant::now();
            while !accepts(&url, &self.voucher, &user) {
                assert!(begun.elapsed() < PATIENCE, "{url} sells nothing for {PATIENCE:?}");
                thread::sleep(Duration::from_millis(100));
            }
        }
        let world = &self.site.world;
        wait_until(PATIENCE, "no lag", || {
            block_on(replay::lag(world.connections(), &world.codec())).is_ok_and(|lag| lag.is_none())
        });
    }
}

/// The same program under another path: to the run, another build.
fn other_build() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("other-build");
    // There since an earlier call.
    let _ = std::os::unix::fs::symlink(testkit::binary(), &path);
    path
}

/// Whether a service's process was started by this path.
fn is_of(service: &Service, path: &Path) -> bool {
    let line = service.process.pid().map(|pid| fs::read(format!("/proc/{pid}/cmdline")));
    line.is_some_and(|line| line.is_ok_and(|line| line.split(|byte| *byte == 0).next() == Some(path.as_os_str().as_bytes())))
}

fn has_other_clock(service: &Service) -> bool {
    let maps = service.process.pid().map(|pid| fs::read_to_string(format!("/proc/{pid}/maps")));
    maps.is_some_and(|maps| maps.is_ok_and(|maps| maps.contains("libwrong_clock")))
}

fn accepts(url: &str, voucher: &VoucherId, user: &str) -> bool {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap();
    let request = client.post(format!("{url}/v1/vouchers/{voucher}/orders")).bearer_auth(token(user));
    block_on(async { request.send().await.is_ok_and(|answer| answer.status().is_success()) })
}
