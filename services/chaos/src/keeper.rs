//! The shop keeper of a chaos run: publishes vouchers with the real command line and changes them while people buy, by a seed. What he did,
//! and what he was told, goes into the [`Ledger`].
//!
//! One large voucher a partition stays on sale to the end, so that purchases can be seen to be accepted again after a fault. The others
//! come and go: small ones that sell out, ones that are paused, resumed, grown, shrunk and closed, ones whose window begins later or ends
//! soon.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context;
use domain::VoucherId;
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IteratorRandom};
use testkit::{World, block_on};

use crate::ledger::{Change, Deed, Done, Ledger, Offer};

/// Units of the voucher that stays on sale: more than any run sells.
const ENDLESS: i64 = 1_000_000;

/// Part of the calls that go to such a voucher; every other gets one.
const ENDLESS_SHARE: u32 = 12;

/// Between two deeds.
const PAUSE: std::ops::Range<Duration> = Duration::from_millis(300)..Duration::from_millis(2_500);

/// How long the command line waits for a decision. Servers may be away much longer; then the deed's outcome is unknown.
const DECISION: &str = "10s";

/// For one run of the command line, its other time-outs included; then it is killed.
const COMMAND: Duration = Duration::from_secs(40);

/// Vouchers besides the endless ones that are not closed. Above it, the next deed is a closing.
const MOST_AT_ONCE: usize = 14;

/// Vouchers that cannot be bought any more and are still asked for; buyers do come too late.
const ASKED_FOR_IN_VAIN: usize = 3;

/// Exit codes of the command line: done, refused; every other says that it could not tell.
const OK: i32 = 0;
const REFUSED: i32 = 1;

/// A keeper at work until he is stopped.
pub struct Keeper {
    stop: Sender<()>,
    thread: Option<JoinHandle<Vec<VoucherId>>>,
}

impl Keeper {
    /// Begins to publish. Buyers find the vouchers in the ledger, the large ones first.
    pub fn start(world: &World, seed: u64, ledger: Ledger) -> anyhow::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let shop = Shop {
            ledger,
            stopped,
            program: testkit::binary(),
            env: world.env_vars(),
            prefix: world.connections().prefix.clone(),
            partitions: world.partitions(),
            random: SmallRng::seed_from_u64(seed),
            articles: Vec::new(),
            number: 0,
        };
        let work = move || shop.work();
        let thread = std::thread::Builder::new().name("keeper".to_owned()).spawn(work).context("no thread")?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Lets him finish what he is at (at most 40 s for each voucher he left paused), and gives all vouchers he published or may have.
    pub fn stop(mut self) -> Vec<VoucherId> {
        self.end()
    }

    fn end(&mut self) -> Vec<VoucherId> {
        // Gone already where he panicked, which joining tells.
        let _ = self.stop.send(());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(vouchers)) => vouchers,
            Some(Err(panic)) if !std::thread::panicking() => std::panic::resume_unwind(panic),
            _ => Vec::new(),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a voucher is sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Endless,
    Small,
    /// Begins a few seconds after it is published.
    Later,
    /// Ends some seconds after it is published.
    Short,
}

/// Where a voucher stands, as far as the keeper knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Open,
    Paused,
    Closed,
}

struct Article {
    voucher: VoucherId,
    kind: Kind,
    per_user_limit: i64,
    stand: Stand,
    /// When its window ends, where that is soon.
    ends: Option<Instant>,
}

impl Article {
    fn can_be_bought(&self) -> bool {
        self.stand != Stand::Closed && self.ends.is_none_or(|ends| Instant::now() < ends)
    }
}

struct Shop {
    ledger: Ledger,
    stopped: Receiver<()>,
    program: PathBuf,
    env: Vec<(String, String)>,
    prefix: String,
    partitions: i32,
    random: SmallRng,
    articles: Vec<Article>,
    number: u32,
}

