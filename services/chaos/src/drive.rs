//! One run: epochs of rounds of faults, each epoch a world of its own that is judged when it is over.
//!
//! A round breaks one thing, or several that have nothing in common, holds that for a while, makes everything whole again and measures how
//! long it takes until every purchase process accepts and everything that had been asked for by then is decided and settled. Nobody helps.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use domain::VoucherId;
use infra::{kafka::PartitionReader, redis::Store};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use testkit::{World, block_on};

use crate::{
    buyers::{Buyers, Plan},
    check,
    fault::{self, Fault, Kind},
    keeper::Keeper,
    ledger::{Ledger, Trouble},
    report::{self, Report},
    site::{Servers, Site},
};

/// What to do.
#[derive(Clone, Debug)]
pub struct Run {
    /// Of the first epoch; each further one counts on.
    pub seed: u64,
    /// No epoch begins after this.
    pub length: Duration,
    /// Rounds of an epoch begin within this; the judgement comes on top.
    pub epoch: Duration,
    /// Visits of buyers a second.
    pub rate: f64,
    /// What may be broken, where it is possible.
    pub kinds: Vec<Kind>,
    /// The binary of another build, of which every second process of each service is.
    pub other: Option<PathBuf>,
}

/// For the keeper's first voucher to be on sale.
const OPENING: Duration = Duration::from_secs(60);
/// For an epoch to come to rest once all faults are over and nobody buys: above the longest bound of a fault, the sweeper's turn and the
/// warden's.
const REST: Duration = Duration::from_secs(180);
/// A recovery that takes longer than its bound is a violation; it is waited for so many times longer to tell late from never.
const LATE: u32 = 4;
/// Longest pause between two rounds, and between the begins of a round's faults.
const PAUSE: Duration = Duration::from_millis(1_500);
/// Between two looks.
const POLL: Duration = Duration::from_millis(100);
/// A rare kind is drawn once where another is drawn so many times.
const RARE: f64 = 4.0;

/// Runs to the end.
///
/// # Errors
/// When the servers cannot be started, or no kind of fault is possible.
///
/// # Panics
/// At the first broken promise or fault that cannot be made or ended, saying what was counted until then and what to call to see it again.
/// As a panic, since unwinding keeps the logs of the services and prints their ends.
pub fn run(run: &Run, say: &dyn Fn(&str)) -> Result<Report> {
    let began = Instant::now();
    let mut report = Report::default();
    let mut site = Site::new(Servers::start()?, run.other.clone());
    let kinds = fault::possible(&run.kinds, &site, say);
    ensure!(!kinds.is_empty(), "none of the kinds of faults is possible here");
    let run = &Run { kinds, ..run.clone() };
    for seed in run.seed.. {
        report.epochs += 1;
        say(&format!("epoch {}: seed {seed}, world {}", report.epochs, site.world.connections().prefix));
        let (ledger, faults) = (Ledger::new(), report.faults);
        let outcome = epoch(run, seed, &mut site, &ledger, &mut report, say);
        let counts = ledger.counts();
        report.answers += counts;
        report.took = began.elapsed();
        if let Err(error) = outcome {
            let counted = format!("{} orders accepted, {counts}, {} faults", counts.orders, report.faults - faults);
            let minutes = run.epoch.as_secs().div_ceil(60);
            let other = run.other.as_deref().and_then(Path::parent).map(|folder| format!(" OTHER={}", folder.display()));
            let again = format!("make chaos SEED={seed} MINUTES={minutes}{}", other.unwrap_or_default());
            panic!("{error:#}\n\nthis epoch until then: {counted}\nthe run so far: {report}\nto see it again: {again}");
        }
        if began.elapsed() >= run.length {
            break;
        }
        site.next_world()?;
    }
    Ok(report)
}

