//! Free ports on 127.0.0.1.
//!
//! They are taken from *below* the range from which the system gives ports to outgoing connections. A server's port
//! inside that range can be lost while the server is down for a restart: to any client on the machine, even to a client
//! that tries to reach this very port and then finds itself connected to itself.

use std::{collections::HashSet, fs, net::TcpListener, sync::Mutex};

use rand::Rng;

use crate::{Result, StackError};

/// Below it are the well-known ports of common programs.
const LOWEST: u16 = 10_000;
/// Where outgoing ports begin if the system does not say.
const USUAL_OUTGOING: u16 = 32_768;
/// A range narrower than this is left alone: the system's choice is better than a crowd.
const NARROWEST: u16 = 1_000;
/// Random tries before the system is asked.
const TRIES: u32 = 100;

/// A port that nobody listens on now, never the same twice in one process. Another process may still come first:
/// whoever uses it must be ready to ask again.
///
/// # Errors
/// When the system gives none.
pub fn free() -> Result<u16> {
    static HANDED_OUT: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut guard = HANDED_OUT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let handed_out = guard.get_or_insert_default();
    let highest = outgoing_begin();
    if highest > LOWEST + NARROWEST {
        for _ in 0..TRIES {
            let port = rand::rng().random_range(LOWEST..highest);
            if !handed_out.contains(&port) && is_free(port) {
                handed_out.insert(port);
                return Ok(port);
            }
        }
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(StackError::system("find a free port"))?;
    Ok(listener.local_addr().map_err(StackError::system("read a socket's port"))?.port())
}

/// Whether somebody could listen on it now.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn outgoing_begin() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(USUAL_OUTGOING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports: HashSet<u16> = (0..50).map(|_| free().unwrap()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.into_iter().all(is_free));
    }
}
