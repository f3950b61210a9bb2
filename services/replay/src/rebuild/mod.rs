//! The tables built anew from `order-events`, beside the live ones and while a sale goes on, and compared with them.
//!
//! The log is folded up to where it ended at the start. Then a snapshot of the live tables names how far each lane had come; what was
//! published is in it, since it was committed there first. The rest is folded up to exactly there, and every row is compared. A swap
//! folds once more, while the lanes stand still, up to where they stand: so the new tables hold all that the old ones did, and the
//! lanes' positions, which stay, fit them.

mod fold;
mod shadow;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use domain::{State, Voucher, VoucherId};
use events::Codec;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use infra::{
    config::Connections,
    postgres::{Fault, rows::order_of},
};
use serde::Serialize;
use tokio::sync::mpsc;

use self::{
    fold::{Chunk, Partition},
    shadow::{REPLACED, Shadow, Swap as Swapping, Writer},
};
use crate::{
    ReplayError, Verdict,
    audit::log::merge,
    compare, snapshot,
    verdict::{Findings, Kind},
    walk::{Log, PartitionRead, blocking, open_all, partitions},
};

/// Partitions folded side by side: each has a session of Postgres, and a chunk or two in memory.
const SIDE_BY_SIDE: usize = 4;

/// Longest wait for such events while the lanes stand still; below the 2 s after which they give up a wait.
const STANDSTILL: Duration = Duration::from_secs(1);

/// Tries of a swap that meets somebody who uses the tables, and the pause between two.
const SWAP_TRIES: u32 = 5;
const SWAP_PAUSE: Duration = Duration::from_millis(500);

/// Rows between two looks at the progress.
const TELL_EVERY: u64 = 1_000;

/// When the new tables take the place of the live ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Swap {
    #[default]
    Never,
    WhenEqual,
    /// Also when they differ; the old ones are kept.
    Always,
}

/// How a rebuild is made.
#[derive(Clone, Debug)]
pub struct RebuildOptions {
    /// The file of a snapshot to begin with, instead of with nothing at offset 0.
    pub from: Option<PathBuf>,
    /// The address of another database in which the tables are built, and stay. Never swapped.
    pub into: Option<String>,
    pub swap: Swap,
    /// How long to wait for events that Postgres has already.
    pub patience: Duration,
    /// Orders of a partition that are kept in memory before they are written.
    pub chunk: usize,
}

impl Default for RebuildOptions {
    fn default() -> Self {
        Self { from: None, into: None, swap: Swap::Never, patience: Duration::from_secs(10), chunk: 10_000 }
    }
}

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Offsets of `order-events` passed, of those that were there at the start.
    Fold {
        done: u64,
        of: u64,
    },
    Index,
    /// Rows compared, of about so many.
    Compare {
        done: u64,
        of: u64,
    },
    Swap,
}

/// Is told how far a rebuild is, from several threads.
pub type Watch = Arc<dyn Fn(Progress) + Send + Sync>;

/// What became of the swap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "swap", rename_all = "snake_case")]
pub enum Swapped {
    #[default]
    NotAsked,
    /// `kept`: the schema in which the old tables are, where they differed.
    Done { kept: Option<&'static str> },
    /// Nothing was changed.
    Refused { reason: String },
}

/// What a rebuild read and what it says.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rebuild {
    #[serde(flatten)]
    pub verdict: Verdict,
    #[serde(flatten)]
    pub swapped: Swapped,
    pub partitions: Vec<PartitionRead>,
    pub vouchers: usize,
    /// Live rows of orders compared.
    pub order_rows: u64,
    pub fold_seconds: f64,
    pub index_seconds: f64,
    pub compare_seconds: f64,
}

/// Rebuilds and compares. What cannot be asked or read gives [`Verdict::CannotTell`], and leaves everything as it was.
pub async fn rebuild(connections: &Connections, codec: &Codec, options: &RebuildOptions, watch: Watch) -> Rebuild {
    let (mut told, mut findings) = (Rebuild::default(), Findings::default());
    if let Err(error) = work(connections, codec, options, watch, &mut told, &mut findings).await {
        match &error {
            ReplayError::Database(refused) if refused.fault() == Fault::Constraint => {
                findings.differs(Kind::Refused, error.to_string());
            }
            _ => findings.doubt(error.to_string()),
        }
        told.verdict = findings.verdict();
    }
    told
}

