//! Logs of servers and programs: reading their ends and keeping them.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// How much of a log is read for its tail, in bytes: some hundred lines.
const TAIL_BYTES: u64 = 128 * 1024;
/// How many lines of a log go into an error as its end.
const LAST_LINES: usize = 15;
/// How many lines that speak of an error go with them.
const TELLING_LINES: usize = 10;
/// In lower case.
const TELLING_WORDS: [&str; 5] = ["error", "fatal", "exception", "panic", "already"];

/// The last `lines` lines of a file; what cannot be read is said in the text itself.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    match end_of(path) {
        Ok(text) => {
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("(cannot be read: {error})"),
    }
}

/// The end of a log for an error message: the last lines, and above them the latest that speak of an error. Kafka writes
/// a hundred lines about its shutdown below the one that says why.
pub(crate) fn excerpt(path: &Path) -> String {
    match end_of(path) {
        Ok(text) => choose(&text),
        Err(error) => format!("(cannot be read: {error})"),
    }
}

fn choose(text: &str) -> String {
    let all: Vec<&str> = text.lines().collect();
    let (before, last) = all.split_at(all.len().saturating_sub(LAST_LINES));
    let telling: Vec<&str> = before
        .iter()
        .copied()
        .filter(|line| {
            let line = line.to_lowercase();
            TELLING_WORDS.iter().any(|word| line.contains(word))
        })
        .collect();
    let telling = &telling[telling.len().saturating_sub(TELLING_LINES)..];
    let gap: &[&str] = if telling.is_empty() { &[] } else { &["..."] };
    [telling, gap, last].concat().join("\n")
}

fn end_of(path: &Path) -> io::Result<String> {
    read_from(path, fs::metadata(path)?.len().saturating_sub(TAIL_BYTES))
}

/// What a file holds from `offset` on.
pub(crate) fn read_from(path: &Path, offset: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Copies every `*.log` in `from` and the folders directly in it to `to`.
pub(crate) fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let below = fs::read_dir(from)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    for folder in below.chain([from.to_owned()]) {
        // A server's data folder may be closed to us; its log lies beside it.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let log = entry.path();
            if log.is_file() && log.extension().is_some_and(|extension| extension == "log") {
                fs::copy(&log, to.join(entry.file_name()))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        fs::write(&file, "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail(&file, 2), "two\nthree");
        assert_eq!(tail(&file, 9), "one\ntwo\nthree");
        assert!(tail(&folder.path().join("missing"), 2).starts_with("(cannot be read"));
    }

    #[test]
    fn an_excerpt_shows_the_error_above_a_long_shutdown() {
        let shutdown: String = (0..100).map(|line| format!("closed {line}\n")).collect();
        let text = format!("fine\nFATAL no disk\n{shutdown}");
        let chosen = choose(&text);
        assert!(chosen.starts_with("FATAL no disk\n...\nclosed 85\n"), "{chosen}");
        assert_eq!(choose("a\nerror b\n"), "a\nerror b", "what is in the end is not told twice");
    }
}
