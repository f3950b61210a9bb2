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

/// What a broker says about its cluster.
pub(crate) struct Cluster {
    pub(crate) id: String,
    /// The ids of brokers that are ready to serve.
    pub(crate) brokers: Vec<i32>,
}

/// A Metadata request, version 2: `length, api key 3, version 2, correlation id, client id, no topics`.
pub(crate) fn kafka_cluster(port: u16) -> io::Result<Cluster> {
    const CLIENT: &[u8] = b"devstack";
    let mut body = vec![0, 3, 0, 2, 0, 0, 0, 1, 0, CLIENT.len() as u8];
    body.extend_from_slice(CLIENT);
    body.extend_from_slice(&0i32.to_be_bytes());
    let mut request = (body.len() as u32).to_be_bytes().to_vec();
    request.append(&mut body);

    let mut stream = connect(port)?;
    stream.write_all(&request)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST_ANSWER {
        return Err(odd("the answer is no Kafka metadata"));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    parse_metadata(&answer).ok_or_else(|| odd("the answer is no Kafka metadata"))
}

/// `correlation id, brokers [node id, host, port, rack], cluster id, ...`
fn parse_metadata(answer: &[u8]) -> Option<Cluster> {
    let mut rest = answer;
    fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
        let (head, tail) = rest.split_at_checked(count)?;
        *rest = tail;
        Some(head)
    }
    fn int(rest: &mut &[u8]) -> Option<i32> {
        Some(i32::from_be_bytes(take(rest, 4)?.try_into().ok()?))
    }
    // A length of -1 is Kafka's null.
    fn text(rest: &mut &[u8]) -> Option<String> {
        let length = i16::from_be_bytes(take(rest, 2)?.try_into().ok()?);
        let bytes = take(rest, usize::try_from(length).unwrap_or(0))?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
    int(&mut rest)?;
    let mut brokers = Vec::new();
    for _ in 0..int(&mut rest)? {
        brokers.push(int(&mut rest)?);
        text(&mut rest)?;
        int(&mut rest)?;
        text(&mut rest)?;
    }
    Some(Cluster { id: text(&mut rest)?, brokers })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_BROKER: &[u8] =
        b"\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x09127.0.0.1\x00\x00\x4a\x94\xff\xff\x00\x02ab\x00\x00\x00\x01";

    #[test]
    fn metadata_is_read() {
        let cluster = parse_metadata(ONE_BROKER).unwrap();
        assert_eq!((cluster.id.as_str(), cluster.brokers), ("ab", vec![1]));
    }

    #[test]
    fn metadata_cut_anywhere_is_refused() {
        for end in 0..ONE_BROKER.len() - 4 {
            assert!(parse_metadata(&ONE_BROKER[..end]).is_none(), "cut at {end}");
        }
    }
}
