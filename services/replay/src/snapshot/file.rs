//! The file of a snapshot: lines of JSON, compressed with zstd. The first names the cut, then come vouchers and orders, and the last counts
//! them and has the SHA-256 of all lines before it: a file that was cut off or changed is found out before anything of it counts.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use domain::{Order, Voucher};
use infra::postgres::SCHEMA_VERSION;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ReplayError;

/// Changes whenever an older program would misunderstand the file; the first line keeps its fields.
const FORMAT: u32 = 1;

/// Of zstd: about as fast as rows come from Postgres.
const LEVEL: i32 = 3;

/// Longest line in bytes: above any row, whose longest text comes from a record of at most 1 MiB, escaped.
const MAX_LINE: u64 = 16 << 20;

/// Where one partition is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub partition: i32,
    /// The lane's position: requests below it are in the rows.
    pub next_offset: i64,
    /// The same in `order-events`: what is below answers those requests, what is not comes on top of the rows.
    pub events_from: i64,
}

/// What a snapshot says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    format: u32,
    /// Version of the database's schema.
    schema: i32,
    /// The topics whose offsets the places are.
    requests: String,
    events: String,
    pub(crate) places: Vec<Place>,
}

impl Header {
    /// Where reading a partition begins: the offset of the first event, and of the request that it answers.
    pub(crate) fn begin(&self, partition: i32) -> (i64, i64) {
        let place = self.places.iter().find(|place| place.partition == partition);
        place.map_or((0, 0), |place| (place.events_from, place.next_offset))
    }
}

/// A whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    pub places: Vec<Place>,
    #[serde(flatten)]
    pub end: End,
}

/// Its last line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub vouchers: u64,
    pub orders: u64,
    pub sha256: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Snapshot(Header),
    Voucher(Voucher),
    Order(Order),
    End(End),
}

/// Counts and hashes lines.
#[derive(Default)]
struct Tally {
    hash: Sha256,
    vouchers: u64,
    orders: u64,
}

impl Tally {
    fn add(&mut self, line: &Line, bytes: &[u8]) {
        match line {
            Line::Voucher(_) => self.vouchers += 1,
            Line::Order(_) => self.orders += 1,
            Line::Snapshot(_) | Line::End(_) => {}
        }
        self.hash.update(bytes);
    }

    fn end(&self) -> End {
        let digest = self.hash.clone().finalize();
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        End { vouchers: self.vouchers, orders: self.orders, sha256 }
    }
}

fn bad(path: &Path, problem: impl ToString) -> ReplayError {
    ReplayError::File { path: path.display().to_string(), problem: problem.to_string() }
}

/// Writes a file under a temporary name beside its own, which it gets once it is whole and on disk.
pub(super) struct Writer {
    path: PathBuf,
    part: PathBuf,
    out: zstd::Encoder<'static, BufWriter<File>>,
    tally: Tally,
}

impl Writer {
    /// Takes the temporary name. What a dead process has left under it is overwritten; what a living one writes is not.
    pub(super) fn create(path: &Path) -> Result<Self, ReplayError> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let create = || -> io::Result<_> {
            let file = File::options().write(true).create(true).truncate(false).open(&part)?;
            file.try_lock().map_err(|_| io::Error::other("another export writes it"))?;
            // Looked at with the lock: who had it before may have given this very file its name meanwhile.
            if path.try_exists()? {
                let _ = fs::remove_file(&part);
                return Err(io::Error::other("is there already: nothing is overwritten"));
            }
            file.set_len(0)?;
            zstd::Encoder::new(BufWriter::new(file), LEVEL)
        };
        let out = create().map_err(|error| bad(path, error))?;
        Ok(Self { path: path.to_owned(), part, out, tally: Tally::default() })
    }

    pub(super) fn begin(&mut self, requests: &str, events: &str, places: Vec<Place>) -> Result<(), ReplayError> {
        let (requests, events) = (requests.to_owned(), events.to_owned());
        self.write(&Line::Snapshot(Header { format: FORMAT, schema: SCHEMA_VERSION, requests, events, places }))
    }

    pub(super) fn vouchers(&mut self, vouchers: Vec<Voucher>) -> Result<(), ReplayError> {
        vouchers.into_iter().try_for_each(|voucher| self.write(&Line::Voucher(voucher)))
    }

    pub(super) fn order(&mut self, order: Order) -> Result<(), ReplayError> {
        self.write(&Line::Order(order))
    }

    fn write(&mut self, line: &Line) -> Result<(), ReplayError> {
        let mut bytes = serde_json::to_vec(line).map_err(|error| bad(&self.path, error))?;
        bytes.push(b'\n');
        self.tally.add(line, &bytes);
        self.out.write_all(&bytes).map_err(|error| bad(&self.part, error))
    }

    /// Gives the file its name.
    pub(super) fn finish(mut self) -> Result<End, ReplayError> {
        let end = self.tally.end();
        self.write(&Line::End(end.clone()))?;
        let Self { path, part, out, .. } = self;
        let finish = || -> io::Result<()> {
            // Its lock goes with it: only once the name is another may the next one have it.
            let file = out.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            fs::rename(&part, &path)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        finish().map_err(|error| bad(&path, error))?;
        Ok(end)
    }

    /// Removes what was written.
    pub(super) fn discard(self) {
        // An error made us give up, and is told; the next export overwrites what stays.
        let _ = fs::remove_file(&self.part);
    }
}

