//! Brokers that are killed, frozen and restarted, and group offsets that somebody lost.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::{Rng, rngs::SmallRng, seq::SliceRandom};
use rdkafka::{
    Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions},
    consumer::{BaseConsumer, CommitMode, Consumer},
};

use super::{draw, restart_all};
use crate::{
    ask,
    fault::{Fault, Kind, at_once, kind, rare, seconds, steps},
    fleet::Role,
    site::{BROKERS, Site, until},
};

const KAFKA: &[&str] = &["kafka"];

const HOLD: (Duration, Duration) = (seconds(2), seconds(15));
/// Beyond the brokers' own session time-out of 9 s, so that a frozen one loses what it leads.
const FROZEN: (Duration, Duration) = (seconds(11), seconds(16));
const NONE: (Duration, Duration) = (seconds(0), seconds(1));
/// For one call of ours.
const CALL_TIMEOUT: Duration = seconds(10);

const ONE: &str = "session time-out 6 s + rebalance 3 s + a lane's recovery 5 s + back-off 2 s; the broker's own 9 s pass before the fault's end";
const ALL: &str = "leaders 5 s + session time-out 6 s + rebalance 3 s + transaction time-out 10 s + a lane's recovery 5 s";
const OFFSETS: &str = "start of a process 5 s + rebalance 3 s + a lane's recovery 5 s, and the events that are read again";

pub(crate) const KINDS: &[Kind] = &[
    kind("kafka-leader-killed", 30, ONE, HOLD, KAFKA, |rng| killed("that leads a partition of order-requests", leader, rng)),
    kind("kafka-events-leader-killed", 30, ONE, HOLD, KAFKA, |rng| {
        killed("that leads a partition of order-events", events_leader, rng)
    }),
    kind("kafka-controller-killed", 30, ONE, HOLD, KAFKA, |rng| {
        killed("that controls the cluster", |site, _| ask::controller(&site.servers), rng)
    }),
    kind("kafka-transaction-coordinator-killed", 30, ONE, HOLD, KAFKA, |rng| {
        killed("that coordinates a lane's transactions", transaction_coordinator, rng)
    }),
    kind("kafka-group-coordinator-killed", 30, ONE, HOLD, KAFKA, |rng| {
        killed("that coordinates the orders group", group_coordinator, rng)
    }),
    kind("kafka-broker-restarted", 30, ONE, NONE, KAFKA, restarted),
    kind("kafka-broker-frozen", 30, ONE, FROZEN, KAFKA, |rng| frozen("one broker", some(1, rng))),
    // Nothing can be acknowledged, nobody controls.
    rare(kind("kafka-two-killed", 45, ALL, HOLD, KAFKA, |rng| killed_together("two brokers of three", some(2, rng)))),
    rare(kind("kafka-rolled", 30, ONE, NONE, KAFKA, |_| rolled())),
    rare(kind("kafka-all-killed", 45, ALL, NONE, KAFKA, |rng| killed_together("all brokers", some(BROKERS, rng)))),
    rare(kind("kafka-all-frozen", 45, ALL, FROZEN, KAFKA, |rng| frozen("all brokers", some(BROKERS, rng)))),
    kind("orders-offsets-deleted", 30, OFFSETS, NONE, &["kafka", "orders"], |_| offsets_lost(Role::Orders, None)),
    kind("orders-offsets-reset", 30, OFFSETS, NONE, &["kafka", "orders"], |rng| offsets_lost(Role::Orders, Some(anywhere(rng)))),
    kind("compensation-offsets-deleted", 30, OFFSETS, NONE, &["kafka", "compensation"], |_| {
        offsets_lost(Role::Compensation, None)
    }),
    kind("compensation-offsets-reset", 30, OFFSETS, NONE, &["kafka", "compensation"], |rng| {
        offsets_lost(Role::Compensation, Some(anywhere(rng)))
    }),
];

type Who = fn(&Site, i32) -> Result<usize>;

fn leader(site: &Site, partition: i32) -> Result<usize> {
    ask::leader(&site.servers, &site.world.connections().topics.requests, partition)
}

fn events_leader(site: &Site, partition: i32) -> Result<usize> {
    ask::leader(&site.servers, &site.world.connections().topics.events, partition)
}

fn transaction_coordinator(site: &Site, partition: i32) -> Result<usize> {
    let id = format!("{}-{partition}", site.world.connections().group("orders"));
    ask::coordinator(&site.servers, &id, ask::TRANSACTIONAL_ID)
}

fn group_coordinator(site: &Site, _: i32) -> Result<usize> {
    ask::coordinator(&site.servers, &site.world.connections().group("orders"), ask::GROUP)
}

/// Whoever has this task when the fault begins; found out then, since earlier faults have moved it.
fn killed(task: &'static str, who: Who, rng: &mut SmallRng) -> Fault {
    let which = draw(rng);
    let begin = move |site: &mut Site| {
        let partition = i32::try_from(which(usize::try_from(site.world.partitions())?))?;
        let broker = who(site, partition).with_context(|| format!("which broker it is {task}"))?;
        site.servers.kafka[broker].server.kill();
        Ok(broker)
    };
    steps(format!("kill -9 of the broker {task}"), begin, start_again)
}

