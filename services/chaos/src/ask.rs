//! Asking brokers what no client library tells: who controls the cluster, who coordinates whom. The smallest requests of Kafka's protocol
//! (<https://kafka.apache.org/protocol>), past the proxies.

use anyhow::{Result, anyhow, ensure};
use devstack::kafka::{Answer, text};

use crate::site::Servers;

/// One partition of a topic: who leads it, how many copies it has, how many of them are in sync.
struct Partition {
    number: i32,
    leader: i32,
    copies: usize,
    in_sync: usize,
}

/// The broker, by its place in the list, that leads a partition of a topic.
pub(crate) fn leader(servers: &Servers, topic: &str, partition: i32) -> Result<usize> {
    let all = partitions(servers, topic)?;
    let found = all.iter().find(|p| p.number == partition);
    index(servers, found.ok_or_else(|| anyhow!("{topic} has no partition {partition}"))?.leader)
}

/// Whether each partition of a topic has a leader and all its copies.
pub(crate) fn in_sync(servers: &Servers, topic: &str) -> Result<bool> {
    Ok(partitions(servers, topic)?.iter().all(|p| p.leader > 0 && p.in_sync == p.copies))
}

/// Metadata, version 2, one topic.
fn partitions(servers: &Servers, topic: &str) -> Result<Vec<Partition>> {
    let body = [&1i32.to_be_bytes()[..], &text(topic)].concat();
    let mut answer = any(servers, 3, 2, &body)?;
    answer.cluster()?;
    // "Controller" (any broker, in this version of the cluster), topics.
    answer.int()?;
    ensure!(answer.int()? == 1, "the answer is not about one topic");
    // Error, name, internal.
    answer.take(2)?;
    answer.text()?;
    answer.take(1)?;
    let count = answer.int()?;
    let mut partition = |_| {
        answer.take(2)?;
        let (number, leader) = (answer.int()?, answer.int()?);
        Ok(Partition { number, leader, copies: nodes(&mut answer)?, in_sync: nodes(&mut answer)? })
    };
    (0..count).map(&mut partition).collect()
}

/// What [`coordinator`] is asked about.
pub(crate) const GROUP: u8 = 0;
pub(crate) const TRANSACTIONAL_ID: u8 = 1;

/// The broker that coordinates a group or a transactional id (FindCoordinator, version 1).
pub(crate) fn coordinator(servers: &Servers, key: &str, key_type: u8) -> Result<usize> {
    let body = [&text(key)[..], &[key_type]].concat();
    let mut answer = any(servers, 10, 1, &body)?;
    // Throttle time, error, message.
    answer.int()?;
    let error = answer.take(2)?;
    ensure!(error == [0, 0], "Kafka answers with error {error:?} to who coordinates {key}");
    answer.text()?;
    index(servers, answer.int()?)
}

/// The broker whose controller leads the quorum (DescribeQuorum, version 0).
pub(crate) fn controller(servers: &Servers) -> Result<usize> {
    const TOPIC: &[u8] = b"__cluster_metadata";
    // The header ends with no tags; then one topic with one partition 0, each with no tags. Lengths are one more than what they count.
    let body = [&[0, 2, TOPIC.len() as u8 + 1][..], TOPIC, &[2, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut answer = any(servers, 55, 0, &body)?;
    // Tags, error, topics, name, partitions, number, error.
    answer.take(1 + 2 + 1)?;
    let name = answer.take(1)?[0];
    answer.take(usize::from(name).saturating_sub(1))?;
    answer.take(1 + 4)?;
    let error = answer.take(2)?;
    ensure!(error == [0, 0], "Kafka answers with error {error:?} to who controls it");
    index(servers, answer.int()?)
}

/// Brokers are numbered 1, 2, ... in the order of the list.
fn index(servers: &Servers, node: i32) -> Result<usize> {
    let index = usize::try_from(node - 1).ok().filter(|index| *index < servers.kafka.len());
    index.ok_or_else(|| anyhow!("nobody does, or a broker {node} that there is not"))
}

/// Passes by a list of nodes; gives its length.
fn nodes(answer: &mut Answer) -> Result<usize> {
    let count = usize::try_from(answer.int()?)?;
    answer.take(count.saturating_mul(4))?;
    Ok(count)
}

/// The first good answer of any broker. A busy one may be late, so each is asked twice.
fn any(servers: &Servers, api: u16, version: u16, body: &[u8]) -> Result<Answer> {
    let mut last = anyhow!("there is no broker");
    for broker in servers.kafka.iter().chain(&servers.kafka) {
        match Answer::to(broker.server.port(), api, version, body) {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}
