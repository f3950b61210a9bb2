//! Sales in a world: publish, let buyers come, wait until all is settled, audit.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use domain::{EventBody, RequestBody, State, Terms, VoucherId};
use infra::redis::{Gate, Store, VoucherInRedis};
use jsonwebtoken::{EncodingKey, Header};
use load::{Answer, Buyer, Plan, Report};
use replay::{Audit, AuditOptions, Verdict};

use crate::{
    World, voucher_request,
    wait::{block_on, wait_until},
    world::JWT_SECRET,
};

/// For a published voucher to be on sale.
const OPENING: Duration = Duration::from_secs(30);

/// For everything to be decided and settled once nobody buys any more: the sweeper's turn (10 s and its margin) and more than one
/// rebalance (6 s each) on a busy machine.
const SETTLING: Duration = Duration::from_secs(120);

/// A token that says `user`, good for an hour.
pub fn token(user: &str) -> String {
    // An hour on either side, for a purchase whose clock is wrong.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let claims = serde_json::json!({ "sub": user, "iat": now - 3_600, "exp": now + 3_600 });
    let key = EncodingKey::from_secret(JWT_SECRET.as_bytes()).expect("the test's secret is a good key");
    jsonwebtoken::encode(&Header::default(), &claims, &key).expect("claims can be signed")
}

/// Buyers of these names.
pub fn buyers(names: impl IntoIterator<Item = String>) -> Vec<Buyer> {
    names.into_iter().map(|user| Buyer { token: token(&user), user }).collect()
}

/// A plan for a short, even sale over `window` with a few retries; change what the test is about.
pub fn plan(url: String, voucher: &VoucherId, window: Duration) -> Plan {
    Plan {
        urls: vec![url],
        voucher: voucher.to_string(),
        quantity: None,
        window,
        shape: load::Shape::Even,
        double_clicks: 0.0,
        retries: 0,
        connections: 64,
        timeout: Duration::from_secs(20),
        seed: 1,
    }
}

/// Lets the buyers of a plan come, on a thread of its own; `join` gives what they saw.
pub fn sale(plan: Plan, buyers: Vec<Buyer>) -> std::thread::JoinHandle<Report> {
    std::thread::spawn(move || block_on(async { load::run(&plan, buyers, |_| ()).await }).expect("an HTTP client can be made"))
}

/// One purchase of one unit.
pub fn buy(url: &str, voucher: &VoucherId, user: &str) -> Answer {
    buy_again(url, voucher, user, None)
}

/// One purchase of one unit under an idempotency key: with another key it is another order.
pub fn buy_again(url: &str, voucher: &VoucherId, user: &str, key: Option<&str>) -> Answer {
    let mut request = reqwest::Client::new().post(format!("{url}/v1/vouchers/{voucher}/orders")).bearer_auth(token(user));
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    block_on(async {
        let response = request.send().await.expect("the shop answers");
        let status = response.status().as_u16();
        Answer::read(status, None, &response.bytes().await.expect("the answer has an end"))
    })
}

/// `GET` as this user: status and body.
pub fn get(url: &str, user: &str) -> (u16, serde_json::Value) {
    block_on(async {
        let response = reqwest::Client::new().get(url).bearer_auth(token(user)).send().await.expect("the shop answers");
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    })
}

impl World {
    /// Publishes the voucher through the log and waits until it is on sale in Redis. Orders and compensation must be running.
    pub fn open(&self, voucher: &VoucherId, terms: Terms) {
        let partition = terms.partition;
        let offset = self.append_request(partition, &voucher_request(voucher, RequestBody::VoucherPublished(terms)));
        let event = self.event_of(partition, offset);
        assert!(matches!(event.body, EventBody::VoucherOpened(_)), "{event:?}");
        wait_until(OPENING, "the voucher to be on sale", || self.in_redis(voucher).is_some_and(|v| v.gate == Gate::Ready));
    }

    /// The voucher as Redis has it. `None` also while Redis cannot be asked.
    pub fn in_redis(&self, voucher: &VoucherId) -> Option<VoucherInRedis> {
        block_on(async { Store::connect(&self.connections().redis).await.ok()?.voucher(voucher).await.ok()? })
    }

    /// Waits until everything appended is decided, published and settled, and no unit of these vouchers is reserved.
    #[track_caller]
    pub fn wait_settled(&self, vouchers: &[&VoucherId]) {
        wait_until(SETTLING, "everything to be settled", || {
            let at_rest = |v: VoucherInRedis| v.reserved == 0 && v.gate == Gate::Ready;
            vouchers.iter().all(|v| self.in_redis(v).is_some_and(at_rest))
                && block_on(replay::lag(self.connections(), &self.codec())).is_ok_and(|lag| lag.is_none())
        });
    }

    /// What the events of all partitions fold into.
    pub fn fold(&self) -> State {
        let mut state = State::default();
        let events = (0..self.partitions()).flat_map(|partition| self.events(partition));
        events.for_each(|(event, _)| state.evolve(&event));
        state
    }

    pub fn audit(&self) -> Audit {
        self.audit_with(AuditOptions::default())
    }

    pub fn audit_with(&self, options: AuditOptions) -> Audit {
        block_on(replay::audit(self.connections(), &self.codec(), options))
    }

    /// Panics unless Redis, the log and Postgres tell the same story.
    #[track_caller]
    pub fn assert_audit(&self) -> Audit {
        let audit = self.audit();
        assert_eq!(audit.verdict, Verdict::Equal, "{audit:#?}");
        audit
    }
}
