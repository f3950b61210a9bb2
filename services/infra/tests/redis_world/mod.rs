//! What the Redis tests share: a server of their own, a look at the raw keys, and a log of events decided by the real rules.

#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use devstack::redis::RedisOptions;
use domain::{
    CancelledBy, Event, LoggedRequest, Money, OrderId, OrderKey, Request, RequestBody, State, Terms, Timestamp, UserId,
    VoucherId, decide,
};
use infra::redis::{Gate, Patience, Store};
use redis::aio::MultiplexedConnection;

pub(crate) type Fields = BTreeMap<String, String>;

/// A redis-server of this test, the store under test, and a plain connection to look behind its back.
pub(crate) struct World {
    pub(crate) server: devstack::Server,
    pub(crate) store: Store,
    pub(crate) raw: MultiplexedConnection,
}

/// Starts a server with these further arguments.
pub(crate) async fn server(args: &[&str]) -> devstack::Server {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let start = || devstack::redis::start(RedisOptions { args, ..RedisOptions::default() });
    tokio::task::spawn_blocking(start).await.unwrap().expect("redis-server starts; `make test` installs it")
}

/// A store that a busy machine cannot make fail.
pub(crate) async fn patient(url: &str) -> Store {
    let patience = Patience { short: Duration::from_secs(20), long: Duration::from_secs(20) };
    Store::connect_with(url, patience).await.unwrap()
}

/// A connection without the store's bounds.
pub(crate) async fn raw(server: &devstack::Server) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(server.endpoint()).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(&[]).await
    }

    pub(crate) async fn with(args: &[&str]) -> Self {
        let server = server(args).await;
        let store = patient(server.endpoint()).await;
        let raw = raw(&server).await;
        Self { server, store, raw }
    }

    /// Runs a command given as words, whose answer does not matter.
    pub(crate) async fn run(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async::<redis::Value>(&mut self.raw.clone()).await.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    }

    /// The three keys as they are, where they are hashes.
    pub(crate) async fn content(&self, voucher: &VoucherId) -> [Fields; 3] {
        let mut pipeline = redis::pipe();
        for key in keys(voucher) {
            pipeline.cmd("HGETALL").arg(key);
        }
        let (voucher, reservations, held) = pipeline.query_async(&mut self.raw.clone()).await.unwrap();
        [voucher, reservations, held]
    }

    /// The three keys in Redis' own encoding, whatever they are.
    pub(crate) async fn dump(&self, voucher: &VoucherId) -> Vec<Option<Vec<u8>>> {
        let mut pipeline = redis::pipe();
        for key in keys(voucher) {
            pipeline.cmd("DUMP").arg(key);
        }
        pipeline.query_async(&mut self.raw.clone()).await.unwrap()
    }

    /// Puts back what [`World::dump`] gave.
    pub(crate) async fn restore(&self, voucher: &VoucherId, dump: &[Option<Vec<u8>>]) {
        let mut pipeline = redis::pipe();
        for (key, bytes) in keys(voucher).into_iter().zip(dump) {
            pipeline.cmd("DEL").arg(&key).ignore();
            if let Some(bytes) = bytes {
                pipeline.cmd("RESTORE").arg(&key).arg(0).arg(bytes).ignore();
            }
        }
        pipeline.query_async::<()>(&mut self.raw.clone()).await.unwrap();
    }

    /// Settles the whole log and opens the gate.
    pub(crate) async fn open(&self, log: &Log) {
        self.store.raise_fence(&log.voucher, log.partition, "opening", false).await.unwrap();
        self.store.settle(&log.events).await.unwrap();
        let seq = log.events.last().map_or(0, |(event, _)| event.voucher_seq);
        assert!(self.store.open_gate(&log.voucher, "opening", seq).await.unwrap());
        assert_eq!(self.store.voucher(&log.voucher).await.unwrap().unwrap().gate, Gate::Ready);
    }
}

pub(crate) fn keys(voucher: &VoucherId) -> [String; 3] {
    ["voucher", "reservations", "held"].map(|name| format!("{{v:{voucher}}}:{name}"))
}

pub(crate) fn voucher(id: &str) -> VoucherId {
    VoucherId::parse(id).unwrap()
}

pub(crate) fn user(id: &str) -> UserId {
    UserId::parse(id).unwrap()
}

/// The order of this user's try.
pub(crate) fn order(voucher: &VoucherId, user: &UserId, attempt: &str) -> OrderId {
    OrderKey::new(&[7; 32]).unwrap().order_id(voucher, user, Some(attempt))
}

pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

/// The requests and events of one voucher, with the state after each.
pub(crate) struct Log {
    pub(crate) voucher: VoucherId,
    pub(crate) partition: i32,
    pub(crate) events: Vec<(Event, i64)>,
    /// `states[seq]` is the fold up to and with that seq.
    pub(crate) states: Vec<State>,
}

impl Log {
    /// A log with the opening of a voucher that is on sale for an hour before and after now.
    pub(crate) fn opened(id: &str, total: i64, per_user_limit: i64) -> Self {
        Self::opened_with(id, total, per_user_limit, now() - 3_600_000, now() + 3_600_000)
    }

    pub(crate) fn opened_with(id: &str, total: i64, per_user_limit: i64, begins: i64, ends: i64) -> Self {
        let partition = 3;
        let mut log = Self { voucher: voucher(id), partition, events: Vec::new(), states: vec![State::default()] };
        log.append(RequestBody::VoucherPublished(Terms {
            title: format!("{id}: a title, with \"quotes\" and ümlauts"),
            total,
            per_user_limit,
            begins_at: Timestamp(begins),
            ends_at: Timestamp(ends),
            price: Money::new(1999, "EUR"),
            payment_window_ms: Some(1),
            partition,
        }));
        log
    }

    /// Decides a request and appends its event.
    pub(crate) fn append(&mut self, body: RequestBody) -> &Event {
        let offset = self.events.len() as i64;
        let logged = LoggedRequest {
            partition: self.partition,
            offset,
            appended_at: Timestamp(now() + offset * 10),
            request: Some(Request {
                id: uuid::Uuid::new_v4(),
                voucher_id: self.voucher.clone(),
                actor: "test".into(),
                reason: None,
                body,
            }),
        };
        let mut state = self.states.last().unwrap().clone();
        let event = decide(&state, &logged);
        assert_eq!(event.voucher_seq, self.states.len() as i64, "{event:?}");
        state.evolve(&event);
        self.states.push(state);
        // Other vouchers' events lie between ours.
        self.events.push((event, 100 + 7 * offset));
        &self.events.last().unwrap().0
    }

    pub(crate) fn request(&mut self, order_id: OrderId, user_id: &UserId, quantity: i64) -> &Event {
        let requested_at = Timestamp(now());
        self.append(RequestBody::OrderRequested { order_id, user_id: user_id.clone(), quantity, requested_at })
    }

    pub(crate) fn cancel(&mut self, order_id: OrderId) -> &Event {
        self.append(RequestBody::CancellationRequested { order_id, by: CancelledBy::Seller })
    }

    pub(crate) fn terms_version(&self) -> i64 {
        self.state().vouchers[&self.voucher].terms_version
    }

    pub(crate) fn state(&self) -> &State {
        self.states.last().unwrap()
    }
}
