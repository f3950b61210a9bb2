//! Logs of servers and programs: reading their ends and keeping them.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// How much of a log is read for its tail, in bytes: some hundred lines.
const TAIL_BYTES: u64 = 64 * 1024;
/// How many lines of a log go into an error.
pub(crate) const LINES_IN_ERRORS: usize = 25;

/// The last `lines` lines of a file; what cannot be read is said in the text itself.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    match read_from(path, fs::metadata(path).map_or(0, |file| file.len().saturating_sub(TAIL_BYTES))) {
        Ok(text) => {
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("(cannot be read: {error})"),
    }
}

/// What a file holds from `offset` on.
pub(crate) fn read_from(path: &Path, offset: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Copies every `*.log` in `from` and the folders directly in it to `to`, and returns the copies.
pub(crate) fn copy_all(from: &Path, to: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = logs_in(from)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if path.is_dir() {
            // A server's data folder may be closed to us; its log lies beside it.
            found.extend(logs_in(&path).unwrap_or_default());
        }
    }
    fs::create_dir_all(to)?;
    let mut copies = Vec::new();
    for log in found {
        if let Some(name) = log.file_name() {
            let copy = to.join(name);
            fs::copy(&log, &copy)?;
            copies.push(copy);
        }
    }
    copies.sort();
    Ok(copies)
}

fn logs_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && path.extension().is_some_and(|extension| extension == "log") {
            logs.push(path);
        }
    }
    Ok(logs)
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
}
