//! Where the programs are that the stack runs: what `compose/native/setup` put into the checkout, and what the system has.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::{Result, StackError};

/// Names a folder with the content of `.cache/native`, for a binary that runs far from its checkout.
const NATIVE: &str = "DOORBUSTER_NATIVE";
/// A file that tells a checkout of this project from other folders.
const LANDMARK: &str = "compose/native/pom.xml";

/// The checkout: around the running binary, around the working folder, or where this crate was built.
pub(crate) fn checkout() -> PathBuf {
    static CHECKOUT: OnceLock<PathBuf> = OnceLock::new();
    CHECKOUT
        .get_or_init(|| {
            let starts = [env::current_exe().ok(), env::current_dir().ok(), Some(env!("CARGO_MANIFEST_DIR").into())];
            starts
                .iter()
                .flatten()
                .flat_map(|start| start.ancestors())
                .find(|folder| folder.join(LANDMARK).is_file())
                .unwrap_or(Path::new("."))
                .to_path_buf()
        })
        .clone()
}

/// Where the logs of failed runs are kept: `target/test-logs` in the checkout.
pub fn kept_logs() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout().join("target"), PathBuf::from).join("test-logs")
}

/// The folder that the set-up script filled.
pub(crate) fn folder() -> Result<PathBuf> {
    let folder = env::var_os(NATIVE).map_or_else(|| checkout().join(".cache/native"), PathBuf::from);
    // The script writes this file last.
    if folder.join("key").is_file() {
        Ok(folder)
    } else {
        Err(missing("the folder .cache/native with Kafka and the schema registry"))
    }
}

/// The files with this ending in a folder, by name.
pub(crate) fn files_ending(folder: &Path, ending: &str) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(StackError::system(format!("list {}", folder.display())))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(|name| name.ends_with(ending)).collect();
    names.sort();
    if names.is_empty() { Err(missing(&format!("a file *{ending} in {}", folder.display()))) } else { Ok(names) }
}

/// The Java runtime: `$JAVA_HOME`'s, else the one on the path.
pub(crate) fn java() -> PathBuf {
    match env::var_os("JAVA_HOME") {
        Some(home) if !home.is_empty() => Path::new(&home).join("bin/java"),
        _ => "java".into(),
    }
}

/// The option that makes a JVM read its class data archive, if the set-up script could make one.
pub(crate) fn archive_option(native: &Path, name: &str) -> Option<String> {
    let archive = native.join(name);
    archive.is_file().then(|| format!("-XX:SharedArchiveFile={}", archive.display()))
}

/// A program on the path.
pub(crate) fn on_path(program: &str) -> Result<PathBuf> {
    env::var_os("PATH")
        .and_then(|path| env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file()))
        .ok_or_else(|| missing(program))
}

/// The folder of the newest PostgreSQL's programs.
pub(crate) fn postgres_programs() -> Result<PathBuf> {
    let debian = fs::read_dir("/usr/lib/postgresql").ok().into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        let major: u32 = path.file_name()?.to_str()?.parse().ok()?;
        path.join("bin/postgres").is_file().then(|| (major, path.join("bin")))
    });
    match debian.max() {
        Some((_, programs)) => Ok(programs),
        // Elsewhere initdb lies beside postgres, and both are on the path.
        None => Ok(on_path("initdb").and_then(|_| on_path("postgres"))?.parent().unwrap_or(Path::new("/")).to_path_buf()),
    }
}

fn missing(what: &str) -> StackError {
    StackError::NotInstalled { what: what.to_owned() }
}
