//! `dlq redrive`: sends dead letters again, as requests like any other.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, anyhow, ensure};
use domain::{Event, EventBody};
use events::{Codec, redrive::Redrive};
use infra::config::Connections;
use publish::{Delivery, RequestProducer};
use replay::{Answers, KnownSchemas, Letter, Redriven};
use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{
    Filter, Letters,
    desk::{Desk, Outcome, Ready, Stop, cannot_tell, refused, token},
    look,
};
use crate::{OK, connect, explain::said, output, time, voucher::undecided};

/// Key of the advisory lock in Postgres under which one redrive at a time acts.
const LOCK: i64 = 0x646f_6f72_646c_7100;

const EXAMPLES: &str = "\
Each dead letter is read with every known version of the schema, as `dlq show` does, and becomes a request in the partition of its voucher,
with headers that name the dead letter, who sent it again, how often and why: `tail requests` shows them. The log decides it now, at the
offset at which it arrives. An order takes its units at the gate first, as a purchase does, and is refused where there are none; one that
was decided already is left alone.

What was redriven already is told by the log itself and is not sent twice: after a crash, run the same command again.

Exit code: 0 all redriven, or nothing to do; 1 some refused; 2 of some it could not be told.

Examples:
  doorbuster dlq redrive --cause 'no schema has id'
  doorbuster dlq redrive --cause 'no schema has id' --rate 50 --reason 'schema registered late' --apply
  doorbuster dlq redrive 0:17 --as-schema 1 --set title='TV for 1 EUR' --apply";

/// Send dead letters again
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// Read with this version of the schema only; without: with each, where all that can read it agree
    #[arg(long, value_name = "VERSION")]
    pub(super) as_schema: Option<u32>,
    /// Set a text field of the request (title, voucher_id, by, currency, ...) before it is judged
    #[arg(long, value_name = "FIELD=VALUE", value_parser = parse_edit)]
    pub(super) set: Vec<(String, String)>,
    /// Requests a second at most
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Dead letters judged, sent and answered at a time
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// Most times that one record is redriven
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    max_times: u32,
    /// Send again what was redriven already
    #[arg(long)]
    again: bool,
    /// Who asks, for the audit trail
    #[arg(long, env = "USER", default_value = "cli", hide_env_values = true)]
    by: String,
    /// Why, for the audit trail
    #[arg(long)]
    reason: Option<String>,
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
    /// How long to wait for the answers to a batch
    #[arg(long, default_value = "30s", value_parser = time::parse_duration)]
    patience: Duration,
    /// One JSON document a line
    #[arg(long)]
    json: bool,
}

fn parse_edit(text: &str) -> Result<(String, String), String> {
    let edit = text.split_once('=').map(|(field, value)| (field.to_owned(), value.to_owned()));
    edit.ok_or_else(|| "write FIELD=VALUE".to_owned())
}

/// One dead letter with what became of it.
struct Case {
    letter: Letter,
    ready: Option<Ready>,
    outcome: Outcome,
    /// In words.
    answer: String,
    event: Option<Event>,
}

impl Case {
    fn ends(&mut self, (outcome, answer): Stop) {
        (self.outcome, self.answer) = (outcome, answer);
    }

    /// The ready request, unless something stood in its way.
    fn going(&self) -> Option<&Ready> {
        self.ready.as_ref().filter(|_| self.outcome == Outcome::WouldRedrive)
    }
}

struct Run<'a> {
    args: Args,
    connections: &'a Connections,
    codec: Codec,
    desk: Desk,
    redriven: Redriven,
    producer: RequestProducer,
    pace: Interval,
}

pub(super) async fn execute(mut args: Args) -> anyhow::Result<u8> {
    let (connections, codec) = connect::log().await?;
    let partitions = connect::partitions(&connections).await?;
    let schemas = KnownSchemas::look_up(&connections, &codec).await?;
    args.as_schema.map_or(Ok(()), |version| schemas.check(version)).map_err(|problem| anyhow!("--as-schema: {problem}"))?;
    let lock = infra::postgres::connect(&connections).await?;
    if args.apply {
        let is_alone: bool = lock.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]).await?.try_get(0)?;
        ensure!(is_alone, "somebody else redrives at the moment: wait until he is done, or end him");
    }
    let mut pace = interval(Duration::from_secs(1) / args.rate);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut letters = Letters::read(&connections, std::mem::take(&mut args.filter), args.batch as usize);
    let mut run = Run {
        desk: Desk::new(&connections, schemas, partitions)?,
        redriven: Redriven::new(&connections),
        producer: RequestProducer::new(&connections, codec.clone()).context("cannot make a producer")?,
        pace,
        args,
        connections: &connections,
        codec,
    };
    let mut counts: BTreeMap<Outcome, u64> = BTreeMap::new();
    while let Some(batch) = letters.next().await? {
        for case in run.batch(batch).await? {
            *counts.entry(case.outcome).or_insert(0) += 1;
            print(&case, run.args.json)?;
        }
    }
    if !run.args.json && !counts.is_empty() {
        let counted: Vec<String> = counts.iter().map(|(outcome, count)| format!("{count} {}", outcome.words())).collect();
        output::line(&counted.join(", "));
        if counts.contains_key(&Outcome::WouldRedrive) {
            output::line(output::PLANNED);
        }
    }
    let code = counts.into_keys().map(Outcome::code).max().unwrap_or(OK);
    Ok(code.max(letters.end(run.args.json).await?))
}

