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
    fault::{Fault, Kind, kind, rare, seconds, steps},
    fleet::Role,
    site::{Site, until},
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
        killed("that controls the cluster", |site, _| controller(site), rng)
    }),
    kind("kafka-transaction-coordinator-killed", 30, ONE, HOLD, KAFKA, |rng| {
        killed("that coordinates a lane's transactions", transaction_coordinator, rng)
    }),
    kind("kafka-group-coordinator-killed", 30, ONE, HOLD, KAFKA, |rng| {
        killed("that coordinates the orders group", |site, _| group_coordinator(site), rng)
    }),
    kind("kafka-broker-restarted", 30, ONE, NONE, KAFKA, |rng| restarted(rng)),
    kind("kafka-broker-frozen", 30, ONE, FROZEN, KAFKA, |rng| frozen(rng)),
    rare(kind("kafka-two-killed", 45, ALL, HOLD, KAFKA, |rng| two_killed(rng))),
    rare(kind("kafka-rolled", 30, ONE, NONE, KAFKA, |_| rolled())),
    rare(kind("kafka-all-killed", 45, ALL, NONE, KAFKA, |_| all_killed())),
    rare(kind("kafka-all-frozen", 45, ALL, FROZEN, KAFKA, |_| all_frozen())),
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

fn controller(site: &Site) -> Result<usize> {
    ask::controller(&site.servers)
}

fn transaction_coordinator(site: &Site, partition: i32) -> Result<usize> {
    let id = format!("{}-{partition}", site.world.connections().group("orders"));
    ask::transaction_coordinator(&site.servers, &id)
}

fn group_coordinator(site: &Site) -> Result<usize> {
    ask::group_coordinator(&site.servers, &site.world.connections().group("orders"))
}

/// Whoever has this task when the fault begins; found out then, since earlier faults have moved it.
fn killed(task: &'static str, who: Who, rng: &mut SmallRng) -> Box<dyn Fault> {
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
    until("all brokers to know each other", || {
        site.servers
            .kafka
            .iter()
            .all(|broker| ask::brokers(broker.server.port()).is_ok_and(|known| known == site.servers.kafka.len()))
    })?;
    let topics = &site.world.connections().topics;
    until("all copies to be in sync", || {
        [&topics.requests, &topics.events].into_iter().all(|topic| ask::in_sync(&site.servers, topic).unwrap_or(false))
    })
}

fn restarted(rng: &mut SmallRng) -> Box<dyn Fault> {
    let which = draw(rng);
    let begin = move |site: &mut Site| {
        let brokers = &site.servers.kafka;
        Ok(brokers[which(brokers.len())].server.restart()?)
    };
    steps("one broker stopped in good order and started again", begin, |site, ()| whole(site))
}

fn frozen(rng: &mut SmallRng) -> Box<dyn Fault> {
    let which = draw(rng);
    let begin = move |site: &mut Site| {
        let brokers = &site.servers.kafka;
        let broker = which(brokers.len());
        brokers[broker].server.pause()?;
        Ok(broker)
    };
    let end = |site: &mut Site, broker: usize| {
        site.servers.kafka[broker].server.resume()?;
        whole(site)
    };
    steps("SIGSTOP of one broker, longer than its session time-out", begin, end)
}

fn two_killed(rng: &mut SmallRng) -> Box<dyn Fault> {
    let mut order: Vec<usize> = vec![0, 1, 2];
    order.shuffle(rng);
    let dead = [order[0], order[1]];
    let begin = move |site: &mut Site| {
        dead.iter().for_each(|broker| site.servers.kafka[*broker].server.kill());
        Ok(())
    };
    let end = move |site: &mut Site, ()| {
        restart_all(dead.iter().map(|broker| &site.servers.kafka[*broker].server))?;
        whole(site)
    };
    steps("kill -9 of two brokers of three at once: nothing can be acknowledged, nobody controls", begin, end)
}

fn rolled() -> Box<dyn Fault> {
    let begin = |site: &mut Site| {
        for broker in 0..site.servers.kafka.len() {
            start_again(site, broker)?;
        }
        Ok(())
    };
    steps("rolling restart of all brokers in good order", begin, |site, ()| whole(site))
}

fn all_killed() -> Box<dyn Fault> {
    let begin = |site: &mut Site| {
        site.servers.kafka.iter().for_each(|broker| broker.server.kill());
        Ok(())
    };
    let end = |site: &mut Site, ()| {
        restart_all(site.servers.kafka.iter().map(|broker| &broker.server))?;
        whole(site)
    };
    steps("kill -9 of all brokers at once", begin, end)
}

fn all_frozen() -> Box<dyn Fault> {
    let begin = |site: &mut Site| Ok(site.servers.kafka.iter().try_for_each(|broker| broker.server.pause())?);
    let end = |site: &mut Site, ()| {
        site.servers.kafka.iter().try_for_each(|broker| broker.server.resume())?;
        whole(site)
    };
    steps("SIGSTOP of all brokers, longer than every session time-out", begin, end)
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
fn offsets_lost(role: Role, share: Option<f64>) -> Box<dyn Fault> {
    let begin = move |site: &mut Site| {
        let count = site.fleet.of(role).len();
        let ended = site.fleet.shrink(role, 0);
        let changed = match share {
            None => delete_offsets(site, role),
            Some(share) => reset_offsets(site, role, share),
        };
        site.fleet.grow(&site.world, role, count);
        ended.and(changed)
    };
    let what = match share {
        None => format!("offsets of the {} group deleted", role.name()),
        Some(share) => format!("offsets of the {} group set to {:.0} % of each partition", role.name(), share * 100.0),
    };
    steps(what, begin, |_, ()| Ok(()))
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
