//! One connection to Redis with a bound on every call, and what its errors mean.
//!
//! The library's manager reconnects when a connection breaks, but not when the server behind it has become a replica: it would get
//! READONLY for ever. Such answers replace the manager, so that a failover behind the same address heals by itself. Where sentinels say who
//! the primary is, they are asked again then, and also when there is no answer.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use domain::VoucherId;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Cmd, ConnectionAddr, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation};

use super::StoreError;
use super::place::Place;

/// Longest wait for a connection, in each try. A server that is up answers on the spot; a dead address must not hold a buyer.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// The same over TLS: a handshake takes two more round trips and some milliseconds of both processors.
const TLS_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Bounds of the pause between tries to connect. The library's own (100 ms, no upper bound, 6 tries) keep one call waiting for nine
/// seconds while Redis is down.
const RECONNECT_DELAYS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Tries to connect after the first one within one call; the next call tries again.
const RECONNECT_TRIES: usize = 2;

/// Commands that may wait in front of one connection. The library's 50 make bursts wait for each other.
const PIPELINE_BUFFER: usize = 1024;

/// Shortest time between two replacements of a manager: a server that stays read-only must not see a new connection per call.
const REPLACE_INTERVAL: Duration = Duration::from_millis(200);

/// Answers with which a server says that it cannot serve now, and another one behind the same address might.
const FAILED_OVER: [&str; 5] = ["READONLY", "MASTERDOWN", "LOADING", "NOREPLICAS", "BUSY"];

/// Answers with which a server refuses a command before it has changed anything. DENIED and BADARG are the scripts' own.
const REFUSED: [&str; 12] = [
    "OOM",
    "MISCONF",
    "NOSCRIPT",
    "NOPERM",
    "NOAUTH",
    "DENIED",
    "BADARG",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "CROSSSLOT",
];

/// One multiplexed connection. Calls share it.
pub(super) struct Connection {
    shared: Arc<Shared>,
    /// Longest time of one call, waiting for a new connection included.
    deadline: Duration,
}

struct Shared {
    place: Place,
    config: ConnectionManagerConfig,
    current: ArcSwap<Made>,
    /// The sentinels are being asked.
    is_asking: AtomicBool,
}

struct Made {
    manager: ConnectionManager,
    since: Instant,
}

impl Connection {
    /// Connects. A call fails after `response` without an answer, and after `deadline` in any case.
    pub(super) async fn open(place: &Place, response: Duration, deadline: Duration) -> RedisResult<Self> {
        let client = place.client().await?;
        let is_tls = matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. });
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(response))
            .set_connection_timeout(Some(if is_tls { TLS_CONNECT_TIMEOUT } else { CONNECT_TIMEOUT }))
            .set_min_delay(RECONNECT_DELAYS.0)
            .set_max_delay(RECONNECT_DELAYS.1)
            .set_number_of_retries(RECONNECT_TRIES)
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let manager = ConnectionManager::new_with_config(client, config.clone()).await?;
        let current = ArcSwap::from_pointee(Made { manager, since: Instant::now() });
        let shared = Shared { place: place.clone(), config, current, is_asking: AtomicBool::new(false) };
        Ok(Self { shared: Arc::new(shared), deadline })
    }

    /// Runs one command.
    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failure> {
        self.bounded(async |mut manager| command.query_async(&mut manager).await).await
    }

    /// Runs a script, loading it where the server does not have it.
    pub(super) async fn invoke(&self, invocation: &ScriptInvocation<'_>) -> Result<Vec<String>, Failure> {
        self.bounded(async |mut manager| invocation.invoke_async(&mut manager).await).await
    }

    /// Runs a pipeline made with `ignore_errors`; each command has its own result.
    pub(super) async fn pipeline(&self, pipeline: &Pipeline) -> Result<Vec<Result<Vec<String>, Failure>>, Failure> {
        let results: Vec<RedisResult<Vec<String>>> =
            self.bounded(async |mut manager| pipeline.query_async(&mut manager).await).await?;
        Ok(results.into_iter().map(|result| result.map_err(|error| self.judge(error))).collect())
    }

    async fn bounded<T, F>(&self, call: impl FnOnce(ConnectionManager) -> F) -> Result<T, Failure>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let manager = self.shared.current.load().manager.clone();
        match tokio::time::timeout(self.deadline, call(manager)).await {
            Ok(result) => result.map_err(|error| self.judge(error)),
            Err(_) => {
                self.move_on();
                Err(Failure::Deadline(self.deadline))
            }
        }
    }

    fn judge(&self, error: RedisError) -> Failure {
        if error.code().is_some_and(|code| FAILED_OVER.contains(&code)) {
            match &self.shared.place {
                Place::Fixed(client) => self.shared.replace(client.clone()),
                Place::Sentinels { .. } => self.move_on(),
            }
        } else if error.is_io_error() {
            self.move_on();
        }
        Failure::Redis(error)
    }

    /// Asks in the background where the primary is, if it may have moved. Further failures meanwhile do not ask again.
    fn move_on(&self) {
        let shared = self.shared.clone();
        let is_due = shared.place.may_move() && shared.current.load().since.elapsed() >= REPLACE_INTERVAL;
        if !is_due || shared.is_asking.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(async move {
            match shared.place.client().await {
                Ok(client) => shared.replace(client),
                Err(error) => tracing::warn!("no sentinel of Redis says where the primary is: {error}"),
            }
            shared.is_asking.store(false, Ordering::Release);
        });
    }
}

