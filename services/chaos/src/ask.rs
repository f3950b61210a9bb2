//! Asking brokers what no client library tells: who controls the cluster, who coordinates whom. The smallest requests of Kafka's protocol
//! (<https://kafka.apache.org/protocol>), past the proxies.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};

use crate::site::{Servers, local};

/// For connecting, and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);
/// No answer to what is asked here comes near this size, in bytes.
const LONGEST_ANSWER: usize = 16 << 20;

/// How many brokers this one knows (Metadata, version 2, no topics).
pub(crate) fn brokers(port: u16) -> Result<usize> {
    let mut answer = Answer::to(port, 3, 2, &0i32.to_be_bytes())?;
    Ok(usize::try_from(answer.int()?)?)
}

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
    let mut answer = any(servers, |port| Answer::to(port, 3, 2, &body))?;
    for _ in 0..answer.int()? {
        answer.int()?;
        answer.text()?;
        answer.int()?;
        answer.text()?;
    }
    // Cluster id, "controller" (any broker, in this version of the cluster), topics.
    answer.text()?;
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
        Ok(Partition { number, leader, copies: answer.nodes()?, in_sync: answer.nodes()? })
    };
    (0..count).map(&mut partition).collect()
}

/// The broker that coordinates a transactional id (FindCoordinator, version 1).
pub(crate) fn transaction_coordinator(servers: &Servers, transactional_id: &str) -> Result<usize> {
    coordinator(servers, transactional_id, 1)
}

/// The broker that coordinates a group.
pub(crate) fn group_coordinator(servers: &Servers, group: &str) -> Result<usize> {
    coordinator(servers, group, 0)
}

fn coordinator(servers: &Servers, key: &str, key_type: u8) -> Result<usize> {
    let body = [&text(key)[..], &[key_type]].concat();
    let mut answer = any(servers, |port| Answer::to(port, 10, 1, &body))?;
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
    let mut answer = any(servers, |port| Answer::to(port, 55, 0, &body))?;
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

/// The first good answer of any broker.
fn any<T>(servers: &Servers, ask: impl Fn(u16) -> Result<T>) -> Result<T> {
    let mut last = anyhow!("there is no broker");
    for broker in &servers.kafka {
        match ask(broker.server.port()) {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A string as Kafka writes it: two bytes of length, then the text.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

/// What is left to read of an answer.
struct Answer {
    bytes: Vec<u8>,
    at: usize,
}

impl Answer {
    fn to(port: u16, api: u16, version: u16, body: &[u8]) -> Result<Self> {
        let header = [&api.to_be_bytes()[..], &version.to_be_bytes(), &1i32.to_be_bytes(), &text("chaos")].concat();
        let length = u32::try_from(header.len() + body.len())?;
        let mut stream = TcpStream::connect_timeout(&local(port), TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.write_all(&[&length.to_be_bytes()[..], &header, body].concat())?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length))?;
        ensure!((4..LONGEST_ANSWER).contains(&length), "an answer of {length} bytes is none");
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes)?;
        // Behind the correlation id.
        Ok(Self { bytes, at: 4 })
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end).ok_or_else(|| anyhow!("the answer is too short"))?;
        self.at = end;
        Ok(taken)
    }

    fn int(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into()?))
    }

    /// Passes by a list of nodes; gives its length.
    fn nodes(&mut self) -> Result<usize> {
        let count = usize::try_from(self.int()?)?;
        self.take(count.saturating_mul(4))?;
        Ok(count)
    }

    /// Passes by a text, or none (length -1).
    fn text(&mut self) -> Result<()> {
        let length = i16::from_be_bytes(self.take(2)?.try_into()?);
        self.take(usize::try_from(length).unwrap_or(0)).map(drop)
    }
}
