//! Asking a server whether it is there: the smallest real request of each protocol, over plain TCP on 127.0.0.1.
//! Servers are asked who they are, too, so that a stranger on the same port is not taken for ours.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// For connecting and for each read and write. On loopback only a stopped or overwhelmed server takes longer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
/// No answer to what is asked here comes near this size, in bytes.
const LONGEST_ANSWER: usize = 4 * 1024 * 1024;

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn odd(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// `GET path` over HTTP/1.1; gives status and body. Follows nothing, knows no chunks: for health checks.
///
/// # Errors
/// When nobody answers within two seconds, or the answer is no HTTP.
pub fn http_get(port: u16, path: &str) -> io::Result<(u16, String)> {
    let mut stream = connect(port)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER as u64).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let status = text
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
        .ok_or_else(|| odd("the answer is no HTTP"))?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// The pid that a Redis says it has, once it answers PING.
pub(crate) fn redis_pid(port: u16, password: Option<&str>) -> io::Result<u32> {
    let mut stream = connect(port)?;
    if let Some(password) = password {
        write!(stream, "AUTH {password}\r\n")?;
        let mut ok = [0; 5];
        stream.read_exact(&mut ok)?;
        if &ok != b"+OK\r\n" {
            return Err(odd("Redis refuses the password"));
        }
    }
    // While it loads its data, Redis answers INFO but not PING.
    stream.write_all(b"PING\r\n")?;
    let mut pong = [0; 7];
    stream.read_exact(&mut pong)?;
    if &pong != b"+PONG\r\n" {
        return Err(odd("Redis is loading its data"));
    }
    stream.write_all(b"INFO server\r\n")?;
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    while text.len() < LONGEST_ANSWER {
        let count = stream.read(&mut chunk)?;
        text.extend_from_slice(&chunk[..count]);
        let so_far = String::from_utf8_lossy(&text);
        if let Some((pid, _)) = so_far.split_once("process_id:").and_then(|(_, rest)| rest.split_once("\r\n")) {
            return pid.parse().map_err(|_| odd("Redis names no pid"));
        }
        if count == 0 {
            break;
        }
    }
    Err(odd("Redis names no pid"))
}

/// What is left to read of an answer in Kafka's protocol (<https://kafka.apache.org/protocol>).
pub struct Answer {
    bytes: Vec<u8>,
    at: usize,
}

impl Answer {
    /// Makes one request of a broker: `body` is what follows the header, in which the client's id comes last.
    ///
    /// # Errors
    /// When nobody answers within two seconds, or the answer is none.
    pub fn to(port: u16, api: u16, version: u16, body: &[u8]) -> io::Result<Self> {
        let header = [&api.to_be_bytes()[..], &version.to_be_bytes(), &1i32.to_be_bytes(), &kafka_text("devstack")].concat();
        let length = (header.len() + body.len()) as u32;
        let mut stream = connect(port)?;
        stream.write_all(&[&length.to_be_bytes()[..], &header, body].concat())?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > LONGEST_ANSWER {
            return Err(odd("the answer is none of Kafka's"));
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes)?;
        // Behind the correlation id.
        Ok(Self { bytes, at: 4 })
    }

    /// So many bytes.
    ///
    /// # Errors
    /// Here and below: when the answer ends before.
    pub fn take(&mut self, count: usize) -> io::Result<&[u8]> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end).ok_or_else(|| odd("Kafka's answer is too short"))?;
        self.at = end;
        Ok(taken)
    }

    /// A number of four bytes.
    pub fn int(&mut self) -> io::Result<i32> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(i32::from_be_bytes(bytes))
    }

    /// A text; empty where there is none (length -1).
    pub fn text(&mut self) -> io::Result<String> {
        let mut length = [0; 2];
        length.copy_from_slice(self.take(2)?);
        let bytes = self.take(usize::try_from(i16::from_be_bytes(length)).unwrap_or(0))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The first part of an answer about Metadata, version 2.
    pub fn cluster(&mut self) -> io::Result<Cluster> {
        let mut brokers = Vec::new();
        for _ in 0..self.int()? {
            brokers.push(self.int()?);
            // Host, port, rack.
            self.text()?;
            self.int()?;
            self.text()?;
        }
        Ok(Cluster { id: self.text()?, brokers })
    }
}

/// What a broker says about its cluster.
pub struct Cluster {
    pub(crate) id: String,
    /// The ids of brokers that are ready to serve.
    pub brokers: Vec<i32>,
}

/// A text as Kafka writes it: two bytes of length, then the text.
pub fn kafka_text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

/// What the broker behind a port knows of its cluster.
///
/// # Errors
/// When it does not answer within two seconds, or is no broker.
pub fn kafka_cluster(port: u16) -> io::Result<Cluster> {
    // Metadata, version 2, no topics.
    Answer::to(port, 3, 2, &0i32.to_be_bytes())?.cluster()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_BROKER: &[u8] =
        b"\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x09127.0.0.1\x00\x00\x4a\x94\xff\xff\x00\x02ab\x00\x00\x00\x01";

    fn metadata(answer: &[u8]) -> io::Result<Cluster> {
        Answer { bytes: answer.to_vec(), at: 4 }.cluster()
    }

    #[test]
    fn metadata_is_read() {
        let cluster = metadata(ONE_BROKER).unwrap();
        assert_eq!((cluster.id.as_str(), cluster.brokers), ("ab", vec![1]));
    }

    #[test]
    fn metadata_cut_anywhere_is_refused() {
        for end in 0..ONE_BROKER.len() - 4 {
            assert!(metadata(&ONE_BROKER[..end]).is_err(), "cut at {end}");
        }
    }
}