fn epoch(run: &Run, seed: u64, site: &mut Site, ledger: &Ledger, report: &mut Report, say: &dyn Fn(&str)) -> Result<()> {
    let began = Instant::now();
    let mut random = SmallRng::seed_from_u64(seed);
    site.fleet.wait_ready();
    let keeper = Keeper::start(&site.world, seed, ledger.clone())?;
    let plan = Plan::new(seed, run.rate);
    let buyers = Buyers::start(&site.world, site.fleet.urls(), plan, ledger.clone())?;
    let recovery = Recovery { ledger, after: began };
    recovery.wait(site, OPENING).context("the sale does not begin")?;
    while began.elapsed() < run.epoch {
        thread::sleep(PAUSE.mul_f64(random.random()));
        round(run, &mut random, site, ledger, report, say)?;
    }
    buyers.stop();
    keeper.stop();
    let summary = check::check(&site.world, ledger, REST).map_err(|violations| {
        let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{} violations\n{}", violations.len(), all.join("\n"))
    })?;
    say(&format!("epoch holds: {summary}"));
    report.orders += summary.orders;
    report.confirmed += summary.confirmed;
    report.requests += summary.requests;
    Ok(())
}

fn round(
    run: &Run,
    random: &mut SmallRng,
    site: &mut Site,
    ledger: &Ledger,
    report: &mut Report,
    say: &dyn Fn(&str),
) -> Result<()> {
    let kinds = draw(&run.kinds, random);
    report.faults += kinds.len();
    let mut faults: Vec<(Kind, Fault, Duration)> =
        kinds.iter().map(|kind| (*kind, (kind.make)(random), random.random_range(kind.hold.0..=kind.hold.1))).collect();
    let what: Vec<String> =
        faults.iter().map(|(_, fault, hold)| format!("{} for {:.1} s", fault.describe(), hold.as_secs_f64())).collect();
    let what = what.join(" + ");
    say(&what);
    let began = Instant::now();
    let mut ends = Vec::new();
    for (kind, fault, hold) in &mut faults {
        fault.begin(site).with_context(|| format!("{} could not be begun", kind.name))?;
        ends.push(Instant::now() + *hold);
        if kinds.len() > 1 {
            thread::sleep(PAUSE.mul_f64(random.random()));
        }
    }
    let mut order: Vec<usize> = (0..faults.len()).collect();
    order.sort_by_key(|index| ends[*index]);
    for index in order {
        thread::sleep(ends[index].saturating_duration_since(Instant::now()));
        let (kind, fault, _) = &mut faults[index];
        fault.end(site).with_context(|| format!("{} could not be ended", kind.name))?;
    }
    let ended = Instant::now();
    site.check().context("the site is not whole after a round")?;
    let bound = report::bound(&kinds);
    let recovery = Recovery { ledger, after: ended };
    recovery.wait(site, bound * LATE).with_context(|| format!("after {what}"))?;
    let with = kinds.iter().flat_map(|kind| kind.uses).copied().collect();
    ledger.trouble(Trouble { from: began, to: Instant::now(), with });
    let took = ended.elapsed();
    say(&format!("  well again after {:.1} s (bound {} s)", took.as_secs_f64(), bound.as_secs()));
    if took > bound {
        bail!("after {what}: well again only after {:.1} s, its bound is {} s", took.as_secs_f64(), bound.as_secs());
    }
    report.recovered(&kinds, took);
    Ok(())
}

/// One kind, or two or three that touch nothing in common.
fn draw(kinds: &[Kind], random: &mut SmallRng) -> Vec<Kind> {
    let count = match random.random_range(0..10) {
        0..6 => 1,
        6..9 => 2,
        _ => 3,
    };
    let mut drawn: Vec<Kind> = Vec::new();
    let mut used: HashSet<&str> = HashSet::new();
    while drawn.len() < count {
        let free: Vec<&Kind> = kinds.iter().filter(|kind| kind.uses.iter().all(|thing| !used.contains(thing))).collect();
        let weight = |kind: &&Kind| if kind.rare { 1.0 / RARE } else { 1.0 };
        let Ok(kind) = free.choose_weighted(random, weight) else { break };
        used.extend(kind.uses);
        drawn.push(**kind);
    }
    drawn
}

