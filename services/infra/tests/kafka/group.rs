//! A member of a group, against what a client remembers of a partition that was away.

use std::{mem::ManuallyDrop, time::Duration};

use infra::kafka::{GroupConsumer, Rebalance};
use rdkafka::{Message, Offset, consumer::Consumer};

use crate::support::{PATIENCE, Writer, connections, make_topic};

/// Polls once and does what the group decided; gives what was read, and whether the member has partitions now if that changed.
fn turn(member: &GroupConsumer) -> (Option<String>, Option<bool>) {
    let polled = member.poll(Duration::from_millis(50)).map(|polled| polled.expect("the client goes on by itself"));
    let text = polled.and_then(|message| message.payload().map(|bytes| String::from_utf8_lossy(bytes).into_owned()));
    let mut owns = None;
    while let Some(rebalance) = member.context().next() {
        match rebalance {
            Rebalance::Assign(partitions) => member.take(&partitions, Offset::Beginning).expect("it is taken"),
            Rebalance::Revoke { partitions, .. } => member.give_up(&partitions).expect("it is given up"),
        }
        owns = Some(member.assignment().is_ok_and(|list| list.count() > 0));
    }
    (text, owns)
}

#[test]
fn a_partition_that_was_paused_when_it_went_is_read_when_it_comes_back() {
    let connections = connections();
    let topic = &connections.topics.events;
    make_topic(&connections, topic, 1, &[]);
    // Dropped by a failing test, it would wait for a revoke to be acted on.
    let member = ManuallyDrop::new(GroupConsumer::join(&connections, "g", topic, "earliest").expect("it joins"));
    Writer::new(&connections, topic).commit(&["a"]);
    let read = || testkit::wait_until(PATIENCE, "the record", || turn(&member).0.as_deref() == Some("a"));
    read();
    member.pause(&[0], true).expect("it is paused");
    member.unsubscribe();
    testkit::wait_until(PATIENCE, "the partition gone", || turn(&member).1 == Some(false));
    member.subscribe(&[topic]).expect("it subscribes again");
    read();
}
