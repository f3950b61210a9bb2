//! Whether a Redis server is fit for the job, judged once at the start with one clear line for what is wrong.

use redis::io::tcp::TcpSettings;
use redis::{Client, ErrorKind, InfoDict, IntoConnectionInfo, RedisError, TlsCertificates};

use super::StoreError;
use super::connection::Connection;
use crate::config::{address::take_parameter, check_authorities};

/// In the address of a server over TLS: a PEM file of the authorities that may sign its certificate, instead of the system's.
const CA: &str = "ca";

/// Oldest version that refuses a script before it starts where memory is full (`#!lua` flags; redis.io, "Script flags").
const OLDEST: (u32, u32) = (7, 0);

/// Longest time that sent bytes may stay unacknowledged before the connection counts as broken. Without it, a connection to a machine
/// that vanished stays in use for a quarter of an hour of time-outs.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: std::time::Duration = std::time::Duration::from_secs(2);

/// A client for `url`; connects nothing yet.
pub(super) fn client(url: &str) -> Result<Client, StoreError> {
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(UNACKNOWLEDGED);
    let (address, ca) = take_parameter(url, CA);
    let authorities = ca.map(|file| authorities(&file).map_err(|problem| unfit(url, problem))).transpose()?;
    let opened = address.into_connection_info().map(|info| info.set_tcp_settings(tcp)).and_then(|info| match authorities {
        None => Client::open(info),
        Some(pem) => Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(pem) }),
    });
    opened.map_err(|error| {
        let form = "redis://[[user]:password@]host[:port][/db], or rediss://...[?ca=FILE] over TLS";
        unfit(url, format!("this is no address of a Redis server ({error}); write DOORBUSTER_REDIS as {form}"))
    })
}

fn authorities(file: &str) -> Result<Vec<u8>, String> {
    let problem = |problem: String| format!("ca={file} in DOORBUSTER_REDIS: {problem}");
    check_authorities(file.as_ref()).map_err(problem)?;
    std::fs::read(file).map_err(|error| problem(error.to_string()))
}

/// The error of a first connection that failed.
pub(super) fn cannot_connect(url: &str, error: RedisError) -> StoreError {
    if error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) {
        return unfit(url, format!("it refuses the user or password in DOORBUSTER_REDIS ({error})"));
    }
    let text = error.to_string();
    let remedy = if text.contains("certificate") {
        "is its authority in the file that ca=FILE names in DOORBUSTER_REDIS, and its host name in the certificate?"
    } else {
        "is it running there (DOORBUSTER_REDIS), with TLS if the address begins with rediss: and only then?"
    };
    StoreError::Unavailable(format!("cannot connect to {}: {text}; {remedy}", masked(url)))
}

/// Refuses a server that is too old, a cluster node, or one that throws keys away when memory is full.
pub(super) async fn check(url: &str, connection: &Connection) -> Result<(), StoreError> {
    let mut info = Vec::new();
    for section in ["server", "memory"] {
        let answer = connection.query::<InfoDict>(redis::cmd("INFO").arg(section)).await;
        info.push(answer.map_err(|failure| match failure.about(None) {
            StoreError::Unavailable(text) if text.contains("NOPERM") => {
                unfit(url, "this user may not use INFO, which the check of version and memory policy needs: ACL +info".into())
            }
            other => other,
        })?);
    }
    let text = |name: &str| info.iter().find_map(|section| section.get::<String>(name)).unwrap_or_default();
    judge(&text("redis_version"), &text("redis_mode"), &text("maxmemory"), &text("maxmemory_policy"))
        .map_err(|problem| unfit(url, problem))
}

fn judge(version: &str, mode: &str, maxmemory: &str, policy: &str) -> Result<(), String> {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if (major, minor) < OLDEST {
        return Err(format!("its version is {version:?}, but {}.{} or newer is needed", OLDEST.0, OLDEST.1));
    }
    if mode == "cluster" {
        return Err("it is a node of a Redis Cluster, which is not supported; use a single server or a primary".into());
    }
    if policy == "noeviction" {
        return Ok(());
    }
    if maxmemory == "0" {
        tracing::warn!(policy, "Redis has no memory limit now, but would evict keys under one: set maxmemory-policy noeviction");
        return Ok(());
    }
    Err(format!(
        "its maxmemory-policy is {policy:?}, so it throws keys away when memory is full, and with them stock; \
         set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in its configuration file)"
    ))
}

pub(super) fn unfit(url: &str, problem: String) -> StoreError {
    StoreError::Unfit { url: masked(url), problem }
}

/// The address without user and password, which errors and logs must not show.
fn masked(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    let secret = if address.len() < rest.len() && rest.contains('@') { "***@" } else { "" };
    if scheme.is_empty() { format!("{secret}{address}") } else { format!("{scheme}://{secret}{address}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let shown = [
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://:hunter2@h:1", "redis://***@h:1"),
            ("redis://bob:hun@ter2@h:1/3", "redis://***@h:1/3"),
            ("unix:///run/r.sock?pass=hunter2", "unix:///run/r.sock"),
            ("bob:hunter2@h", "***@h"),
        ];
        for (url, expected) in shown {
            assert_eq!(masked(url), expected);
        }
        let error = client("redis://bob:hunter2@").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn only_a_new_single_server_that_keeps_its_keys_is_fit() {
        assert_eq!(judge("7.0.15", "standalone", "0", "noeviction"), Ok(()));
        assert_eq!(judge("8.2.1", "standalone", "1073741824", "noeviction"), Ok(()));
        assert_eq!(judge("7.2.4", "standalone", "0", "allkeys-lru"), Ok(()));
        assert!(judge("6.2.14", "standalone", "0", "noeviction").unwrap_err().contains("6.2.14"));
        assert!(judge("", "standalone", "0", "noeviction").is_err());
        assert!(judge("7.0.15", "cluster", "0", "noeviction").is_err());
        assert!(judge("7.0.15", "standalone", "100mb", "volatile-lru").unwrap_err().contains("noeviction"));
    }
}
