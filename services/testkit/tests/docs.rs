//! The documents against the code: every setting and metric is listed, nothing is listed that is not there, and every link leads somewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The sources of all crates but those that test and measure.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !["tests", "testkit", "chaos", "bench"].iter().any(|name| path.ends_with(name)) {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join("services"), &mut found);
    found
}

/// Words of `text` that begin with `prefix` and go on with capitals, digits and underscores.
fn words<'t>(text: &'t str, prefix: &'t str) -> impl Iterator<Item = String> + 't {
    text.match_indices(prefix).filter_map(move |(at, _)| {
        let word: String = text[at..].chars().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_').collect();
        let rest = text[at + word.len()..].chars().next();
        (word.len() > prefix.len() && !word.ends_with('_') && rest != Some('*')).then_some(word)
    })
}

#[test]
fn every_setting_is_in_the_table_and_every_row_is_a_setting() {
    let documented: BTreeSet<String> = words(&read("docs/CONFIGURATION.md"), "DOORBUSTER_").collect();
    let in_code: BTreeSet<String> =
        sources().iter().flat_map(|(_, text)| words(text, "DOORBUSTER_").collect::<Vec<_>>()).collect();
    // Where the programs of the native servers are looked for: a matter of `compose/native`, not of a service.
    let missing: Vec<_> = in_code.difference(&documented).filter(|name| *name != "DOORBUSTER_NATIVE").collect();
    assert!(missing.is_empty(), "docs/CONFIGURATION.md does not list {missing:?}");
    let invented: Vec<_> = documented.difference(&in_code).collect();
    assert!(invented.is_empty(), "docs/CONFIGURATION.md lists {invented:?}, which no code reads");
}

#[test]
fn every_metric_is_in_the_table() {
    let documented = read("docs/METRICS.md");
    let mut found = 0;
    for (path, text) in sources().iter().filter(|(path, _)| path.ends_with("metrics.rs")) {
        for call in text.split("registry.register").skip(1) {
            let name = call.split('"').nth(1).unwrap_or_default();
            found += 1;
            assert!(documented.contains(&format!("`{name}")), "{}: {name} is not in docs/METRICS.md", path.display());
        }
    }
    assert!(found > 20, "only {found} metrics were found in the code");
}

/// The rules of `compose/alerts.yml`, each as its fields, those of its labels and annotations among them. Reads no more of YAML than the file
/// keeps to (a `key: value` a line, two spaces a level, quotes where a value needs them) and fails on all else.
fn alerts() -> Vec<BTreeMap<String, String>> {
    let text = read("compose/alerts.yml");
    let mut rules = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let item = line.trim_start_matches(' ');
        let indent = line.len() - item.len();
        let (key, value) = item.trim_start_matches("- ").split_once(':').unwrap_or_else(|| panic!("no key: {line}"));
        let quoted = value.strip_prefix(" \"").and_then(|rest| rest.strip_suffix('"'));
        let value = quoted.unwrap_or_else(|| value.trim_start_matches(' '));
        let plain =
            !value.contains(": ") && !value.contains(" #") && !value.starts_with(|c: char| "{[]}&*!|>'\"%@`-?,".contains(c));
        assert!(quoted.map_or(plain, |inner| !inner.contains(['"', '\\'])), "needs other quotes: {line}");
        match (indent, item.starts_with("- ")) {
            (0, false) | (2, true) | (4, false) => {}
            (6, true) => rules.push(BTreeMap::from([(key.to_owned(), value.to_owned())])),
            (8 | 10, false) => drop(rules.last_mut().expect("a rule").insert(key.to_owned(), value.to_owned())),
            _ => panic!("at no level of a rule: {line}"),
        }
    }
    rules
}

