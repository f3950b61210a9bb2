//! What the verbs print: text for people (colours only on a terminal), JSON for programs.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// One line on stdout, made as by `format!`.
macro_rules! outln {
    ($($text:tt)*) => {
        $crate::output::line(&format!($($text)*))
    };
}

/// The cells of a row of [`table`], each as by `to_string`.
macro_rules! row {
    ($($cell:expr),* $(,)?) => {
        [$($cell.to_string()),*]
    };
}

/// One line on stdout. A reader that went away (`| head`) is not an error of ours.
pub(crate) fn line(text: &str) {
    printed(text);
}

/// One line on stdout; whether somebody still reads it.
pub(crate) fn printed(text: &str) -> bool {
    writeln!(io::stdout().lock(), "{text}").is_ok()
}

/// A value as one JSON document on stdout.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// The same where `as_json` says so, else what `print` makes of it.
pub(crate) fn show<T: Serialize>(as_json: bool, value: &T, print: impl FnOnce(&T)) -> anyhow::Result<()> {
    if as_json {
        return json(value);
    }
    print(value);
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

/// Rows in columns that line up under a heading, numbers to the right; nothing where there are none.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let rows: Vec<[String; N]> = rows.collect();
    if rows.is_empty() {
        return;
    }
    let is_number = |cell: &String| cell.parse::<f64>().is_ok() || cell == "-";
    let columns: [_; N] = std::array::from_fn(|c| {
        let cells = rows.iter().map(|row| row[c].chars().count());
        (cells.fold(heading[c].chars().count(), usize::max), rows.iter().all(|row| is_number(&row[c])))
    });
    let padded = |cells: [&str; N]| {
        let cells = cells.into_iter().zip(columns);
        let cells = cells.map(|(cell, (width, right))| if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    line(&bold(&padded(heading)));
    rows.iter().for_each(|row| line(&padded(row.each_ref().map(String::as_str))));
}

/// A cell for what may not be there.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// Ends a plan.
pub(crate) const PLANNED: &str = "nothing was changed: add --apply to do it";

/// Says what was done, or what `--apply` would do; `nothing` where that is nothing.
pub(crate) fn steps(applied: bool, steps: &[String], nothing: &str) {
    let word = if applied { "did" } else { "would" };
    steps.iter().for_each(|step| outln!("{word}: {step}"));
    match (steps.is_empty(), applied) {
        (true, _) => line(nothing),
        (false, true) => {}
        (false, false) => line(PLANNED),
    }
}

/// A bar on stderr, as the template says; nothing where that is no terminal.
pub(crate) fn style(bar: &ProgressBar, template: &str) {
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
}
