//! One purchase service in the test's process, and buyers who call it.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use domain::{Event, EventBody, OrderId, Request, RequestBody, Terms, Timestamp, VoucherId, VoucherState};
use infra::{config::Env, redis::Store, shutdown::CancellationToken};
use jsonwebtoken::{EncodingKey, Header, encode};
use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use testkit::{World, wait_until_async};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running service.
pub(crate) struct Shop {
    pub(crate) http: String,
    pub(crate) admin: String,
    pub(crate) address: SocketAddr,
    secret: Vec<u8>,
    client: reqwest::Client,
    stop: CancellationToken,
    service: JoinHandle<anyhow::Result<()>>,
    _ready: tempfile::TempDir,
}

/// What a buyer got.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl Reply {
    #[track_caller]
    pub(crate) fn order_id(&self) -> OrderId {
        assert_eq!(self.status, StatusCode::ACCEPTED, "{self:?}");
        OrderId::parse(self.body["order_id"].as_str().expect("ids are strings")).expect("an order id")
    }

    /// Asserts an error answer as RFC 9457 wants it.
    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.body["code"].as_str()), (status, Some(code)), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!((&self.body["status"], &self.body["type"]), (&json!(status), &json!(format!("/problems/{code}"))));
        assert!(self.body["title"].is_string() && self.body["detail"].is_string(), "{self:?}");
        let retry_after = self.headers.get("retry-after").map(|v| v.to_str().unwrap().parse::<u64>().unwrap());
        assert_eq!(self.body["retry_after"].as_u64(), retry_after, "{self:?}");
        assert!(retry_after.is_some_and(|s| s > 0) || !matches!(status, 429 | 503), "{self:?}");
    }
}

impl Shop {
    /// Starts the service in this world with further variables, and waits until it listens.
    pub(crate) async fn open(world: &World, vars: &[(&str, &str)]) -> Self {
        let ready = tempfile::tempdir().unwrap();
        let file = ready.path().join("ready.json");
        let mut all = world.env_vars();
        let secret = all.iter().find(|(name, _)| name == "DOORBUSTER_JWT_SECRET").unwrap().1.clone().into_bytes();
        all.push(("DOORBUSTER_READY_FILE".to_owned(), file.display().to_string()));
        all.push(("DOORBUSTER_PURCHASE_USER_RATE".to_owned(), "100000".to_owned()));
        all.push(("DOORBUSTER_PURCHASE_USER_BURST".to_owned(), "100000".to_owned()));
        all.extend(vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let stop = CancellationToken::new();
        let (env, stopped) = (Env::of(all), stop.clone());
        let service = tokio::spawn(async move { purchase::run(&env, stopped).await });
        let mut addresses = None;
        wait_until_async(PATIENCE, "the service to listen", async || {
            assert!(!service.is_finished(), "the service ended at its start");
            addresses = std::fs::read(&file).ok();
            addresses.is_some()
        })
        .await;
        let addresses = addresses.unwrap();
        let addresses: Value = serde_json::from_slice(&addresses).unwrap();
        let address = addresses["http"].as_str().unwrap();
        Self {
            http: format!("http://{address}"),
            admin: format!("http://{}", addresses["admin"].as_str().unwrap()),
            address: address.parse().unwrap(),
            secret,
            client: reqwest::Client::builder().timeout(PATIENCE).build().unwrap(),
            stop,
            service,
            _ready: ready,
        }
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        encode(&Header::default(), claims, &EncodingKey::from_secret(&self.secret).unwrap()).unwrap()
    }

    pub(crate) fn token(&self, user: &str) -> String {
        self.sign(&json!({"sub": user, "exp": jsonwebtoken::get_current_timestamp() + 600}))
    }

    pub(crate) fn post(&self, voucher: &str, user: &str) -> RequestBuilder {
        self.client.post(format!("{}/v1/vouchers/{voucher}/orders", self.http)).bearer_auth(self.token(user))
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}/v1/vouchers/{path}", self.http))
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Reply {
        let response = request.send().await.expect("the service answers");
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Reply { status, headers, body }
    }

    /// One purchase, with a key if given; again where Redis did not answer in time, as any buyer may, and on a busy machine must.
    pub(crate) async fn buy(&self, voucher: &VoucherId, user: &str, key: Option<&str>, quantity: i64) -> Reply {
        let started = Instant::now();
        loop {
            let reply = self.buy_once(voucher, user, key, quantity).await;
            if reply.body["code"] != "gate_away" || started.elapsed() > PATIENCE {
                return reply;
            }
        }
    }

    /// One purchase, with a key if given.
    pub(crate) async fn buy_once(&self, voucher: &VoucherId, user: &str, key: Option<&str>, quantity: i64) -> Reply {
        let mut request = self.post(voucher.as_str(), user).body(json!({"quantity": quantity}).to_string());
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        self.send(request).await
    }

    pub(crate) async fn order(&self, voucher: &VoucherId, order: &OrderId, user: &str) -> Reply {
        self.send(self.get(&format!("{voucher}/orders/{order}")).bearer_auth(self.token(user))).await
    }

    /// The status and text of a path on the second listener.
    pub(crate) async fn admin(&self, path: &str) -> (u16, String) {
        let response = self.client.get(format!("{}/{path}", self.admin)).send().await.expect("the second listener answers");
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// As SIGTERM does; the service then ends by itself.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.service.is_finished()
    }

    /// What the service returns at its end.
    pub(crate) async fn ended(self) -> anyhow::Result<()> {
        tokio::time::timeout(PATIENCE, self.service).await.expect("the service ends").unwrap()
    }
}

/// A Redis of the test's own whose every answer is on the disk, so that a kill loses nothing.
pub(crate) fn redis_that_keeps_everything() -> devstack::Server {
    let args = ["--appendfsync", "always"].map(str::to_owned).to_vec();
    devstack::redis::start(devstack::redis::RedisOptions { aof: true, args, ..Default::default() }).unwrap()
}

/// The event that opens a voucher.
pub(crate) fn opened(voucher: &VoucherId, terms: &Terms) -> Event {
    event(voucher, 1, terms.partition, EventBody::VoucherOpened(terms.clone()))
}

/// The event that changes a voucher's state, the second of its life.
pub(crate) fn changed(voucher: &VoucherId, terms: &Terms, state: VoucherState) -> Event {
    event(voucher, 2, terms.partition, EventBody::VoucherChanged { state, total: terms.total, terms_version: 2 })
}

fn event(voucher: &VoucherId, seq: i64, partition: i32, body: EventBody) -> Event {
    Event {
        voucher_id: Some(voucher.clone()),
        voucher_seq: seq,
        partition,
        request_offset: seq,
        request_id: Uuid::new_v4(),
        decided_at: Timestamp(0),
        rules_version: 1,
        remaining: 0,
        held: 0,
        body,
    }
}

/// Puts the voucher on sale in Redis, as compensation would.
pub(crate) async fn put_on_sale(store: &Store, voucher: &VoucherId, terms: &Terms) {
    store.settle(&[(opened(voucher, terms), 0)]).await.unwrap();
    store.raise_fence(voucher, terms.partition, "epoch", false).await.unwrap();
    assert!(store.open_gate(voucher, "epoch", 1).await.unwrap());
}

/// A world with a voucher on sale and the service open.
pub(crate) async fn on_sale(total: i64, limit: i64, vars: &[(&str, &str)]) -> (World, Store, VoucherId, Shop) {
    let world = World::new();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(total, limit, 1)).await;
    let shop = Shop::open(&world, vars).await;
    (world, store, voucher, shop)
}