impl Shop {
    fn work(mut self) -> Vec<VoucherId> {
        let mut stop = false;
        for kind in [Kind::Endless, Kind::Small, Kind::Later, Kind::Short] {
            for partition in 0..self.partitions {
                while !stop && !self.publish(kind, partition) {
                    stop = self.rest();
                }
            }
        }
        while !stop && !self.rest() {
            self.act();
        }
        for at in 0..self.articles.len() {
            if self.articles[at].stand == Stand::Paused {
                self.change(at, Change::Resume);
            }
        }
        self.articles.into_iter().map(|article| article.voucher).collect()
    }

    /// Waits a while; says whether he is asked to stop.
    fn rest(&mut self) -> bool {
        let pause = self.random.random_range(PAUSE);
        !matches!(self.stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }

    /// Does one thing.
    fn act(&mut self) {
        let alive = |kind: Option<Stand>| {
            move |article: &Article| {
                article.kind != Kind::Endless && article.can_be_bought() && kind.is_none_or(|kind| article.stand == kind)
            }
        };
        let paused = self.one(alive(Some(Stand::Paused)));
        let open = self.one(alive(Some(Stand::Open)));
        let any = self.one(alive(None));
        let full = self.articles.iter().filter(|a| alive(None)(a)).count() >= MOST_AT_ONCE;
        let drawn = if full { 99 } else { self.random.random_range(0..100) };
        match (drawn, paused, open, any) {
            (0..20, Some(at), _, _) => self.change(at, Change::Resume),
            (20..35, _, Some(at), _) => self.change(at, Change::Pause),
            (35..55, _, _, Some(at)) => {
                let delta = self.random.random_range(1..=60);
                self.change(at, Change::Stock { delta });
            }
            // Refused where more units are sold than would be left.
            (55..65, _, _, Some(at)) => {
                let delta = -self.random.random_range(1..=20);
                self.change(at, Change::Stock { delta });
            }
            (85.., _, _, Some(at)) => self.change(at, Change::Close),
            _ => {
                let kinds = [Kind::Small, Kind::Small, Kind::Later, Kind::Short];
                let kind = kinds[self.random.random_range(0..kinds.len())];
                let partition = self.random.random_range(0..self.partitions);
                self.publish(kind, partition);
            }
        }
    }

    fn one(&mut self, wanted: impl Fn(&Article) -> bool) -> Option<usize> {
        let found = self.articles.iter().enumerate().filter(|(_, article)| wanted(article)).map(|(at, _)| at);
        found.choose(&mut self.random)
    }

    /// Puts a voucher on sale; says whether it was. Where that is not known it is offered all the same, and asked for in vain at worst.
    fn publish(&mut self, kind: Kind, partition: i32) -> bool {
        self.number += 1;
        let id = format!("{}-v{}", self.prefix, self.number);
        let voucher = VoucherId::parse(&id).expect("a world's prefix is short and plain");
        let random = &mut self.random;
        let (total, per_user_limit) = match kind {
            Kind::Endless => (ENDLESS, [1, 4][(partition % 2) as usize]),
            _ => (random.random_range(20..=400), random.random_range(1..=3)),
        };
        let ends_in = match kind {
            Kind::Short => Some(Duration::from_secs(random.random_range(8..=40))),
            _ => None,
        };
        let begins_in = if kind == Kind::Later { random.random_range(2..=6) } else { 0 };
        let (units, limit) = (total.to_string(), per_user_limit.to_string());
        let (begins, ends) = (format!("+{begins_in}s"), format!("+{}s", ends_in.map_or(24 * 3_600, |e| e.as_secs())));
        let partition = partition.to_string();
        let published = Instant::now();
        let what = ["publish", &id, "--title", "A doorbuster", "--price", "1000", "--units", &units, "--per-user", &limit];
        let when_and_where = ["--begins", &begins, "--ends", &ends, "--partition", &partition];
        let args = [what.as_slice(), &when_and_where].concat();
        let done = self.command(&voucher, Change::Publish { total, per_user_limit }, &args);
        if !matches!(done, Done::Refused(_)) {
            let ends = ends_in.map(|ends| published + ends);
            self.articles.push(Article { voucher, kind, per_user_limit, stand: Stand::Open, ends });
            self.offer();
        }
        done == Done::Yes
    }

    fn change(&mut self, at: usize, change: Change) {
        let voucher = self.articles[at].voucher.clone();
        let delta = match change {
            Change::Stock { delta } => delta.to_string(),
            _ => String::new(),
        };
        let args: &[&str] = match change {
            Change::Publish { .. } => return,
            Change::Stock { .. } => &["stock", voucher.as_str(), "--delta", &delta],
            Change::Pause => &["pause", voucher.as_str()],
            Change::Resume => &["resume", voucher.as_str()],
            Change::Close => &["close", voucher.as_str()],
        };
        let done = self.command(&voucher, change, args);
        // What may have been done is taken for done, so that it is mended (a pause) or left in peace (a closed voucher).
        let article = &mut self.articles[at];
        article.stand = match (change, &done) {
            (Change::Pause, Done::Yes | Done::Unknown(_)) => Stand::Paused,
            (Change::Resume, Done::Yes) => Stand::Open,
            (Change::Resume, Done::Refused(why)) if why == "no_change" => Stand::Open,
            (Change::Close, Done::Yes) => Stand::Closed,
            (_, Done::Refused(why)) if why == "closed" => Stand::Closed,
            (_, _) => article.stand,
        };
        self.offer();
    }

    /// Tells buyers what there is.
    fn offer(&self) {
        let (there, gone): (Vec<&Article>, Vec<&Article>) = self.articles.iter().partition(|article| article.can_be_bought());
        let in_vain = gone.into_iter().rev().take(ASKED_FOR_IN_VAIN);
        let offer = |article: &Article| Offer {
            voucher: article.voucher.clone(),
            per_user_limit: article.per_user_limit,
            share: if article.kind == Kind::Endless { ENDLESS_SHARE } else { 1 },
        };
        self.ledger.set_offers(there.into_iter().chain(in_vain).map(offer).collect());
    }

    /// Runs `doorbuster voucher ...` to its end and writes down what it said.
    fn command(&self, voucher: &VoucherId, change: Change, args: &[&str]) -> Done {
        let begun = Instant::now();
        let mut command = Command::new(&self.program);
        command.arg("voucher").args(args).args(["--apply", "--actor", "keeper", "--wait", DECISION]);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let done = match run(command) {
            Ok((OK, _)) => Done::Yes,
            Ok((REFUSED, text)) => match refusal(&text) {
                Some(why) => Done::Refused(why.to_owned()),
                None => Done::Unknown(text),
            },
            Ok((_, text)) => Done::Unknown(text),
            Err(error) => Done::Unknown(error.to_string()),
        };
        let (voucher, ended, outcome) = (voucher.clone(), Instant::now(), done.clone());
        self.ledger.deed(Deed { begun, ended, voucher, change, done });
        outcome
    }
}

/// The name of the reason in `refused: below_sold (...)`.
fn refusal(text: &str) -> Option<&str> {
    text.split_once("refused: ")?.1.split_whitespace().next()
}

/// Runs a command, for at most [`COMMAND`]: its exit code and all it printed.
fn run(command: Command) -> anyhow::Result<(i32, String)> {
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = block_on(async { tokio::time::timeout(COMMAND, command.output()).await });
    let output = ended.with_context(|| format!("killed after {COMMAND:?}"))??;
    let printed = [output.stdout, output.stderr].concat();
    Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&printed).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_known_by_its_reason() {
        assert_eq!(refusal("refused: below_sold (more units than that are sold already)"), Some("below_sold"));
        assert_eq!(refusal("the request is in the log, but was not decided"), None);
    }
}
