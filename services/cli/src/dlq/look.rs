//! `dlq list|stats|show`: what the dead letters are. Changes nothing.

use std::collections::BTreeMap;

use domain::Timestamp;
use events::dead_letter::Place;
use replay::{Attempt, KnownSchemas, Letter};
use serde_json::{Value, json};

use super::{Filter, Letters, parse_letter};
use crate::{OK, connect, output, time};

/// Dead letters read at a time.
const BATCH: usize = 100;

/// Bytes in one line of a dump.
const DUMP_WIDTH: usize = 16;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// As JSON: a list of the causes, or a document for each dead letter, on a line of its own
    #[arg(long)]
    json: bool,
}

/// Show one dead letter: headers, bytes, and what every known version of the schema makes of them
#[derive(clap::Args)]
#[command(
    after_help = "The bytes are read as they are, and with each version of the schema that the registry has: behind a header of five bytes that \
                        says something else, behind a schema id alone, and without any header.\n\n\
                        Examples:\n  doorbuster dlq show 0:17\n  doorbuster dlq show 0:17 --json"
)]
pub(crate) struct ShowArgs {
    /// Where it stands, as `dlq list` says
    #[arg(value_name = "PARTITION:OFFSET", value_parser = parse_letter)]
    letter: (i32, i64),
    #[arg(long)]
    json: bool,
}

/// How a dead letter is named on the command line.
pub(super) fn name(letter: &Letter) -> String {
    format!("{}:{}", letter.place.partition, letter.place.offset)
}

/// Where its record was found.
pub(super) fn origin(letter: &Letter) -> String {
    letter.found.as_ref().map_or("?".to_owned(), Place::to_string)
}

pub(super) async fn list(args: Args) -> anyhow::Result<u8> {
    let (connections, mut rows) = (connect::connections()?, Vec::new());
    let mut letters = Letters::read(&connections, args.filter, BATCH);
    while let Some(batch) = letters.next().await? {
        for letter in batch {
            if args.json {
                output::line(&about(&letter).to_string());
            } else {
                let (name, written, bytes) = (name(&letter), time::format_instant(letter.appended_at), letter.payload.len());
                rows.push(row![name, written, origin(&letter), bytes, letter.redriven, letter.message]);
            }
        }
    }
    output::table(["letter", "written", "found", "bytes", "redriven", "cause"], rows.into_iter());
    letters.end(args.json).await
}

pub(super) async fn stats(args: Args) -> anyhow::Result<u8> {
    let mut causes: BTreeMap<String, (u64, Timestamp, Timestamp)> = BTreeMap::new();
    let connections = connect::connections()?;
    let mut letters = Letters::read(&connections, args.filter, BATCH);
    while let Some(batch) = letters.next().await? {
        for Letter { cause, appended_at: at, .. } in batch {
            let (count, oldest, newest) = causes.entry(cause).or_insert((0, at, at));
            (*count, *oldest, *newest) = (*count + 1, at.min(*oldest), at.max(*newest));
        }
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|(_, (count, ..))| std::cmp::Reverse(*count));
    if args.json {
        let causes = causes.iter().map(
            |(cause, (count, oldest, newest))| json!({ "cause": cause, "count": count, "oldest": oldest, "newest": newest }),
        );
        output::json(&causes.collect::<Vec<_>>())?;
    } else {
        let age = |at| time::format_age(at, time::now());
        let rows = causes.iter().map(|(cause, (count, oldest, newest))| row![count, age(*oldest), age(*newest), cause]);
        output::table(["count", "oldest", "newest", "cause"], rows);
    }
    letters.end(args.json).await
}

pub(super) async fn show(args: ShowArgs) -> anyhow::Result<u8> {
    let (connections, codec) = connect::log().await?;
    let mut letters = Letters::read(&connections, Filter { letters: vec![args.letter], ..Filter::default() }, 1);
    let Some(letter) = letters.next().await?.and_then(|mut found| found.pop()) else { return letters.end(args.json).await };
    let attempts = KnownSchemas::look_up(&connections, &codec).await?.attempts(&letter.payload).await?;
    let headers = letter.headers.iter().map(|(name, value)| (name, String::from_utf8_lossy(value)));
    if args.json {
        let hex: String = letter.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut shown = about(&letter);
        shown["headers"] = headers.map(|(name, value)| json!([name, value])).collect();
        shown["key"] = letter.key.as_deref().map(String::from_utf8_lossy).into();
        shown["hex"] = hex.into();
        shown["attempts"] = attempts.iter().map(attempted).collect();
        output::json(&shown)?;
        return Ok(OK);
    }
    outln!("dead letter {}, written {}, found at {}", name(&letter), time::format_instant(letter.appended_at), origin(&letter));
    outln!("{}", letter.message);
    output::line(&output::bold("headers"));
    // Anybody may have written them: nothing of it may speak to the terminal.
    headers.for_each(|(name, value)| outln!("  {}: {}", name.escape_debug(), value.escape_debug()));
    let key = letter.key.as_deref().map(|key| String::from_utf8_lossy(key).escape_debug().to_string());
    outln!("  key: {}", key.unwrap_or_else(|| "none".to_owned()));
    output::line(&output::bold(&format!("{} bytes", letter.payload.len())));
    dump(&letter.payload).for_each(|line| output::line(&line));
    output::line(&output::bold("read"));
    for attempt in &attempts {
        let said = attempted(attempt);
        match (&said["problem"], said.get("fields")) {
            (Value::Null, Some(fields)) => outln!("{}", output::green(&format!("  {attempt}: {fields}"))),
            (problem, Some(fields)) => outln!("  {attempt}: {}: {fields}", text(problem)),
            (problem, None) => outln!("  {attempt}: {}", text(problem)),
        }
    }
    Ok(OK)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn about(letter: &Letter) -> Value {
    json!({
        "letter": name(letter),
        "appended_at": letter.appended_at,
        "found": letter.found,
        "cause": letter.cause,
        "message": letter.message,
        "redriven": letter.redriven,
        "bytes": letter.payload.len(),
    })
}

/// What an attempt gave: the fields where it read any, the problem where they make no request.
fn attempted(attempt: &Attempt) -> Value {
    let how = attempt.to_string();
    match &attempt.read {
        Ok(draft) => json!({
            "how": how,
            "fields": draft.fields(),
            "problem": draft.request().err().map(|error| error.to_string()),
        }),
        Err(problem) => json!({ "how": how, "problem": problem }),
    }
}

/// Offset, bytes in hexadecimal, and the same as text where it is printable ASCII.
fn dump(bytes: &[u8]) -> impl Iterator<Item = String> + '_ {
    bytes.chunks(DUMP_WIDTH).enumerate().map(|(row, chunk)| {
        let hex: String = chunk.iter().map(|byte| format!("{byte:02x} ")).collect();
        let text: String = chunk.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' }).collect();
        format!("  {:08x}  {hex:<width$} {text}", row * DUMP_WIDTH, width = DUMP_WIDTH * 3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_lines_up_and_shows_text() {
        let lines: Vec<String> = dump(b"\0Doorbuster sells\xff").collect();
        assert_eq!(
            lines,
            [
                "  00000000  00 44 6f 6f 72 62 75 73 74 65 72 20 73 65 6c 6c  .Doorbuster sell",
                "  00000010  73 ff                                            s.",
            ]
        );
    }
}
