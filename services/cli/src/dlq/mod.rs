//! `dlq`: the records that could not be decoded. Shows them, says what reads them after all, and sends them again.

mod desk;
mod look;
mod redrive;

use std::{collections::BTreeSet, num::NonZeroUsize, ops::RangeInclusive};

use clap::Subcommand;
use domain::Timestamp;
use infra::config::Connections;
use replay::{Letter, LetterFilter, ReplayError, dead_letters};
use tokio::sync::mpsc::Receiver;

use crate::{OK, UNKNOWN, output, time};

/// Look at the requests that could not be decoded, and send them again
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// One line for each dead letter
    #[command(after_help = "Examples:\n  doorbuster dlq list --cause 'no schema has id'\n  \
                            doorbuster dlq list --partition 3 --offset 100-199 --json")]
    List(look::Args),
    /// How many dead letters each cause has, and how old they are
    #[command(after_help = "Examples:\n  doorbuster dlq stats\n  doorbuster dlq stats --since -1h --json")]
    Stats(look::Args),
    Show(look::ShowArgs),
    Redrive(redrive::Args),
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    match verb {
        Verb::List(args) => look::list(args).await,
        Verb::Stats(args) => look::stats(args).await,
        Verb::Show(args) => look::show(args).await,
        Verb::Redrive(args) => redrive::execute(args).await,
    }
}

/// Which dead letters.
#[derive(clap::Args, Default)]
struct Filter {
    /// Only these dead letters, by where they stand; without: all
    #[arg(value_name = "PARTITION:OFFSET", value_parser = parse_letter)]
    letters: Vec<(i32, i64)>,
    /// Only those of which the cause contains this text
    #[arg(long)]
    cause: Option<String>,
    /// Only those whose record was found in this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only those whose record was found in this partition
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Only those whose record was found at this offset, or in this range: 17, or 10-20
    #[arg(long, requires = "partition", value_parser = parse_offsets)]
    offset: Option<RangeInclusive<i64>>,
    /// Only those written at this instant or later: -10m, or RFC 3339
    #[arg(long, value_parser = time::parse_instant)]
    since: Option<Timestamp>,
    /// End after so many
    #[arg(long, conflicts_with = "letters")]
    limit: Option<NonZeroUsize>,
}

impl From<Filter> for LetterFilter {
    fn from(filter: Filter) -> Self {
        let Filter { letters, cause, topic, partition, offset, since, limit } = filter;
        Self { letters, cause, topic, partition, offsets: offset, since, limit: limit.map(NonZeroUsize::get) }
    }
}

/// The dead letters that fit a filter.
struct Letters<'a> {
    connections: &'a Connections,
    batches: Receiver<Result<Vec<Letter>, ReplayError>>,
    /// Asked for by name, and not come yet.
    missing: BTreeSet<(i32, i64)>,
    is_empty: bool,
}

impl<'a> Letters<'a> {
    fn read(connections: &'a Connections, filter: impl Into<LetterFilter>, batch: usize) -> Self {
        let filter = filter.into();
        let missing = filter.letters.iter().copied().collect();
        Self { connections, batches: dead_letters(connections, filter, batch), missing, is_empty: true }
    }

    async fn next(&mut self) -> anyhow::Result<Option<Vec<Letter>>> {
        let batch = self.batches.recv().await.transpose()?;
        for letter in batch.iter().flatten() {
            self.missing.remove(&(letter.place.partition, letter.place.offset));
            self.is_empty = false;
        }
        Ok(batch)
    }

    /// Says what was looked for and not found, and gives the exit code of that.
    async fn end(self, as_json: bool) -> anyhow::Result<u8> {
        for (partition, offset) in &self.missing {
            eprintln!("doorbuster: no dead letter {partition}:{offset} fits: `doorbuster dlq list` shows those there are");
        }
        if !self.missing.is_empty() {
            return Ok(UNKNOWN);
        }
        if self.is_empty && !as_json {
            let first = LetterFilter { limit: Some(1), ..LetterFilter::default() };
            let others = dead_letters(self.connections, first, 1).recv().await.transpose()?.is_some();
            output::line(if others {
                "no dead letter fits: `doorbuster dlq stats` shows what there is"
            } else {
                "no dead letters"
            });
        }
        Ok(OK)
    }
}

fn parse_letter(text: &str) -> Result<(i32, i64), String> {
    let parsed = text.split_once(':').and_then(|(partition, offset)| Some((partition.parse().ok()?, offset.parse().ok()?)));
    let there = parsed.filter(|(partition, offset)| *partition >= 0 && *offset >= 0);
    there.ok_or_else(|| "write where the dead letter stands as `dlq list` does: 0:17".to_owned())
}

fn parse_offsets(text: &str) -> Result<RangeInclusive<i64>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 <= first && first <= last => Ok(first..=last),
        _ => Err("write one offset, or the first and the last: 17, or 10-20".to_owned()),
    }
}
