//! `dlq`: the records that could not be decoded. Shows them, says what reads them after all, and sends them again.

mod desk;
mod look;
mod redrive;

use std::ops::RangeInclusive;

use clap::Subcommand;
use domain::Timestamp;
use replay::LetterFilter;

use crate::time;

/// Look at the requests that could not be decoded, and send them again
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// One line for each dead letter
    #[command(after_help = "Examples:\n  doorbuster dlq list --cause 'no schema has id'\n  \
                            doorbuster dlq list --partition 3 --offset 100-199 --json")]
    List(look::ListArgs),
    /// How many dead letters each cause has, and how old they are
    #[command(after_help = "Examples:\n  doorbuster dlq stats\n  doorbuster dlq stats --since -1h --json")]
    Stats(look::StatsArgs),
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
    #[arg(long)]
    partition: Option<i32>,
    /// Only those whose record was found at this offset, or in this range: 17, or 10-20
    #[arg(long, requires = "partition", value_parser = parse_offsets)]
    offset: Option<RangeInclusive<i64>>,
    /// Only those written at this instant or later: -10m, or RFC 3339
    #[arg(long, allow_hyphen_values = true, value_parser = time::parse_instant)]
    since: Option<Timestamp>,
    /// End after so many
    #[arg(long)]
    limit: Option<usize>,
}

impl From<Filter> for LetterFilter {
    fn from(filter: Filter) -> Self {
        let Filter { letters, cause, topic, partition, offset, since, limit } = filter;
        Self { letters, cause, topic, partition, offsets: offset, since, limit }
    }
}

fn parse_letter(text: &str) -> Result<(i32, i64), String> {
    let parsed = text.split_once(':').and_then(|(partition, offset)| Some((partition.parse().ok()?, offset.parse().ok()?)));
    parsed.ok_or_else(|| "write where the dead letter stands as `dlq list` does: 0:17".to_owned())
}

fn parse_offsets(text: &str) -> Result<RangeInclusive<i64>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err("write one offset, or the first and the last: 17, or 10-20".to_owned()),
    }
}
