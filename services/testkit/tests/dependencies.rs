//! What the code is built from, held to `deny.toml` without network: sources and versions from `Cargo.lock`, licences from what cargo has on
//! disk. Known vulnerabilities need a database from outside: `cargo deny check advisories`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Two versions of one of these would be two clients, or two sets of types, for one server.
const ONE_VERSION_ONLY: [&str; 8] =
    ["apache-avro", "axum", "hyper", "rdkafka", "rdkafka-sys", "redis", "tokio", "tokio-postgres"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The packages of `Cargo.lock`, each as its fields.
fn locked() -> Vec<BTreeMap<String, String>> {
    let lock = read("Cargo.lock");
    let packages = lock.split("[[package]]").skip(1);
    let field = |line: &str| {
        let (name, value) = line.split_once(" = ")?;
        Some((name.to_owned(), value.trim_matches('"').to_owned()))
    };
    packages.map(|package| package.lines().filter_map(field).collect()).collect()
}

/// The texts in the list that `key` has in `deny.toml`.
fn denied(key: &str) -> BTreeSet<String> {
    let text = read("deny.toml");
    let list = text.split_once(&format!("{key} = [")).and_then(|(_, rest)| rest.split_once(']')).expect("the list is there").0;
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_package_comes_from_the_registry_with_its_checksum() {
    let packages = locked();
    let ours: BTreeSet<String> =
        fs::read_dir(root().join("services")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(packages.len() > 100, "only {} packages were found", packages.len());
    for package in &packages {
        match package.get("source") {
            None => {
                // What strangers use bears the project's name before that of its folder.
                let folder = package["name"].trim_start_matches("doorbuster-");
                assert!(ours.contains(folder), "{package:?} is neither ours nor from a registry");
            }
            Some(source) => {
                assert_eq!(source, "registry+https://github.com/rust-lang/crates.io-index", "{package:?}");
                assert_eq!(package.get("checksum").map(String::len), Some(64), "{package:?}");
            }
        }
    }
}

#[test]
fn the_core_libraries_are_there_once() {
    let packages = locked();
    for name in ONE_VERSION_ONLY {
        let versions: Vec<_> = packages.iter().filter(|p| p["name"] == name).map(|p| &p["version"]).collect();
        assert_eq!(versions.len(), 1, "{name}: {versions:?}");
    }
}

/// A licence expression (SPDX, or the older form with a slash): `OR` binds less than `AND`, parentheses most.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>, used: &mut BTreeSet<String>) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ").replace(" WITH ", "~");
    let words: Vec<String> = text.split_whitespace().map(|word| word.replace('~', " WITH ")).collect();
    let mut at = 0;
    let fits = any_of(&words, &mut at, allowed, used);
    fits && at == words.len()
}

fn any_of(words: &[String], at: &mut usize, allowed: &BTreeSet<String>, used: &mut BTreeSet<String>) -> bool {
    let mut fits = all_of(words, at, allowed, used);
    while words.get(*at).is_some_and(|word| word == "OR") {
        *at += 1;
        fits |= all_of(words, at, allowed, used);
    }
    fits
}

fn all_of(words: &[String], at: &mut usize, allowed: &BTreeSet<String>, used: &mut BTreeSet<String>) -> bool {
    let mut fits = one_of(words, at, allowed, used);
    while words.get(*at).is_some_and(|word| word == "AND") {
        *at += 1;
        fits &= one_of(words, at, allowed, used);
    }
    fits
}

fn one_of(words: &[String], at: &mut usize, allowed: &BTreeSet<String>, used: &mut BTreeSet<String>) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if word != "(" {
        used.insert(word.clone());
        return allowed.contains(word);
    }
    let fits = any_of(words, at, allowed, used);
    *at += 1;
    fits
}

/// Replaying must not be able to publish, settle or decide for anybody: no crate of ours that does is built into `replay`, and neither it nor
/// what it is built from names a client that produces, but for the one that only listens to what a refused client says.
#[test]
fn no_producer_can_be_reached_from_replay() {
    let cargo = std::env::var_os("CARGO").expect("cargo says where it is");
    let tree =
        ["tree", "--locked", "--offline", "--package", "replay", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let output = Command::new(cargo).args(tree).current_dir(root()).output().expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ours: BTreeSet<&str> =
        text.lines().filter(|line| line.contains("/services/")).filter_map(|l| l.split(' ').next()).collect();
    assert_eq!(ours, BTreeSet::from(["domain", "events", "infra", "replay"]));
    fn producers(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                producers(&path, found);
            } else if fs::read_to_string(&path).unwrap().contains("Producer") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    ours.iter().for_each(|name| producers(&root().join("services").join(name).join("src"), &mut found));
    assert!(found.iter().all(|path| path.ends_with("infra/src/kafka/refused.rs")), "{found:?}");
}

#[test]
fn every_licence_is_welcome_and_no_welcome_one_is_gone() {
    let cargo = std::env::var_os("CARGO").expect("cargo says where it is");
    // What this machine builds, and so has on disk.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", &platform])
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let (allowed, mut used) = (denied("allow"), BTreeSet::new());
    let mut unwelcome = Vec::new();
    for package in metadata["packages"].as_array().expect("packages are a list") {
        let licence = package["license"].as_str().unwrap_or("none");
        if package["source"].is_string() && !is_allowed(licence, &allowed, &mut used) {
            unwelcome.push(format!("{} {}: {licence}", package["name"], package["version"]));
        }
    }
    assert!(unwelcome.is_empty(), "deny.toml does not allow {unwelcome:?}");
    let gone: Vec<_> = allowed.difference(&used).collect();
    assert!(gone.is_empty(), "deny.toml allows {gone:?}, which nothing has");
}

#[test]
fn expressions_are_read_by_their_rules() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()]);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("GPL-3.0 OR MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND MIT", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MIT MIT", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed, &mut BTreeSet::new()), expected, "{expression}");
    }
}
