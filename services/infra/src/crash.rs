//! Places at which a test lets a service die, as `kill -9` would have it: between every two writes to different stores, and at every step
//! of a purchase.
//!
//! A test names a folder in `DOORBUSTER_CRASH_POINTS` and writes a file there, named as the point. The first process of those that share the
//! folder that comes by removes the file and aborts; the next run of it goes on. What the file says: `3`, the third passage of one process
//! (nothing: the first); `3 again`, the file stays, so that every process dies there until somebody removes it; `3 hang`, the thread that
//! comes by stays there for ever, and its process lives on.
//!
//! Only in builds with debug assertions. A release build has no points, and ignores the variable.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use parking_lot::Mutex;

/// Every point of the services, first the one that passes it. A test holds this list against the calls. (A rebuild of the tables passes
/// `rebuild.begun`, `rebuild.folded`, and around its COMMIT `rebuild.swap` and `rebuild.swapped`.)
pub const POINTS: &[&str] = &[
    // A purchase, nothing done yet.
    "purchase.asked",
    // Redis has answered, units are reserved or not; nothing is in the log.
    "purchase.reserved",
    // Postgres was asked about the order of somebody who holds units.
    "purchase.looked_up",
    // The request is handed over, and not acknowledged.
    "purchase.sent",
    // Acknowledged, or published behind the answer; nobody is told yet.
    "purchase.published",
    // Behind the answer, the request is handed over once more.
    "purchase.behind",
    // A reservation is to be given back; then: it was.
    "purchase.release",
    "purchase.released",
    // The last batch is stable in the log; its records are still in the position row.
    "orders.stable",
    // Everything is written to Postgres, and not committed.
    "orders.decided",
    // Postgres has the batch, Kafka has nothing of it.
    "orders.committed",
    // The records are handed over; the transaction has no offsets yet.
    "orders.sent",
    // Everything is in the log, undecided.
    "orders.prepared",
    // Kafka has committed; the lane does not know yet.
    "orders.published",
    // A recovery has read the position.
    "orders.recover",
    // Stored records that the log lacks are about to be published.
    "orders.republish",
    // Lost commits were folded into Postgres.
    "orders.folded",
    // A recovery is over, and the consumer not sent there yet.
    "orders.seek",
    // Events are read and not settled.
    "compensation.read",
    // Settled; the offset is not noted.
    "compensation.settled",
    // The group's offset is about to be committed.
    "compensation.commit",
    // A gate is about to be closed for a repair; then: it is.
    "compensation.fence",
    "compensation.fenced",
    // A chunk of the log was settled by a repair.
    "compensation.replayed",
    // A gate is about to be opened; then: it is.
    "compensation.open",
    "compensation.opened",
    // A reservation was taken to be published; then: the log has it.
    "compensation.taken",
    "compensation.swept",
];

/// Whether every purchase, batch of requests or batch of events passes the point. The others are passed after a start, a loss, a refusal or
/// a crash, and now and then.
pub fn is_passed_often(point: &str) -> bool {
    const SELDOM: [&str; 5] = ["purchase.release", "purchase.released", "orders.folded", "orders.seek", "purchase.behind"];
    let is_recovery = point.starts_with("orders.re");
    let is_settling = ["compensation.read", "compensation.settled", "compensation.commit"].contains(&point);
    !is_recovery && !SELDOM.contains(&point) && (is_settling || !point.starts_with("compensation."))
}

/// What the file of a point says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// At which passage of a process, from 1.
    pub passage: u64,
    /// Every process that comes by, until the file is removed.
    pub again: bool,
}

impl Order {
    /// What cannot be read is the first passage, once.
    fn read(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let passage = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
        Self { passage, again: words.next() == Some("again") }
    }
}

/// Lets processes that share this folder die at a point.
///
/// # Errors
/// When the file cannot be written.
pub fn arm(folder: &Path, point: &str, order: Order) -> io::Result<()> {
    let text = format!("{}{}", order.passage, if order.again { " again" } else { "" });
    // Whole or not at all: a process may be reading it.
    let unfinished = folder.join(format!(".{point}"));
    fs::write(&unfinished, text)?;
    fs::rename(unfinished, folder.join(point))
}

/// Passes a point: see the module. Costs a look at one static without the variable, and nothing in a release build.
#[inline]
pub fn point(name: &'static str) {
    if cfg!(debug_assertions) {
        pass(name);
    }
}

fn pass(name: &'static str) {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    static PASSAGES: Mutex<Option<HashMap<&str, u64>>> = Mutex::new(None);
    let Some(folder) = FOLDER.get_or_init(|| std::env::var_os("DOORBUSTER_CRASH_POINTS").map(PathBuf::from)) else { return };
    let file = folder.join(name);
    let Ok(text) = fs::read_to_string(&file) else { return };
    let order = Order::read(&text);
    let passages = {
        let mut passages = PASSAGES.lock();
        let passages = passages.get_or_insert_default().entry(name).or_default();
        *passages += 1;
        *passages
    };
    // Of several who come by at once, one removes the file.
    if passages >= order.passage && (order.again || fs::remove_file(&file).is_ok()) {
        if text.ends_with("hang") {
            tracing::warn!(point = name, passages, "hangs here, as a test wants it");
            loop {
                std::thread::park();
            }
        }
        tracing::warn!(point = name, passages, "dies here, as a test wants it");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_passage_and_may_stand() {
        let cases = [("", 1, false), ("3", 3, false), ("7 again\n", 7, true), ("soon", 1, false)];
        for (text, passage, again) in cases {
            assert_eq!(Order::read(text), Order { passage, again }, "{text:?}");
        }
    }
}