async fn work(
    connections: &Connections,
    codec: &Codec,
    options: &RebuildOptions,
    watch: Watch,
    told: &mut Rebuild,
    findings: &mut Findings,
) -> Result<(), ReplayError> {
    let (count, log, chunk) = (partitions(connections).await?, Log::of(connections, codec), options.chunk);
    let base = match &options.from {
        Some(path) => Some(snapshot::open(connections, path).await?),
        None => None,
    };
    let header = base.as_ref().map(|base| base.header.clone());
    let opened = open_all(count, move |partition| {
        let walk = log.events(partition)?;
        let begin = header.as_ref().map_or((0, 0), |header| header.begin(partition));
        let end = walk.whole_from(begin.0)?.stable;
        Ok(Partition::new(walk, begin, end, chunk))
    })
    .await?;
    infra::postgres::check_schema(&infra::postgres::pool(connections, 1)?).await?;
    let target =
        Connections { postgres: options.into.clone().unwrap_or_else(|| connections.postgres.clone()), ..connections.clone() };
    let shadow = Shadow::make(&target).await.map_err(|error| match error {
        ReplayError::Database(error) if options.into.is_some() => ReplayError::Into(error),
        error => error,
    })?;
    let mut build = Build { connections, shadow, partitions: Vec::new() };
    let done = build.make(opened, base, options, &watch, told, findings).await;
    if options.into.is_none() && !matches!(told.swapped, Swapped::Done { .. }) {
        return done.and(build.shadow.drop().await);
    }
    done
}

struct Build<'a> {
    connections: &'a Connections,
    shadow: Shadow,
    partitions: Vec<Partition>,
}