/// Some rows of a file.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) vouchers: Vec<Voucher>,
    pub(crate) orders: Vec<Order>,
}

impl Rows {
    pub(crate) fn is_empty(&self) -> bool {
        self.vouchers.is_empty() && self.orders.is_empty()
    }
}

/// Reads a file from its beginning. Blocks.
pub(crate) struct Reader {
    path: PathBuf,
    pub(crate) header: Header,
    lines: BufReader<zstd::Decoder<'static, BufReader<File>>>,
    tally: Tally,
    end: Option<End>,
}

impl Reader {
    /// Reads the first line. `requests` and `events`: the topics that it must be of.
    pub(crate) fn open(path: &Path, topics: Option<(&str, &str)>) -> Result<Self, ReplayError> {
        let decoder = File::open(path).and_then(zstd::Decoder::new).map_err(|error| bad(path, error))?;
        let header = Header { format: 0, schema: 0, requests: String::new(), events: String::new(), places: Vec::new() };
        let lines = BufReader::new(decoder);
        let mut reader = Self { path: path.to_owned(), header, lines, tally: Tally::default(), end: None };
        let Some(Line::Snapshot(header)) = reader.line()? else { return Err(reader.bad("is no snapshot")) };
        if header.format != FORMAT || header.schema > SCHEMA_VERSION {
            let (format, schema) = (header.format, header.schema);
            let problem = format!(
                "has format {format} and rows of schema {schema}, this version reads format {FORMAT} and schemas up to {SCHEMA_VERSION}"
            );
            return Err(reader.bad(problem));
        }
        if let Some((requests, events)) = topics.filter(|topics| *topics != (header.requests.as_str(), header.events.as_str())) {
            let problem = format!("is of topics {} and {}, here are {requests} and {events}", header.requests, header.events);
            return Err(reader.bad(problem));
        }
        reader.header = header;
        Ok(reader)
    }

    /// The next rows, at most `most`; none: the file has ended, and is whole.
    pub(crate) fn rows(&mut self, most: usize) -> Result<Rows, ReplayError> {
        let mut rows = Rows::default();
        while self.end.is_none() && rows.vouchers.len() + rows.orders.len() < most {
            match self.line()? {
                Some(Line::Voucher(voucher)) => rows.vouchers.push(voucher),
                Some(Line::Order(order)) => rows.orders.push(order),
                Some(Line::End(end)) if end == self.tally.end() && self.line()?.is_none() => self.end = Some(end),
                Some(Line::End(_)) => return Err(self.bad("was changed: its digest is another")),
                Some(Line::Snapshot(_)) => return Err(self.bad("was changed: it begins twice")),
                None => return Err(self.bad("is cut off: its last line is missing")),
            }
        }
        Ok(rows)
    }

    /// What the whole file says, once it is read.
    pub(crate) fn end(self) -> Result<Snapshot, ReplayError> {
        let problem = bad(&self.path, "was not read to its end");
        Ok(Snapshot { places: self.header.places, end: self.end.ok_or(problem)? })
    }

    pub(crate) fn bad(&self, problem: impl ToString) -> ReplayError {
        bad(&self.path, problem)
    }

