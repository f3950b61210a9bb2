//! The reader of one partition, against what a real log looks like: markers, aborted records, open transactions, deleted history.

use std::{ops::ControlFlow, time::Duration};

use crate::support::{PATIENCE, Writer, connections, delete_records, make_topic};
use infra::{
    config::Connections,
    kafka::{Ends, LogError, PartitionReader, Record},
};

struct Log {
    connections: Connections,
    topic: String,
    writer: Writer,
    reader: PartitionReader,
}

impl Log {
    fn new() -> Self {
        let connections = connections();
        let topic = connections.topics.events.clone();
        make_topic(&connections, &topic, 1, &[("message.timestamp.type", "LogAppendTime")]);
        let writer = Writer::new(&connections, &topic);
        let reader = PartitionReader::open(&connections, &topic, 0).expect("a reader can be made");
        testkit::wait_until(PATIENCE, "the topic's leader", || reader.ends().is_ok());
        Self { connections, topic, writer, reader }
    }

    fn ends(&self) -> Ends {
        self.reader.ends().expect("the partition's ends can be had")
    }

    fn commit(&self, payloads: &[&str]) {
        self.decided(payloads, || self.writer.commit(payloads));
    }

    fn abort(&self, payloads: &[&str]) {
        self.decided(payloads, || self.writer.abort(payloads));
    }

    /// The broker answers before it has written the marker.
    fn decided(&self, payloads: &[&str], transaction: impl FnOnce()) {
        let behind = self.ends().high + payloads.len() as i64 + 1;
        transaction();
        testkit::wait_until(PATIENCE, "the transaction's marker", || self.ends().stable == behind);
    }

    fn read(&mut self, from: i64, to: i64) -> Result<Vec<String>, LogError> {
        let mut found = Vec::new();
        self.reader.read(from, to, &mut |record| {
            found.push(text(&record));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn last(&mut self) -> Option<String> {
        self.reader.last().expect("the log can be read").map(|record| text(&record))
    }
}

fn text(record: &Record) -> String {
    String::from_utf8(record.payload.clone()).expect("tests write text")
}

#[test]
fn an_empty_partition_is_read_at_once() {
    let mut log = Log::new();
    assert_eq!(log.ends(), Ends { start: 0, stable: 0, high: 0 });
    assert_eq!(log.read(0, 0).expect("nothing to read"), Vec::<String>::new());
    assert_eq!(log.last(), None);
}

#[test]
fn reading_ends_behind_a_commit_marker() {
    let mut log = Log::new();
    log.commit(&["a", "b"]);
    assert_eq!(log.ends(), Ends { start: 0, stable: 3, high: 3 });
    assert_eq!(log.read(0, 3).expect("readable"), ["a", "b"]);
    assert_eq!(log.read(1, 2).expect("readable"), ["b"]);
    assert_eq!(log.read(2, 3).expect("only the marker is there"), Vec::<String>::new());
    assert_eq!(log.last().as_deref(), Some("b"));
}

#[test]
fn reading_ends_behind_an_aborted_transaction() {
    let mut log = Log::new();
    log.commit(&["a"]);
    log.abort(&["x", "y"]);
    assert_eq!(log.ends(), Ends { start: 0, stable: 5, high: 5 });
    assert_eq!(log.read(0, 5).expect("readable"), ["a"]);
    assert_eq!(log.read(2, 5).expect("nothing committed there"), Vec::<String>::new());
    assert_eq!(log.last().as_deref(), Some("a"));
}

#[test]
fn a_log_of_aborted_records_only_has_no_last_record() {
    let mut log = Log::new();
    log.abort(&["x", "y"]);
    assert_eq!(log.last(), None);
}

#[test]
fn the_last_record_is_found_behind_many_aborted_ones() {
    let mut log = Log::new();
    log.commit(&["a", "b"]);
    let batch = ["x"; 60];
    (0..15).for_each(|_| log.abort(&batch));
    assert!(log.ends().stable > 900);
    assert_eq!(log.last().as_deref(), Some("b"));
    log.commit(&["c"]);
    assert_eq!(log.last().as_deref(), Some("c"));
}

#[test]
fn an_open_transaction_ends_the_stable_part_and_reading_past_it_stalls() {
    let mut log = Log::new();
    log.commit(&["a"]);
    log.writer.open(&["x"]);
    let ends = log.ends();
    assert_eq!(ends, Ends { start: 0, stable: 2, high: 3 });
    assert_eq!(log.read(0, ends.stable).expect("readable"), ["a"]);
    assert_eq!(log.last().as_deref(), Some("a"));

    log.reader = log.reader.with_stall_limit(Duration::from_secs(1));
    match log.read(0, ends.high) {
        Err(LogError::Stalled { offset: 2, seconds: 1, .. }) => {}
        other => panic!("an undecided record must stall the reader, but it said {other:?}"),
    }
    log.writer.abort_open();
    testkit::wait_until(PATIENCE, "the transaction's marker", || log.ends().stable == 4);
    assert_eq!(log.read(0, 4).expect("readable now"), ["a"]);
}

#[test]
fn deleted_history_is_an_error_and_never_a_jump() {
    let mut log = Log::new();
    log.commit(&["a", "b", "c", "d"]);
    delete_records(&log.connections, &log.topic, 2);
    match log.read(0, 5) {
        Err(LogError::OutOfRange { start: 2, end: 5, wanted: 0, .. }) => {}
        other => panic!("offset 0 is gone, but reading said {other:?}"),
    }
    assert_eq!(log.read(2, 5).expect("what is left"), ["c", "d"]);
    match log.read(9, 12) {
        Err(LogError::OutOfRange { wanted: 9, .. }) => {}
        other => panic!("offset 9 does not exist yet, but reading said {other:?}"),
    }
}

#[test]
fn history_deleted_up_to_the_end_leaves_no_last_record() {
    let mut log = Log::new();
    log.commit(&["a"]);
    delete_records(&log.connections, &log.topic, 2);
    assert_eq!(log.last(), None);
}

#[test]
fn a_reader_that_has_enough_stops_and_can_read_again() {
    let mut log = Log::new();
    log.commit(&["a", "b", "c"]);
    let mut seen = 0;
    let enough = &mut |_| {
        seen += 1;
        if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    log.reader.read(0, 4, enough).expect("readable");
    assert_eq!(seen, 2);
    assert_eq!(log.read(0, 4).expect("readable"), ["a", "b", "c"]);
}