/// The requests on the partition of this file's vouchers, in order; each must be of this voucher.
pub(crate) fn requests(world: &World, voucher: &VoucherId) -> Vec<Request> {
    let codec = world.codec();
    let records = world.records(&world.connections().topics.requests, 1);
    let requests = records.into_iter().map(|record| codec.decode_request(&record.payload).unwrap());
    requests.inspect(|request| assert_eq!(request.voucher_id, *voucher)).collect()
}

/// The orders asked for in the log: id, user, quantity.
pub(crate) fn asked_for(world: &World, voucher: &VoucherId) -> Vec<(OrderId, String, i64)> {
    let body = |request: Request| match request.body {
        RequestBody::OrderRequested { order_id, user_id, quantity, .. } => (order_id, user_id.as_str().to_owned(), quantity),
        other => panic!("purchase sent {other:?}"),
    };
    requests(world, voucher).into_iter().map(body).collect()
}

/// Writes an order's row, as a lane would.
pub(crate) async fn write_order(world: &World, voucher: &VoucherId, order: &OrderId, user: &str, quantity: i64) {
    let sql =
        "INSERT INTO orders (order_id, voucher_id, partition, user_id, quantity, status, requested_at, decided_at, changed_at,
        voucher_seq, request_offset, slot) VALUES ($1, $2, 1, $3, $4, 'confirmed', now(), now(), now(), 2, 0, 2)";
    let client = world.postgres().await;
    client.execute(sql, &[&order.as_uuid(), &voucher.as_str(), &user, &quantity]).await.unwrap();
}

/// Writes a voucher's row, as a lane would.
pub(crate) async fn write_voucher(world: &World, voucher: &VoucherId) {
    let sql = "INSERT INTO vouchers (voucher_id, partition, title, total, remaining, per_user_limit, begins_at, ends_at, price_minor,
        currency, state, terms_version, seq) VALUES ($1, 1, 'From Postgres', 10, 4, 1, now(), now() + interval '1 hour', 100, 'EUR',
        'open', 1, 1)";
    world.postgres().await.execute(sql, &[&voucher.as_str()]).await.unwrap();
}

/// Says how far the lane came, as the lane would.
pub(crate) async fn write_position(world: &World, next_offset: i64) {
    let sql = "INSERT INTO lane_positions (topic, partition, next_offset, records) VALUES ($1, 1, $2, '')
        ON CONFLICT (topic, partition) DO UPDATE SET next_offset = $2";
    let topic = &world.connections().topics.requests;
    world.postgres().await.execute(sql, &[topic, &next_offset]).await.unwrap();
}
