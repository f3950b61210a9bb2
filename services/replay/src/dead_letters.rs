//! Dead letters: what could not be decoded, why, and what reads it after all. Reads only; the command line sends.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::{ControlFlow, RangeInclusive},
};

use domain::{Request, Timestamp};
use events::{
    Codec, DecodeError, Draft, SchemaVersion, Topics,
    dead_letter::{self, Place},
    framed, redrive,
};
use infra::{
    config::Connections,
    kafka::{PartitionReader, Record, partition_count},
};
use tokio::sync::mpsc;

use crate::{ReplayError, walk::blocking};

/// Bytes that a writer may have put before the datum, in the order in which they are tried: the whole header under a wrong id or magic byte,
/// the id alone, nothing.
const HEADERS: [usize; 3] = [5, 4, 0];

/// Milliseconds by which the clocks of brokers, and of the lane that wrote the dead letter, may differ.
const ALLOWED_SKEW_MS: i64 = 600_000;

/// Which dead letters. Empty: all.
#[derive(Clone, Debug, Default)]
pub struct LetterFilter {
    /// These alone (partition, offset).
    pub letters: Vec<(i32, i64)>,
    /// Those whose message contains this text.
    pub cause: Option<String>,
    /// Those whose record was found in this topic, this partition, at one of these offsets.
    pub topic: Option<String>,
    pub partition: Option<i32>,
    pub offsets: Option<RangeInclusive<i64>>,
    /// Those appended at or after this instant.
    pub since: Option<Timestamp>,
    /// So many at most.
    pub limit: Option<usize>,
}

/// One dead letter.
#[derive(Clone, Debug)]
pub struct Letter {
    /// Where it stands itself.
    pub place: Place,
    pub appended_at: Timestamp,
    /// Where its record was found; `None`: it does not say.
    pub found: Option<Place>,
    /// Why the record could not be read.
    pub message: String,
    /// The same without what differs from record to record: what dead letters are counted by.
    pub cause: String,
    /// Times that its record was redriven before it ended here again.
    pub redriven: u32,
    pub key: Option<Vec<u8>>,
    pub payload: Vec<u8>,
    pub headers: Vec<(String, Vec<u8>)>,
}

impl Letter {
    fn of(topic: &str, record: Record) -> Self {
        let message = dead_letter::text(&record.headers, dead_letter::MESSAGE).unwrap_or("it does not say why");
        Self {
            place: Place { topic: topic.to_owned(), partition: record.partition, offset: record.offset },
            appended_at: record.timestamp,
            found: dead_letter::found_at(&record.headers),
            message: message.to_owned(),
            cause: cause_of(message),
            redriven: redrive::times(&record.headers),
            key: record.key,
            payload: record.payload,
            headers: record.headers,
        }
    }

    fn fits(&self, filter: &LetterFilter) -> bool {
        let found = |fits: &dyn Fn(&Place) -> bool| self.found.as_ref().is_some_and(fits);
        (filter.letters.is_empty() || filter.letters.contains(&(self.place.partition, self.place.offset)))
            && filter.cause.as_ref().is_none_or(|text| self.message.contains(text) || self.cause.contains(text))
            && filter.topic.as_ref().is_none_or(|topic| found(&|place| place.topic == *topic))
            && filter.partition.is_none_or(|partition| found(&|place| place.partition == partition))
            && filter.offsets.as_ref().is_none_or(|offsets| found(&|place| offsets.contains(&place.offset)))
            && filter.since.is_none_or(|since| self.appended_at >= since)
    }
}

/// A message without its numbers and quoted texts, each of which would be a cause of its own.
fn cause_of(message: &str) -> String {
    let mut cause = String::new();
    let mut is_quoted = false;
    for c in message.strip_prefix("unreadable: ").unwrap_or(message).chars() {
        match c {
            '"' => {
                is_quoted = !is_quoted;
                cause.push_str(if is_quoted { "\"" } else { "...\"" });
            }
            _ if is_quoted => {}
            '0'..='9' if cause.ends_with('N') => {}
            '0'..='9' => cause.push('N'),
            c => cause.push(c),
        }
    }
    cause
}

