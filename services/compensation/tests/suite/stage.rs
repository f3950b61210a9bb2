//! A world with a Redis of its own (tests empty it, stop it and break its keys) and the service running in this process.

use std::time::Duration;

use anyhow::Context;
use devstack::{
    Server,
    redis::{self as redis_server, RedisOptions},
};
use domain::{OrderId, Request, RequestBody, UserId, VoucherId};
use infra::{
    config::Env,
    postgres,
    redis::{Gate, Reserve, Store, VoucherInRedis},
    shutdown::CancellationToken,
};
use testkit::{World, wait_until_async};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::lane::Lane;

/// Longest wait for anything the service should do by itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) redis: Server,
    pub(crate) store: Store,
    pub(crate) raw: redis::aio::ConnectionManager,
    pool: postgres::Pool,
}

/// A service under test.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let redis = redis_server::start(RedisOptions { aof: true, ..RedisOptions::default() }).expect("a Redis can be started");
        let world = World::builder().redis(redis.endpoint()).build();
        let store = Store::connect(redis.endpoint()).await.expect("Redis answers");
        let client = redis::Client::open(redis.endpoint()).expect("the address is good");
        let raw = client.get_connection_manager().await.expect("Redis answers");
        let pool = postgres::pool(world.connections(), 2).expect("the address is good");
        Self { world, redis, store, raw, pool }
    }

    pub(crate) async fn lane(&self, partition: i32) -> Lane {
        Lane::new(&self.world, partition).await
    }

    /// Starts the service with short intervals; `more` adds and overwrites variables.
    pub(crate) fn run(&self, more: &[(&str, &str)]) -> Running {
        let mut vars = self.world.env_vars();
        let short = [
            ("DOORBUSTER_DELIVERY_TIMEOUT_MS", "1000"),
            ("DOORBUSTER_COMPENSATION_ADMIN", "127.0.0.1:0"),
            ("DOORBUSTER_COMPENSATION_WARDEN_MS", "100"),
            ("DOORBUSTER_COMPENSATION_DEEP_CHECK_MS", "300"),
            ("DOORBUSTER_COMPENSATION_SWEEP_MARGIN_MS", "200"),
            ("DOORBUSTER_COMPENSATION_WARMING_MS", "500"),
            ("DOORBUSTER_COMPENSATION_COMMIT_MS", "50"),
        ];
        vars.extend(short.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let stop = CancellationToken::new();
        let (env, stopped) = (Env::of(vars), stop.clone());
        infra::telemetry::init_logs();
        Running { stop, task: tokio::spawn(async move { compensation::run(&env, stopped).await }) }
    }

    pub(crate) async fn voucher(&self, voucher: &VoucherId) -> Option<VoucherInRedis> {
        self.store.voucher(voucher).await.ok().flatten()
    }

    pub(crate) async fn wait(&self, what: &str, condition: impl AsyncFnMut() -> bool) {
        wait_until_async(PATIENCE, what, condition).await;
    }

    /// Waits until the voucher may be sold.
    pub(crate) async fn wait_ready(&self, voucher: &VoucherId) {
        self.wait("the gate to open", async || self.voucher(voucher).await.is_some_and(|v| v.gate == Gate::Ready)).await;
    }

    /// Publishes a voucher through the lane and waits until it may be sold.
    pub(crate) async fn publish(&self, lane: &mut Lane, total: i64, per_user: i64) -> VoucherId {
        let voucher = self.world.voucher_id();
        let terms = self.world.terms(total, per_user, lane.partition);
        lane.answer(testkit::voucher_request(&voucher, RequestBody::VoucherPublished(terms))).await;
        self.wait_ready(&voucher).await;
        voucher
    }

    /// Takes units at the gate, as a purchase does, and gives the request it would publish.
    pub(crate) async fn reserve(&self, voucher: &VoucherId, user: &str, quantity: i64) -> Request {
        let order_id = self.order_id(voucher, user);
        let user_id = UserId::parse(user).expect("a good name");
        let token = Uuid::new_v4().to_string();
        let reserved = self.store.reserve(voucher, &order_id, &user_id, quantity, &token).await.expect("Redis answers");
        let Reserve::Reserved { requested_at, .. } = reserved else { panic!("not reserved: {reserved:?}") };
        let body = RequestBody::OrderRequested { order_id, user_id, quantity, requested_at };
        testkit::voucher_request(voucher, body)
    }

    pub(crate) fn order_id(&self, voucher: &VoucherId, user: &str) -> OrderId {
        self.world.order_id(voucher, user, None)
    }

    /// Waits until Redis has exactly what the log has decided: ready, nothing in flight, every unit where it belongs.
    pub(crate) async fn wait_equal(&self, lane: &Lane, voucher: &VoucherId) {
        let mut last = String::new();
        let outcome = tokio::time::timeout(PATIENCE, async {
            loop {
                match self.difference(lane, voucher).await {
                    Ok(None) => return,
                    Ok(Some(difference)) => last = difference,
                    Err(problem) => last = problem.to_string(),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        if outcome.await.is_err() {
            panic!("Redis never became what the log says: {last}");
        }
    }

    async fn difference(&self, lane: &Lane, voucher: &VoucherId) -> anyhow::Result<Option<String>> {
        let row = postgres::voucher(&self.pool, voucher).await?.context("no row")?;
        let found = self.store.voucher(voucher).await?.context("not in Redis")?;
        let sold = row.terms.total - row.remaining;
        let wanted = (Gate::Ready, row.seq, row.terms.total, row.remaining, 0, sold, row.state);
        let has = (found.gate, found.seq, found.total, found.stock, found.reserved, found.sold, found.state);
        if wanted != has {
            return Ok(Some(format!("wanted {wanted:?}, has {has:?}")));
        }
        let mut held = self.store.held(voucher).await?;
        held.sort();
        let decided = lane.held(voucher);
        let reservations = self.store.reservations(voucher).await?;
        let same = held == decided && reservations.is_empty();
        Ok((!same).then(|| format!("wanted held {decided:?}, has {held:?} and reservations {reservations:?}")))
    }

    /// Copies of all keys of the voucher, to be restored later.
    pub(crate) async fn snapshot(&mut self, voucher: &VoucherId) -> Vec<(String, Vec<u8>)> {
        let mut copies = Vec::new();
        for key in keys(voucher) {
            let copy: Option<Vec<u8>> = redis::cmd("DUMP").arg(&key).query_async(&mut self.raw).await.expect("DUMP");
            copies.extend(copy.map(|copy| (key, copy)));
        }
        copies
    }

    /// Puts the keys back as they were in the snapshot.
    pub(crate) async fn restore(&mut self, voucher: &VoucherId, copies: &[(String, Vec<u8>)]) {
        let mut all = redis::pipe();
        all.atomic().cmd("DEL").arg(&keys(voucher)).ignore();
        for (key, copy) in copies {
            all.cmd("RESTORE").arg(key).arg(0).arg(copy.as_slice()).ignore();
        }
        all.query_async::<()>(&mut self.raw).await.expect("RESTORE");
    }

    /// A prefix for groups that nobody has used yet.
    pub(crate) fn fresh_prefix(&self) -> String {
        format!("{}-{}", self.world.connections().prefix, Uuid::new_v4().simple())
    }

    /// Milliseconds until the key expires; below 0: never, or it is not there.
    pub(crate) async fn time_to_live(&self, key: &str) -> i64 {
        redis::cmd("PTTL").arg(key).query_async(&mut self.raw.clone()).await.expect("Redis answers")
    }

    /// Lets Redis refuse every reset, and nothing else, until it is allowed again.
    pub(crate) async fn forbid_resets(&mut self, forbidden: bool) {
        self.command(&["ACL", "SETUSER", "default", if forbidden { "-unlink" } else { "+unlink" }]).await;
    }

    pub(crate) async fn command(&mut self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async::<redis::Value>(&mut self.raw).await.expect("the command works");
    }
}

impl Running {
    /// Asks for the end and waits for it.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.task).await.expect("the service ends in time");
        ended.expect("it does not panic").expect("it ends well");
    }
}

/// The port of the admin listener, from the file that says where the service listens.
pub(crate) fn port(ready: &std::path::Path) -> u16 {
    let listening = std::fs::read_to_string(ready).expect("it says where it listens");
    listening.rsplit(':').next().and_then(|p| p.trim_end_matches(['"', '}']).parse().ok()).expect("a port")
}

pub(crate) fn keys(voucher: &VoucherId) -> [String; 3] {
    ["voucher", "reservations", "held"].map(|part| format!("{{v:{voucher}}}:{part}"))
}