impl Build<'_> {
    async fn make(
        &mut self,
        mut opened: Vec<Partition>,
        base: Option<snapshot::Reader>,
        options: &RebuildOptions,
        watch: &Watch,
        told: &mut Rebuild,
        findings: &mut Findings,
    ) -> Result<(), ReplayError> {
        let mut started = Instant::now();
        let mut lap = || std::mem::replace(&mut started, Instant::now()).elapsed().as_secs_f64();
        if let Some(base) = base {
            self.begin_with(base, &mut opened, options.chunk).await?;
        }
        self.partitions = self.load(opened, watch).await?;
        told.fold_seconds = lap();
        watch(Progress::Index);
        self.shadow.index().await?;
        told.index_seconds = lap();

        let live = infra::postgres::connect(self.connections).await?;
        let snapshot = compare::open(&live, &self.connections.topics.requests).await?;
        let of = self.partitions.iter().map(|p| p.fold.events).sum();
        watch(Progress::Compare { done: 0, of });
        let caught_up = self.catch_up(&snapshot.positions, options.patience).await;
        let vouchers = self.vouchers(findings);
        self.shadow.write_vouchers(&vouchers.values().cloned().collect::<Vec<_>>()).await?;
        // What is published was committed first.
        for (partition, next, position) in self.ahead(&snapshot.positions) {
            let what =
                format!("partition {partition}: the log answers requests up to {next}, but the lane's position is {position}");
            findings.differs(Kind::PostgresBehind, what);
        }
        let built = self.shadow.loader().await?;
        // Rows of a log that is late would differ only because they are of another moment.
        if findings.unless_late(caught_up)?.is_some() {
            compare::compare_vouchers(&snapshot.vouchers, &vouchers, findings);
            let by_log = compare::orders(&built.client).await?.map(|row| Ok(order_of(&row?)?));
            let passed = |done| {
                if done % TELL_EVERY == 0 {
                    watch(Progress::Compare { done, of });
                }
            };
            told.order_rows = compare::compare_orders(compare::orders(&live).await?, by_log, findings, passed).await?;
        }
        told.vouchers = vouchers.len();
        let read = |p: &Partition| PartitionRead {
            partition: p.events.partition,
            begin: p.begin,
            end: p.end,
            events: p.fold.events,
            next_request: p.fold.next_request,
        };
        told.partitions = self.partitions.iter().map(read).collect();
        told.compare_seconds = lap();
        told.verdict = std::mem::take(findings).verdict();
        // Its snapshot would be the first to stand in the way.
        drop((live, built));
        let keep = match (options.swap, &told.verdict) {
            (Swap::WhenEqual | Swap::Always, Verdict::Equal) => false,
            (Swap::Always, Verdict::Different { .. }) => true,
            (Swap::Never, _) => return Ok(()),
            _ => {
                told.swapped = Swapped::Refused {
                    reason: "the tables are not equal; --accept-differences takes what the log says".to_owned(),
                };
                return Ok(());
            }
        };
        watch(Progress::Swap);
        told.swapped = match self.swap(keep).await {
            Ok(()) => Swapped::Done { kept: keep.then_some(REPLACED) },
            Err(error @ ReplayError::Unknown(_)) => return Err(error),
            Err(error) => Swapped::Refused { reason: error.to_string() },
        };
        Ok(())
    }

    /// Takes the rows of a snapshot over; its vouchers are those that the partitions begin with.
    async fn begin_with(&self, mut base: snapshot::Reader, opened: &mut [Partition], chunk: usize) -> Result<(), ReplayError> {
        let loader = self.shadow.loader().await?;
        loop {
            let (read, rows) = snapshot::next_rows(base, chunk).await?;
            base = read;
            if rows.is_empty() {
                return base.end().map(drop);
            }
            for voucher in rows.vouchers {
                let place = usize::try_from(voucher.terms.partition).ok().and_then(|number| opened.get_mut(number));
                let place = place.ok_or_else(|| base.bad(format!("voucher {} is of no partition of the log", voucher.id)))?;
                place.fold.state.vouchers.insert(voucher.id.clone(), voucher);
            }
            loader.write(&Chunk { orders: rows.orders, changed: Vec::new() }).await?;
        }
    }

    /// Folds all partitions up to where they ended, some side by side, into tables without indexes.
    async fn load(&self, opened: Vec<Partition>, watch: &Watch) -> Result<Vec<Partition>, ReplayError> {
        let of = opened.iter().map(|p| p.end.abs_diff(p.begin)).sum();
        let done = Arc::new(AtomicU64::new(0));
        watch(Progress::Fold { done: 0, of });
        let one = |partition: Partition| {
            let (watch, done, end) = (watch.clone(), done.clone(), partition.end);
            let passed = move |offsets: i64| {
                let offsets = offsets.unsigned_abs();
                watch(Progress::Fold { done: done.fetch_add(offsets, Ordering::Relaxed) + offsets, of });
            };
            async move { read(partition, end, i64::MAX, passed, &self.shadow.loader().await?).await }.boxed()
        };
        stream::iter(opened).map(one).buffered(SIDE_BY_SIDE).try_collect().await
    }

    /// Folds on up to the lanes' positions; [`ReplayError::NotNow`] where the log does not come so far in time.
    async fn catch_up(&mut self, positions: &HashMap<i32, i64>, patience: Duration) -> Result<(), ReplayError> {
        let until = Instant::now() + patience;
        let known = |number: &i32| self.partitions.iter().any(|p| p.events.partition == *number);
        if let Some((new, _)) = positions.iter().find(|(number, position)| **position > 0 && !known(number)) {
            return Err(ReplayError::NotNow(format!("partition {new} was added meanwhile: rebuild again")));
        }
        let mut done = Ok(());
        for mut partition in std::mem::take(&mut self.partitions) {
            let position = positions.get(&partition.events.partition).copied().unwrap_or(0);
            // What is there is read first: mostly that is all, and the lanes may be standing still.
            for waits in [false, true] {
                if partition.fold.next_request >= position || done.is_err() {
                    break;
                }
                let ends;
                (partition, ends) = blocking(move || {
                    let (walk, from) = (&mut partition.events, partition.from);
                    let ends = if waits { walk.wait_answered(position, Some(from), until) } else { walk.whole_from(from) };
                    Ok((partition, ends))
                })
                .await?;
                match ends {
                    Ok(ends) => partition = read(partition, ends.stable, position, |_| (), self.shadow.adder()).await?,
                    Err(error) => done = Err(error),
                }
            }
            self.partitions.push(partition);
        }
        done
    }

    /// The vouchers of all partitions, and what was found on the way to them.
    fn vouchers(&mut self, findings: &mut Findings) -> HashMap<VoucherId, Voucher> {
        let mut all = State::default();
        for partition in &mut self.partitions {
            findings.add(std::mem::take(&mut partition.fold.findings));
            let vouchers = partition.fold.state.vouchers.clone();
            merge(&mut all, State { vouchers, ..State::default() }, findings);
        }
        all.vouchers
    }

    /// Partitions folded beyond the lane's position: which, the next request of the log, the position.
    fn ahead(&self, positions: &HashMap<i32, i64>) -> Vec<(i32, i64, i64)> {
        let place = |p: &Partition| {
            let number = p.events.partition;
            (number, p.fold.next_request, positions.get(&number).copied().unwrap_or(0))
        };
        self.partitions.iter().map(place).filter(|(_, next, position)| next > position).collect()
    }

    /// An error says why not, and that nothing was changed; but for [`ReplayError::Unknown`].
    async fn swap(&mut self, keep: bool) -> Result<(), ReplayError> {
        let left = Swapping::left_behind(self.connections).await?;
        if !left.is_empty() {
            let what = format!("the live tables have what the new ones would lack: {}", left.join(", "));
            return Err(ReplayError::NotNow(what));
        }
        let mut tries = SWAP_TRIES;
        loop {
            tries -= 1;
            match self.try_swap(keep).await {
                Err(ReplayError::NotNow(_)) if tries > 0 => tokio::time::sleep(SWAP_PAUSE).await,
                done => return done,
            }
        }
    }

    async fn try_swap(&mut self, keep: bool) -> Result<(), ReplayError> {
        let swap = Swapping::connect(self.connections).await?;
        // Most of the way, and most of the waiting, while everybody goes on.
        self.follow(&swap, keep).await?;
        swap.begin().await?;
        self.follow(&swap, keep).await?;
        swap.commit(keep).await
    }

    /// Brings the new tables to where the lanes are now, and waits until nobody looks at the database as it was before. A log that goes wrong on
    /// the way ends the swap for good, unless (`keep`) what it says is taken whatever it is.
    async fn follow(&mut self, swap: &Swapping, keep: bool) -> Result<(), ReplayError> {
        let positions = compare::positions(swap.live(), &self.connections.topics.requests).await?;
        self.catch_up(&positions, STANDSTILL).await?;
        if let Some((partition, next, position)) = self.ahead(&positions).first() {
            return Err(ReplayError::NotNow(format!(
                "partition {partition}: Postgres has lost commits, the log answers requests up to {next} and the lane stands at {position}: \
                 the orders service folds them in when it runs"
            )));
        }
        let mut findings = Findings::default();
        let vouchers = self.vouchers(&mut findings);
        let written = self.shadow.write_vouchers(&vouchers.into_values().collect::<Vec<_>>()).await?;
        if let (Verdict::Different { first, .. }, false) = (findings.verdict(), keep) {
            return Err(ReplayError::WentWrong(first.first().map_or(String::new(), |difference| difference.what.clone())));
        }
        swap.wait_for_snapshots(&written).await
    }
}

/// Reads on in a partition on a thread of its own while what it hands over is written; a few chunks at most wait.
async fn read(
    mut partition: Partition,
    to: i64,
    position: i64,
    passed: impl Fn(i64) + Send + 'static,
    into: &Writer,
) -> Result<Partition, ReplayError> {
    let (sender, mut chunks) = mpsc::channel(1);
    let reading = blocking(move || {
        partition.read(to, position, &mut |chunk| sender.blocking_send(chunk).map_err(|_| ReplayError::Thread), &passed)?;
        drop(sender);
        Ok(partition)
    });
    let writing = async move {
        while let Some(chunk) = chunks.recv().await {
            into.write(&chunk).await?;
        }
        Ok(())
    };
    // Why nobody takes chunks any more comes before that.
    let (written, read): (Result<(), ReplayError>, _) = tokio::join!(writing, reading);
    written?;
    read
}