/// Reads the dead letters that fit, `batch` of them at a time, up to where the topic ends now: what is redriven meanwhile and comes back is
/// not among them. In order within a partition of the topic; its partitions one after the other.
pub fn dead_letters(
    connections: &Connections,
    filter: LetterFilter,
    batch: usize,
) -> mpsc::Receiver<Result<Vec<Letter>, ReplayError>> {
    let (sender, receiver) = mpsc::channel(1);
    let connections = connections.clone();
    tokio::task::spawn_blocking(move || {
        // Whoever asked may have had enough.
        if let Err(error) = read(&connections, &filter, batch, &|letters| sender.blocking_send(Ok(letters)).is_ok()) {
            let _ = sender.blocking_send(Err(error));
        }
    });
    receiver
}

fn read(
    connections: &Connections,
    filter: &LetterFilter,
    batch: usize,
    hand_over: &dyn Fn(Vec<Letter>) -> bool,
) -> Result<(), ReplayError> {
    let topic = &connections.topics.dead_letters;
    let (mut full, mut left) = (Vec::new(), filter.limit.unwrap_or(usize::MAX));
    for partition in 0..partition_count(connections, topic)? {
        let asked = filter.letters.iter().filter(|(wanted, _)| *wanted == partition).map(|(_, offset)| *offset);
        let asked = if filter.letters.is_empty() { Some((0, i64::MAX)) } else { asked.clone().min().zip(asked.max()) };
        let Some((first, last)) = asked else { continue };
        let mut reader = PartitionReader::open(connections, topic, partition)?;
        let ends = reader.ends()?;
        reader.read(first.max(ends.start), last.saturating_add(1).min(ends.stable), &mut |record| {
            let letter = Letter::of(topic, record);
            if left > 0 && letter.fits(filter) {
                full.push(letter);
                left -= 1;
            }
            if left == 0 || (full.len() >= batch && !hand_over(std::mem::take(&mut full))) {
                left = 0;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
    }
    if !full.is_empty() {
        hand_over(full);
    }
    Ok(())
}

/// The schemas that dead letters may have been written with: all versions of the subject of `order-requests`.
pub struct KnownSchemas {
    codec: Codec,
    versions: Vec<SchemaVersion>,
}

/// One way to read a dead letter.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// With this version of the schema, and so many bytes left out in front; `None`: as it is, with the schema whose id it names.
    pub with: Option<(SchemaVersion, usize)>,
    pub read: Result<Draft, String>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.with {
            None => f.write_str("as it is"),
            Some((schema, 0)) => write!(f, "schema version {}, all bytes", schema.version),
            Some((schema, header)) => write!(f, "schema version {}, without the first {header} bytes", schema.version),
        }
    }
}

impl KnownSchemas {
    pub async fn look_up(connections: &Connections, codec: &Codec) -> Result<Self, ReplayError> {
        let registry = connections.schema_registry()?;
        let versions = registry.versions(&Topics::subject(&connections.topics.requests)).await?;
        for schema in &versions {
            codec.learn(schema.id).await?;
        }
        Ok(Self { codec: codec.clone(), versions })
    }

    /// Says which versions there are, where this is none of them.
    pub fn check(&self, version: u32) -> Result<(), String> {
        if self.versions.iter().any(|schema| schema.version == version) {
            return Ok(());
        }
        let known: Vec<_> = self.versions.iter().map(|s| format!("version {} (schema id {})", s.version, s.id)).collect();
        Err(format!("the registry has no version {version} of the schema of requests; it has {}", known.join(", ")))
    }

    /// Reads the bytes in every way known. Fails only where the registry must be asked and is away.
    pub async fn attempts(&self, payload: &[u8]) -> Result<Vec<Attempt>, ReplayError> {
        if let Err(DecodeError::UnknownSchema(id)) = self.codec.draft_request(payload) {
            self.codec.learn(id).await?;
        }
        let read = |bytes: &[u8]| self.codec.draft_request(bytes).map_err(|error| error.to_string());
        let mut attempts = vec![Attempt { with: None, read: read(payload) }];
        for schema in self.versions.iter().rev() {
            for header in HEADERS {
                let Some(datum) = payload.get(header..) else { continue };
                attempts.push(Attempt { with: Some((*schema, header)), read: read(&framed(schema.id, datum)) });
            }
        }
        Ok(attempts)
    }
}

/// The one request that these attempts, with text fields set to other values, give. `version`: only what this version of the schema reads.
/// An error says why there is none, or that there are several.
pub fn request_of(attempts: &[Attempt], version: Option<u32>, edits: &[(String, String)]) -> Result<(String, Request), String> {
    let mut requests: Vec<(String, Request)> = Vec::new();
    let mut problem = None;
    let is_asked = |with: Option<(SchemaVersion, usize)>| version.is_none() || with.map(|(schema, _)| schema.version) == version;
    for attempt in attempts.iter().filter(|attempt| is_asked(attempt.with)) {
        let Ok(draft) = &attempt.read else { continue };
        let mut draft = draft.clone();
        let edited = edits.iter().try_for_each(|(field, value)| draft.set(field, value).map_err(|error| error.to_string()));
        match edited.and_then(|()| draft.request().map_err(|error| error.to_string())) {
            Ok(request) if requests.iter().any(|(_, other)| *other == request) => {}
            Ok(request) => requests.push((attempt.to_string(), request)),
            Err(error) => problem = problem.or(Some(format!("read {attempt}: {error}"))),
        }
    }
    match (requests.len(), problem) {
        (1, _) => Ok(requests.swap_remove(0)),
        (0, None) => Err(match version {
            None => "no known schema reads these bytes".to_owned(),
            Some(version) => {
                format!("version {version} of the schema does not read these bytes; `doorbuster dlq show` says what does")
            }
        }),
        (0, Some(problem)) => Err(problem),
        _ => {
            let ways: Vec<String> = requests.into_iter().map(|(way, _)| way).collect();
            Err(format!("they give different requests ({}): name the schema's version", ways.join("; ")))
        }
    }
}

/// How often dead letters were redriven, by the log: the headers of the requests appended since they were found.
pub struct Redriven {
    connections: Connections,
    /// Where reading began, by partition of `order-requests`.
    read_from: BTreeMap<i32, i64>,
    times: HashMap<Place, u32>,
}

impl Redriven {
    pub fn new(connections: &Connections) -> Self {
        Self { connections: connections.clone(), read_from: BTreeMap::new(), times: HashMap::new() }
    }

    /// Reads what `partition` received since these letters' records were found there, or since shortly before the letters were written.
    /// Nothing is read twice; what is appended after the first reading is not seen.
    pub async fn read<'a>(&mut self, partition: i32, letters: impl Iterator<Item = &'a Letter>) -> Result<(), ReplayError> {
        let connections = self.connections.clone();
        let (mut first, mut instant) = (None::<i64>, None::<Timestamp>);
        let earlier = |known: Option<i64>, one: i64| Some(known.map_or(one, |known| known.min(one)));
        for letter in letters {
            match &letter.found {
                Some(place) if place.topic == connections.topics.requests && place.partition == partition => {
                    first = earlier(first, place.offset.saturating_add(1));
                }
                // Its record was found elsewhere, and the two partitions' brokers have clocks of their own.
                _ => instant = earlier(instant.map(|at| at.0), letter.appended_at.plus(-ALLOWED_SKEW_MS).0).map(Timestamp),
            }
        }
        let read_from = self.read_from.get(&partition).copied();
        let (from, found) = blocking(move || {
            let mut reader = PartitionReader::open(&connections, &connections.topics.requests, partition)?;
            let ends = reader.ends()?;
            let end = ends.stable;
            // Anybody can write such a header: a place that the log does not have says nothing, and all of it is looked through.
            let first = first.map(|first| if (ends.start..=end).contains(&first) { first } else { ends.start });
            let by_time = instant.map(|at| reader.offset_at(at)).transpose()?.map(|offset| offset.unwrap_or(end));
            let from = [first, by_time, read_from].into_iter().flatten().min().unwrap_or(end);
            let mut found = Vec::new();
            reader.read(from, read_from.unwrap_or(end), &mut |record| {
                found.extend(redrive::letter(&record.headers));
                ControlFlow::Continue(())
            })?;
            Ok((from, found))
        })
        .await?;
        self.read_from.insert(partition, from);
        found.into_iter().for_each(|letter| *self.times.entry(letter).or_insert(0) += 1);
        Ok(())
    }

    /// How often this letter was, in what was read.
    pub fn times(&self, letter: &Place) -> u32 {
        self.times.get(letter).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use domain::{RequestBody, VoucherId};

    use super::*;

    fn request(voucher: &str) -> Request {
        let body = RequestBody::VoucherPaused { expected_terms_version: 1 };
        Request { id: Default::default(), voucher_id: VoucherId::parse(voucher).unwrap(), actor: "a".into(), reason: None, body }
    }

    fn schemas() -> KnownSchemas {
        KnownSchemas { codec: Codec::offline(), versions: vec![SchemaVersion { version: 1, id: 1 }] }
    }

    async fn attempts(payload: &[u8]) -> Vec<Attempt> {
        schemas().attempts(payload).await.unwrap()
    }

    #[test]
    fn a_version_that_nobody_has_registered_is_refused_with_those_there_are() {
        assert_eq!(schemas().check(1), Ok(()));
        let refused = schemas().check(7).unwrap_err();
        assert!(refused.contains("no version 7") && refused.contains("it has version 1 (schema id 1)"), "{refused}");
    }

    #[test]
    fn a_cause_is_the_same_for_all_records_that_it_befell() {
        for (message, cause) in [
            ("unreadable: no schema has id 4711", "no schema has id N"),
            ("unreadable: the first byte is 1 instead of 0", "the first byte is N instead of N"),
            ("a voucher id is 1 to 64 characters, but got \"{a1}\"", "a voucher id is N to N characters, but got \"...\""),
            ("", ""),
        ] {
            assert_eq!(cause_of(message), cause);
        }
    }

    #[tokio::test]
    async fn a_datum_is_found_behind_any_header() {
        let (wanted, good) = (request("tv"), Codec::offline().encode_request(&request("tv")).unwrap());
        for (bytes, way) in [
            (good.clone(), "as it is"),
            (framed(4711, &good[5..]), "schema version 1, without the first 5 bytes"),
            (good[1..].to_vec(), "schema version 1, without the first 4 bytes"),
            (good[5..].to_vec(), "schema version 1, all bytes"),
        ] {
            let attempts = attempts(&bytes).await;
            assert_eq!(request_of(&attempts, None, &[]), Ok((way.to_owned(), wanted.clone())));
            assert!(request_of(&attempts, Some(2), &[]).unwrap_err().contains("version 2 of the schema does not read"));
        }
        for bytes in [&b"{}"[..], b"", &good[..good.len() - 1], &[&good[..], b"x"].concat()] {
            assert!(request_of(&attempts(bytes).await, None, &[]).is_err());
        }
    }

    #[tokio::test]
    async fn attempts_that_disagree_are_not_chosen_from_and_edits_are_made_in_each() {
        let codec = Codec::offline();
        let mut both = attempts(&codec.encode_request(&request("tv")).unwrap()).await;
        both.push(Attempt {
            with: Some((SchemaVersion { version: 2, id: 9 }, 5)),
            ..attempts(&codec.encode_request(&request("radio")).unwrap()).await.remove(0)
        });
        let unclear = request_of(&both, None, &[]).unwrap_err();
        assert!(unclear.contains("as it is") && unclear.contains("version 2"), "{unclear}");
        assert_eq!(request_of(&both, Some(2), &[]).unwrap().1, request("radio"));
        let edits = [("voucher_id".to_owned(), "tv".to_owned())];
        assert_eq!(request_of(&both, None, &edits).unwrap().1, request("tv"));
        let wrong = [("voucher_id".to_owned(), "{".to_owned())];
        assert!(request_of(&both, None, &wrong).unwrap_err().contains("a voucher id is"));
    }
}