fn start_again(site: &mut Site, broker: usize) -> Result<()> {
    site.servers.kafka[broker].server.restart()?;
    whole(site)
}

/// Until each partition may lose a broker again: whatever comes next shall not be two faults by chance.
pub(super) fn whole(site: &Site) -> Result<()> {
    site.servers.wait_for_brokers()?;
    let topics = &site.world.connections().topics;
    until("all copies to be in sync", || {
        [&topics.requests, &topics.events].into_iter().all(|topic| ask::in_sync(&site.servers, topic).unwrap_or(false))
    })
}

fn restarted(rng: &mut SmallRng) -> Fault {
    let which = draw(rng);
    let begin = move |site: &mut Site| {
        let brokers = &site.servers.kafka;
        Ok(brokers[which(brokers.len())].server.restart()?)
    };
    steps("one broker stopped in good order and started again", begin, |site, ()| whole(site))
}

fn rolled() -> Fault {
    let begin = |site: &mut Site| (0..BROKERS).try_for_each(|broker| start_again(site, broker));
    steps("rolling restart of all brokers in good order", begin, |site, ()| whole(site))
}

fn frozen(what: &'static str, brokers: Vec<usize>) -> Fault {
    let begin = move |site: &mut Site| {
        brokers.iter().try_for_each(|broker| site.servers.kafka[*broker].server.pause())?;
        Ok(brokers)
    };
    let end = |site: &mut Site, brokers: Vec<usize>| {
        brokers.iter().try_for_each(|broker| site.servers.kafka[*broker].server.resume())?;
        whole(site)
    };
    steps(format!("SIGSTOP of {what}, longer than every session time-out"), begin, end)
}

fn killed_together(what: &'static str, brokers: Vec<usize>) -> Fault {
    let begin = move |site: &mut Site| {
        brokers.iter().for_each(|broker| site.servers.kafka[*broker].server.kill());
        Ok(brokers)
    };
    let end = |site: &mut Site, brokers: Vec<usize>| {
        restart_all(brokers.iter().map(|broker| &site.servers.kafka[*broker].server))?;
        whole(site)
    };
    steps(format!("kill -9 of {what} at once"), begin, end)
}

/// As many of the brokers.
fn some(count: usize, rng: &mut SmallRng) -> Vec<usize> {
    let mut brokers: Vec<usize> = (0..BROKERS).collect();
    brokers.shuffle(rng);
    brokers.truncate(count);
    brokers
}

/// A place in a partition, as a share of its length.
fn anywhere(rng: &mut SmallRng) -> f64 {
    // The very begin and the very end are the likely mistakes.
    match rng.random_range(0..3) {
        0 => 0.0,
        1 => 1.0,
        _ => rng.random_range(0.0..1.0),
    }
}

/// Kafka changes a group's offsets only while it has no members, so this is what an operator would do: end them, change, start them.
fn offsets_lost(role: Role, share: Option<f64>) -> Fault {
    let what = match share {
        None => format!("offsets of the {} group deleted", role.name()),
        Some(share) => format!("offsets of the {} group set to {:.0} % of each partition", role.name(), share * 100.0),
    };
    at_once(what, move |site| {
        let count = site.fleet.of(role).len();
        let ended = site.fleet.shrink(role, 0);
        let changed = match share {
            None => delete_offsets(site, role),
            Some(share) => reset_offsets(site, role, share),
        };
        site.fleet.grow(&site.world, role, count);
        ended.and(changed)
    })
}

fn delete_offsets(site: &Site, role: Role) -> Result<()> {
    let group = site.world.connections().group(role.name());
    let admin: AdminClient<_> = infra::kafka::client_config(site.world.connections()).create()?;
    let options = AdminOptions::new().request_timeout(Some(CALL_TIMEOUT));
    until(&format!("group {group} to be empty and deleted"), || {
        let deleted = testkit::block_on(async { admin.delete_groups(&[&group], &options).await });
        deleted.is_ok_and(|results| results.iter().all(Result::is_ok))
    })
}

fn reset_offsets(site: &Site, role: Role, share: f64) -> Result<()> {
    let connections = site.world.connections();
    let topic = if role == Role::Orders { &connections.topics.requests } else { &connections.topics.events };
    let mut config = infra::kafka::client_config(connections);
    config.set("group.id", connections.group(role.name())).set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create()?;
    let mut offsets = TopicPartitionList::new();
    for partition in 0..site.world.partitions() {
        let (start, end) = consumer.fetch_watermarks(topic, partition, CALL_TIMEOUT)?;
        let offset = start + ((end - start) as f64 * share) as i64;
        offsets.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    }
    // Refused while the group still has members that ended a moment ago.
    until("the group's offsets to be changed", || consumer.commit(&offsets, CommitMode::Sync).is_ok())
}
