//! Asking servers from outside, and looking at processes.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use devstack::ProcessId;

/// Sends one inline command and gives the answer without its type and length.
pub fn redis(endpoint: &str, command: &str) -> String {
    try_redis(endpoint, command, Duration::from_secs(10)).unwrap()
}

pub fn try_redis(endpoint: &str, command: &str, timeout: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(endpoint.trim_start_matches("redis://"))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut buffer = [0; 1024];
    let count = stream.read(&mut buffer)?;
    let answer = String::from_utf8_lossy(&buffer[..count]).trim_end().to_owned();
    Ok(match answer.split_once("\r\n") {
        Some((_, value)) => value.to_owned(),
        None => answer,
    })
}

/// The status of the registry's list of subjects.
pub fn registry_status(endpoint: &str) -> u16 {
    let (host, path) = endpoint.trim_start_matches("http://").split_once('/').unwrap();
    let port = host.rsplit_once(':').unwrap().1.parse().unwrap();
    devstack::http_get(port, &format!("/{path}/subjects")).unwrap().0
}

/// Processes and those they have started.
pub fn with_children(processes: impl IntoIterator<Item = ProcessId>) -> Vec<ProcessId> {
    processes.into_iter().flat_map(|process| [vec![process], process.children()].concat()).collect()
}
