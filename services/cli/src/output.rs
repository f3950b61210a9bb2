//! What the verbs print: text for people (colours only on a terminal), JSON for programs.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

/// One line on stdout. A reader that went away (`| head`) is not an error of ours.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// A value as one JSON document on stdout.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Whether people watch: stdout is a terminal, and `NO_COLOR` (no-color.org) is not set.
fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// For what is as it should be.
pub(crate) fn green(text: &str) -> String {
    painted(text, "32")
}

/// For what is not.
pub(crate) fn red(text: &str) -> String {
    painted(text, "31")
}

/// For headings.
pub(crate) fn bold(text: &str) -> String {
    painted(text, "1")
}

fn painted(text: &str, code: &str) -> String {
    if colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Rows in columns that line up; the first row is the heading. Numbers stand to the right.
pub(crate) fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let numeric =
        |column: usize| rows.iter().skip(1).all(|row| row.get(column).is_some_and(|c| c.parse::<f64>().is_ok() || c == "-"));
    let right: Vec<bool> = (0..columns).map(numeric).collect();
    for (i, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(widths.iter().zip(&right));
        let padded =
            cells.map(|(cell, (width, right))| if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
        let text = padded.collect::<Vec<_>>().join("  ");
        line(&if i == 0 { bold(text.trim_end()) } else { text.trim_end().to_owned() });
    }
}