#[test]
fn every_alert_is_whole_and_about_metrics_that_are_in_the_table() {
    let (mut prefix, mut documented) = (String::new(), BTreeSet::new());
    for line in read("docs/METRICS.md").lines() {
        if line.starts_with("## ") {
            prefix = line.rsplit('`').nth(1).unwrap_or_default().trim_end_matches("...").to_owned();
        } else if let Some(cell) = line.strip_prefix("| `") {
            let names = cell.split('|').next().unwrap_or_default().split('`').step_by(2);
            documented.extend(names.filter(|name| !name.trim().is_empty()).map(|name| format!("{prefix}{name}")));
        }
    }
    let alerts = alerts();
    assert!(alerts.len() > 3, "{alerts:?}");
    for alert in &alerts {
        for field in ["alert", "expr", "severity", "summary", "description"] {
            assert!(alert.get(field).is_some_and(|value| !value.is_empty()), "{field} of {alert:?}");
        }
        let expr = &alert["expr"];
        assert_eq!(expr.matches('(').count(), expr.matches(')').count(), "{expr}");
        let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metrics: Vec<_> = words.filter(|word| word.starts_with("doorbuster_")).collect();
        assert!(!metrics.is_empty(), "{expr}");
        let unknown: Vec<_> = metrics.iter().filter(|name| !documented.contains(**name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} in compose/alerts.yml, not in docs/METRICS.md");
    }
}

#[test]
fn every_alert_has_its_part_of_the_runbook() {
    let runbook = read("docs/RUNBOOK.md");
    let told: BTreeSet<_> = runbook.lines().filter_map(|line| line.strip_prefix("### Doorbuster")).collect();
    let alerts = alerts();
    let fired: BTreeSet<_> = alerts.iter().filter_map(|alert| alert["alert"].strip_prefix("Doorbuster")).collect();
    assert_eq!(told, fired, "the headings of docs/RUNBOOK.md beside compose/alerts.yml");
    assert_eq!(fired.len(), alerts.len(), "a name of its own for each, all beginning alike");
}

#[test]
fn every_link_leads_to_a_file() {
    let mut links = 0;
    for document in [
        "README.md",
        "docs/ARCHITECTURE.md",
        "docs/CHAOS.md",
        "docs/CONFIGURATION.md",
        "docs/METRICS.md",
        "docs/PERFORMANCE.md",
        "docs/RUNBOOK.md",
        "schemas/README.md",
        "compose/README.md",
    ] {
        let folder = root().join(document).parent().unwrap().to_owned();
        for link in read(document).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            links += 1;
            assert!(folder.join(path).exists(), "{document} links to {link}, which is not there");
        }
    }
    assert!(links > 10, "only {links} links were found");
}

#[test]
fn every_file_the_walkthrough_names_exists() {
    let architecture = read("docs/ARCHITECTURE.md");
    let named = architecture.split('`').filter(|word| {
        !word.contains(char::is_whitespace) && (word.ends_with(".rs") || word.ends_with(".lua") || word.ends_with(".md"))
    });
    let mut files = 0;
    for name in named {
        files += 1;
        let candidates = ["", "services", "lua"].map(|folder| root().join(folder).join(name));
        assert!(candidates.iter().any(|path| path.exists()), "docs/ARCHITECTURE.md names {name}, which is not there");
    }
    assert!(files > 10, "only {files} files are named");
}

/// In tables of `docs/CHAOS.md`, words in backticks are tests, or kinds of faults, which have hyphens.
#[test]
fn every_test_that_a_promise_names_exists() {
    fn walk(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, text);
            } else if path.extension().is_some_and(|e| e == "rs") {
                *text += &fs::read_to_string(&path).unwrap();
            }
        }
    }
    let mut code = String::new();
    walk(&root().join("services"), &mut code);
    let chaos = read("docs/CHAOS.md");
    let rows = chaos.lines().filter(|line| line.starts_with("| "));
    let mut tests = 0;
    for name in rows.flat_map(|row| row.split('`').skip(1).step_by(2)) {
        let found =
            if name.contains('_') { code.contains(&format!("fn {name}()")) } else { code.contains(&format!("\"{name}\"")) };
        assert!(found, "docs/CHAOS.md names {name}, which is not there");
        tests += 1;
    }
    assert!(tests > 40, "only {tests} tests are named");
}