impl Run<'_> {
    async fn batch(&mut self, letters: Vec<Letter>) -> anyhow::Result<Vec<Case>> {
        let mut cases = Vec::with_capacity(letters.len());
        for letter in letters {
            let mut case = Case { letter, ready: None, outcome: Outcome::WouldRedrive, answer: String::new(), event: None };
            match self.desk.read(&case.letter, &self.args).await {
                Ok(ready) => case.ready = Some(ready),
                Err(stop) => case.ends(stop),
            }
            cases.push(case);
        }
        let partitions: BTreeSet<i32> = cases.iter().filter_map(|case| Some(case.going()?.partition)).collect();
        for partition in &partitions {
            let is_here = |case: &&Case| case.going().is_some_and(|ready| ready.partition == *partition);
            self.redriven.read(*partition, cases.iter().filter(is_here).map(|case| &case.letter)).await?;
        }
        for case in &mut cases {
            let Some(ready) = case.going() else { continue };
            let outcome = match self.turned_away(&case.letter).and_then(|()| self.desk.standing(ready)) {
                Ok(()) if !self.args.apply => self.desk.foresee(ready).await,
                other => other.map(|()| String::new()),
            };
            match outcome {
                Ok(answer) => case.answer = answer,
                Err(stop) => case.ends(stop),
            }
        }
        if self.args.apply && cases.iter().any(|case| case.going().is_some()) {
            self.send(&mut cases, partitions).await?;
        }
        Ok(cases)
    }

    /// Times that what is in this letter was redriven: before it became this letter, and since.
    fn times(&self, letter: &Letter) -> u32 {
        letter.redriven.saturating_add(self.redriven.times(&letter.place))
    }

    fn turned_away(&self, letter: &Letter) -> Result<(), Stop> {
        let (times, most) = (self.times(letter), self.args.max_times);
        if self.redriven.times(&letter.place) > 0 && !self.args.again {
            return Err((Outcome::NothingToDo, "it was redriven already".to_owned()));
        }
        if times >= most {
            refused(format!("it was redriven {times} times, and {most} is the most: mend the cause first"))
        } else {
            Ok(())
        }
    }

    /// Sends what may go, in the order of the letters, and waits for the answers.
    async fn send(&mut self, cases: &mut [Case], partitions: BTreeSet<i32>) -> anyhow::Result<()> {
        let answers = Answers::watch(self.connections, &self.codec, partitions).await?;
        let mut sent = Vec::with_capacity(cases.len());
        for (at, case) in cases.iter_mut().enumerate() {
            let times = self.times(&case.letter).saturating_add(1);
            let Some(ready) = case.going() else { continue };
            self.pace.tick().await;
            let token = token();
            match self.desk.reserve(ready.request.clone(), &token).await {
                Err(stop) => case.ends(stop),
                Ok(request) => {
                    let headers = Redrive {
                        letter: case.letter.place.clone(),
                        times,
                        by: self.args.by.clone(),
                        reason: self.args.reason.clone(),
                        edited: self.args.set.iter().map(|(field, _)| field.clone()).collect(),
                    };
                    let delivery = self.producer.send_with(ready.partition, &request, &headers.headers());
                    sent.push((at, request, token, delivery));
                }
            }
        }
        let mut waiting = BTreeMap::new();
        for (at, request, token, delivery) in sent {
            match delivery.await {
                Delivery::Persisted { partition, offset } => {
                    waiting.insert((partition, offset), at);
                }
                Delivery::NotPersisted { reason } => {
                    self.desk.release(&request, &token).await;
                    cases[at].ends(cannot_tell(format!("it did not get into the log: {reason}")));
                }
                Delivery::Unknown { reason } => {
                    cases[at]
                        .ends(cannot_tell(format!("it may or may not be in the log ({reason}): run the command again to see")));
                }
            }
            if let Some(ready) = &mut cases[at].ready {
                ready.request = request;
            }
        }
        let places = waiting.keys().copied().collect();
        let answered = answers.wait(places, |event| (event.partition, event.request_offset), self.args.patience).await;
        let (mut answered, failed) = match answered {
            Ok(answered) => (answered, None),
            Err(error) => (BTreeMap::new(), Some(error.to_string())),
        };
        for ((partition, offset), at) in waiting {
            let (event, request) = (answered.remove(&(partition, offset)), format!("request {offset} of partition {partition}"));
            cases[at].ends(match (&event, &failed) {
                (Some(event), _) => (judged(&event.body), format!("{}, {request}", said(&event.body))),
                (None, Some(error)) => cannot_tell(format!("{request} is in the log, but its answer cannot be read: {error}")),
                (None, None) => cannot_tell(undecided(&request, self.args.patience)),
            });
            cases[at].event = event;
        }
        Ok(())
    }
}

fn judged(body: &EventBody) -> Outcome {
    match body {
        EventBody::RequestRefused { .. } | EventBody::OrderRejected { .. } => Outcome::Refused,
        _ => Outcome::Redriven,
    }
}

fn print(case: &Case, as_json: bool) -> anyhow::Result<()> {
    let (name, ready) = (look::name(&case.letter), case.ready.as_ref());
    if as_json {
        let line = json!({
            "letter": name,
            "found": case.letter.found,
            "outcome": case.outcome,
            "answer": case.answer,
            "read": ready.map(|ready| &ready.way),
            "partition": ready.map(|ready| ready.partition),
            "request": ready.map(|ready| &ready.request),
            "event": case.event,
        });
        output::line(&line.to_string());
        return Ok(());
    }
    let line = format!("{name} (found at {}) {}: {}", look::origin(&case.letter), case.outcome.words(), case.answer);
    match case.outcome.code() {
        OK => output::line(&line),
        _ => output::line(&output::red(&line)),
    }
    if let Some(Ready { partition, way, request, .. }) = ready {
        outln!("  for partition {partition}, read {way}: {}", serde_json::to_string(request)?);
    }
    Ok(())
}