    fn line(&mut self) -> Result<Option<Line>, ReplayError> {
        let mut bytes = Vec::new();
        let read = (&mut self.lines).take(MAX_LINE).read_until(b'\n', &mut bytes);
        if read.map_err(|error| self.bad(format!("cannot be read, or is cut off or changed: {error}")))? == 0 {
            return Ok(None);
        }
        let line = serde_json::from_slice(&bytes).map_err(|error| self.bad(format!("is cut off or changed: {error}")))?;
        if !matches!(line, Line::End(_)) {
            self.tally.add(&line, &bytes);
        }
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use domain::{
        RequestBody, State,
        testing::{nothing, order, terms},
    };

    use super::*;

    const PLACE: Place = Place { partition: 3, next_offset: 3, events_from: 5 };

    fn state() -> State {
        let mut state = State::default();
        let mut given = nothing();
        for body in [RequestBody::VoucherPublished(terms()), order("ann", 2), order("ben \u{1f600}", 100)] {
            let decided = given.when(body);
            state.evolve(decided.event());
            given = decided.and();
        }
        state
    }

    fn write(path: &Path) -> Result<End, ReplayError> {
        let State { vouchers, orders, .. } = state();
        let mut writer = Writer::create(path)?;
        writer.begin("requests", "events", vec![PLACE])?;
        writer.vouchers(vouchers.into_values().collect())?;
        orders.into_values().try_for_each(|order| writer.order(order))?;
        writer.finish()
    }

    fn read(path: &Path) -> Result<(Snapshot, State), ReplayError> {
        let mut reader = Reader::open(path, Some(("requests", "events")))?;
        let mut state = State::default();
        loop {
            let rows = reader.rows(1)?;
            if rows.is_empty() {
                return Ok((reader.end()?, state));
            }
            state.vouchers.extend(rows.vouchers.into_iter().map(|v| (v.id.clone(), v)));
            state.orders.extend(rows.orders.into_iter().map(|o| (o.id, o)));
        }
    }

    #[test]
    fn what_was_written_is_read_and_nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let end = write(&path).unwrap();
        let (snapshot, found) = read(&path).unwrap();
        let State { vouchers, orders, .. } = state();
        assert_eq!((snapshot, found.vouchers, found.orders), (Snapshot { places: vec![PLACE], end }, vouchers, orders));
        assert!(write(&path).unwrap_err().to_string().contains("is there already"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let other = Reader::open(&path, Some(("requests", "others"))).err().unwrap();
        assert!(other.to_string().contains("here are requests and others"), "{other}");
    }

    #[test]
    fn a_file_is_written_by_one_at_a_time_and_a_dead_ones_rest_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        fs::write(
            folder.path().join("snapshot.part"),
            "the rest of an export that was killed, and more than the next one is long".repeat(99),
        )
        .unwrap();
        let first = Writer::create(&path).unwrap();
        assert!(Writer::create(&path).err().unwrap().to_string().contains("another export"));
        first.discard();
        write(&path).unwrap();
        read(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_was_cut_off_or_changed_anywhere_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        write(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], what: &str| {
            let broken = folder.path().join("broken");
            fs::write(&broken, bytes).unwrap();
            let error = read(&broken).map(drop).expect_err(what).to_string();
            assert!(error.contains("broken"), "{what}: {error}");
        };
        for length in 0..whole.len() {
            refused(&whole[..length], &format!("cut off at {length}"));
            let mut changed = whole.clone();
            changed[length] ^= 1;
            // Some bits of the compressed form mean nothing: then every row is as it was.
            fs::write(folder.path().join("changed"), &changed).unwrap();
            if let Ok((_, found)) = read(&folder.path().join("changed")) {
                assert_eq!((found.vouchers, found.orders), (state().vouchers, state().orders), "byte {length}");
            }
        }
        refused(&[&whole[..], &whole[..]].concat(), "twice");
        // A row that was changed with care, and compressed again.
        let text = String::from_utf8(zstd::decode_all(&whole[..]).unwrap()).unwrap();
        for (from, to) in
            [("\"quantity\":2", "\"quantity\":1"), ("\"orders\":2", "\"orders\":1"), ("\"next_offset\":3", "\"next_offset\":2")]
        {
            assert!(text.contains(from), "{text}");
            refused(&zstd::encode_all(text.replace(from, to).as_bytes(), 1).unwrap(), from);
        }
        let rest: String = text.lines().filter(|line| !line.contains("ann")).map(|line| format!("{line}\n")).collect();
        refused(&zstd::encode_all(rest.as_bytes(), 1).unwrap(), "without a row");
        let newer = text.replace("\"format\":1", "\"format\":2");
        refused(&zstd::encode_all(newer.as_bytes(), 1).unwrap(), "of a newer version");
        refused(b"rows", "no snapshot at all");
    }
}