impl Shared {
    /// Puts a new manager in place, which connects at its first call.
    fn replace(&self, client: Client) {
        let old = self.current.load();
        if old.since.elapsed() < REPLACE_INTERVAL {
            return;
        }
        if let Ok(manager) = ConnectionManager::new_lazy_with_config(client, self.config.clone()) {
            self.current.compare_and_swap(&*old, Made { manager, since: Instant::now() }.into());
        }
    }
}

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    Redis(RedisError),
    Deadline(Duration),
}

impl Failure {
    /// The server lost the script (restart, failover, SCRIPT FLUSH).
    pub(super) fn is_no_script(&self) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some("NOSCRIPT"))
    }

    /// What it means for the caller of a call about `voucher`.
    pub(super) fn about(self, voucher: Option<&VoucherId>) -> StoreError {
        let error = match self {
            Self::Deadline(deadline) => return StoreError::Unknown(format!("no answer within {deadline:?}")),
            Self::Redis(error) => error,
        };
        let text = one_line(&error);
        match (error.code(), error.kind(), voucher) {
            (Some("DAMAGED" | "WRONGTYPE"), _, Some(voucher)) => StoreError::Damaged { voucher: voucher.clone(), problem: text },
            // Scripts and commands are only ever asked for texts, so an answer of another shape comes from a foreign value.
            (None, ErrorKind::UnexpectedReturnType | ErrorKind::Parse, Some(voucher)) => {
                StoreError::Damaged { voucher: voucher.clone(), problem: text }
            }
            (Some(code), ..) if FAILED_OVER.contains(&code) || REFUSED.contains(&code) => StoreError::Unavailable(text),
            (_, ErrorKind::AuthenticationFailed, _) => StoreError::Unavailable(text),
            _ if error.is_connection_refusal() => StoreError::Unavailable(text),
            _ => StoreError::Unknown(text),
        }
    }
}

/// The error's text without the place in the script that Redis appends.
fn one_line(error: &RedisError) -> String {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    match text.split_once(" script: ") {
        Some((head, _)) => head.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str) -> Failure {
        let detail = Some("stock is 10.0 script: 6cb8, on @user_script:28.".to_owned());
        Failure::Redis(redis::make_extension_error(code.to_owned(), detail))
    }

    #[test]
    fn a_refusal_is_known_to_have_changed_nothing_and_the_rest_is_unknown() {
        for code in FAILED_OVER.iter().chain(&REFUSED) {
            assert!(matches!(server(code).about(None), StoreError::Unavailable(_)), "{code}");
        }
        assert!(matches!(server("ERR").about(None), StoreError::Unknown(_)));
        assert!(matches!(Failure::Deadline(Duration::ZERO).about(None), StoreError::Unknown(_)));
    }

    #[test]
    fn damage_names_the_voucher_and_not_the_script() {
        let voucher = VoucherId::parse("v").unwrap();
        let text = server("DAMAGED").about(Some(&voucher)).to_string();
        assert_eq!(text, "voucher v is damaged in Redis: DAMAGED stock is 10.0");
    }
}