/// What being well again means: after this instant each purchase process has accepted, and every request that was in the log when it was
/// asked first is decided, published and settled.
struct Recovery<'a> {
    ledger: &'a Ledger,
    after: Instant,
}

impl Recovery<'_> {
    fn wait(&self, site: &Site, limit: Duration) -> Result<()> {
        let (mut ends, mut seqs) = (None, None);
        loop {
            let missing = match self.look(site, &mut ends, &mut seqs) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if self.after.elapsed() > limit {
                bail!("not well again after {:.1} s: {missing:#}", self.after.elapsed().as_secs_f64());
            }
            thread::sleep(POLL);
        }
    }
    /// What is not yet so, as an error.
    fn look(&self, site: &Site, ends: &mut Option<Vec<i64>>, seqs: &mut Option<Vec<(VoucherId, i64)>>) -> Result<()> {
        if ends.is_none() {
            *ends = Some(requested(&site.world)?);
        }
        let unmet = |index: &usize| self.ledger.accepted_after(self.after, *index).is_none();
        if let Some(index) = (0..site.fleet.urls().len()).find(unmet) {
            bail!("purchase process {index} has accepted nothing");
        }
        if seqs.is_none() {
            *seqs = Some(block_on(decided(&site.world, ends.as_deref().unwrap_or_default()))?);
        }
        block_on(settled(&site.world, seqs.as_deref().unwrap_or_default()))
    }
}

/// The ends of the requests now, by partition.
fn requested(world: &World) -> Result<Vec<i64>> {
    let topic = &world.connections().topics.requests;
    let end = |partition| Ok(PartitionReader::open(world.connections(), topic, partition)?.ends()?.high);
    (0..world.partitions()).map(end).collect()
}

/// Once every request below these ends is decided in Postgres: each voucher and how far it is decided.
async fn decided(world: &World, ends: &[i64]) -> Result<Vec<(VoucherId, i64)>> {
    let pool = infra::postgres::pool(world.connections(), 1)?;
    let topic = &world.connections().topics.requests;
    for (partition, end) in (0..).zip(ends) {
        let next = infra::postgres::next_offset(&pool, topic, partition).await?.unwrap_or(0);
        ensure!(next >= *end, "partition {partition} is decided up to {next} of {end}");
    }
    let vouchers = infra::postgres::vouchers(&pool, None).await?;
    Ok(vouchers.into_iter().map(|voucher| (voucher.id, voucher.seq)).collect())
}

/// Whether Redis has settled each voucher as far.
async fn settled(world: &World, seqs: &[(VoucherId, i64)]) -> Result<()> {
    let store = Store::connect(&world.connections().redis).await?;
    for (voucher, seq) in seqs {
        let at = store.voucher(voucher).await?.map_or(0, |found| found.seq);
        ensure!(at >= *seq, "voucher {voucher} is settled up to {at} of {seq}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::kinds;

    #[test]
    fn faults_of_a_round_share_nothing_and_a_seed_draws_the_same_ones_again() {
        let names = |seed| {
            let mut random = SmallRng::seed_from_u64(seed);
            (0..200).map(|_| draw(kinds(), &mut random)).collect::<Vec<_>>()
        };
        for drawn in names(1) {
            let used: Vec<_> = drawn.iter().flat_map(|kind| kind.uses).collect();
            let different: HashSet<_> = used.iter().collect();
            assert_eq!(different.len(), used.len(), "{drawn:?}");
        }
        let all = |seed| names(seed).concat().iter().map(|kind| kind.name).collect::<Vec<_>>();
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let met: HashSet<_> = all(1).into_iter().collect();
        assert!(met.len() * 3 > kinds().len() * 2, "200 rounds met only {met:?}");
    }
}
