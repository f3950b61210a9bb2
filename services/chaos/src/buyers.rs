//! Buyers of a chaos run, with a seed: they come at their rate whatever the shop answers (an open loop), and behave as people and their
//! networks do. Everything they are told goes into the [`Ledger`].

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context;
use domain::{OrderId, OrderStatus, VoucherId};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use reqwest::RequestBuilder;
use serde_json::Value;
use testkit::{World, token};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::ledger::{Call, Ledger, Offer, Outcome, What};

/// Visits that go on at one moment; whoever comes then turns away at the door. Ten seconds of a stand-still at 200 a second.
const MAX_VISITS: usize = 2_000;

/// Times a buyer makes the same call again after "busy" or no answer.
const RETRIES: u32 = 6;

/// First and longest pause before that, halved to doubled at random.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Accepted purchases that are remembered for second thoughts; the oldest is forgotten first.
const REMEMBERED: usize = 1_000;

/// A buyer who hangs up waits no longer than this before: some answers come sooner.
const PATIENCE_OF_THE_RASH: Duration = Duration::from_millis(15);

/// A buyer looks after his order at most so long after it was accepted, so that he sees it pending, and again decided.
const LOOK_WITHIN: Duration = Duration::from_millis(1_500);

/// What buyers do.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Visits a second. Most are one call, some two or three.
    pub rate: f64,
    /// For one answer. A purchase process answers within its own time-outs or, frozen or cut off, not at all.
    pub timeout: Duration,
}

impl Plan {
    pub fn new(seed: u64, rate: f64) -> Self {
        Self { seed, rate, timeout: Duration::from_secs(5) }
    }
}

/// Why somebody comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    /// A new user buys.
    Fresh,
    /// A new user clicks twice at once, on two processes where there are two.
    DoubleClick,
    /// A new user buys, but closes the connection soon, as likely as not before the answer.
    HangUp,
    /// Somebody who was accepted makes the same call again.
    Again,
    /// The same with another key: another order.
    OtherKey,
    /// The same with another quantity: never what he got.
    OtherQuantity,
    /// Somebody who was accepted looks after his order.
    Look,
    /// A call that makes no sense.
    Nonsense,
}

/// How often each kind comes, in percent. At 100 visits a second some 75 new orders are asked for.
const MIX: [(Visit, u32); 8] = [
    (Visit::Fresh, 66),
    (Visit::DoubleClick, 6),
    (Visit::HangUp, 5),
    (Visit::Again, 5),
    (Visit::OtherKey, 5),
    (Visit::OtherQuantity, 3),
    (Visit::Look, 8),
    (Visit::Nonsense, 2),
];

/// One purchase as a buyer means it: whatever is repeated with these four is the same order.
#[derive(Clone, Debug)]
struct Wish {
    user: String,
    voucher: VoucherId,
    quantity: i64,
    key: Option<String>,
}

/// What the visits share.
struct Shop {
    http: reqwest::Client,
    urls: Vec<String>,
    timeout: Duration,
    ledger: Ledger,
    stopped: AtomicBool,
    accepted: Mutex<VecDeque<(Wish, OrderId)>>,
}

/// Buyers who come until they are stopped.
pub struct Buyers {
    shop: Arc<Shop>,
    thread: Option<JoinHandle<()>>,
}

impl Buyers {
    /// Lets buyers come to the purchase services at `urls`. `world` is where they buy; their ids are of the run alone.
    pub fn start(world: &World, urls: Vec<String>, plan: Plan, ledger: Ledger) -> anyhow::Result<Self> {
        anyhow::ensure!(!urls.is_empty() && plan.rate > 0.0, "nobody can buy nowhere, or never");
        let http = reqwest::Client::builder()
            .timeout(plan.timeout)
            .connect_timeout(plan.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .context("an HTTP client can be made")?;
        let shop = Arc::new(Shop {
            http,
            urls,
            timeout: plan.timeout,
            ledger,
            stopped: AtomicBool::new(false),
            accepted: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
        let (inside, prefix) = (Arc::clone(&shop), world.connections().prefix.clone());
        let come = move || runtime.block_on(let_them_come(inside, plan, prefix));
        let thread = std::thread::Builder::new().name("buyers".to_owned()).spawn(come).context("no thread")?;
        Ok(Self { shop, thread: Some(thread) })
    }

    /// Lets nobody come any more, waits until those who are there have their answers (two time-outs at most, and a bit), and returns. Panics where a
    /// buyer panicked.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shop.stopped.store(true, Ordering::Relaxed);
        let joined = self.thread.take().map(JoinHandle::join);
        if let Some(Err(panic)) = joined.filter(|_| !std::thread::panicking()) {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Buyers {
    fn drop(&mut self) {
        self.end();
    }
}

async fn let_them_come(shop: Arc<Shop>, plan: Plan, prefix: String) {
    let mut random = SmallRng::seed_from_u64(plan.seed);
    let mut visits = JoinSet::new();
    let mut tick = interval(Duration::from_secs_f64(1.0 / plan.rate));
    // Whoever was held up comes all the same: the loop is open.
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut number = 0_u64;
    while !shop.stopped.load(Ordering::Relaxed) {
        tick.tick().await;
        while let Some(ended) = visits.try_join_next() {
            pass_on_panic(ended);
        }
        number += 1;
        let seed = random.random();
        if visits.len() < MAX_VISITS {
            visits.spawn(visit(Arc::clone(&shop), format!("{prefix}-u{number}"), SmallRng::seed_from_u64(seed)));
        }
    }
    while let Some(ended) = visits.join_next().await {
        pass_on_panic(ended);
    }
}

fn pass_on_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
        std::panic::resume_unwind(panic);
    }
}

/// `name`: of the user, where a new one comes.
async fn visit(shop: Arc<Shop>, name: String, mut random: SmallRng) {
    let Some(offer) = drawn(&shop.ledger.offers(), &mut random) else { return };
    let visit = MIX.choose_weighted(&mut random, |(_, percent)| *percent).map_or(Visit::Fresh, |(visit, _)| *visit);
    let purchase = random.random_range(0..shop.urls.len());
    let fresh = |random: &mut SmallRng| {
        // A third of those who may have more than one unit want more than one, and some more than they may have.
        let more = offer.per_user_limit > 1 && random.random_bool(0.33);
        let quantity = if more { random.random_range(2..=offer.per_user_limit + 1) } else { 1 };
        let key = random.random_bool(0.5).then(|| format!("{name}-first"));
        Wish { user: name.clone(), voucher: offer.voucher.clone(), quantity, key }
    };
    match visit {
        Visit::Fresh => {
            let wish = fresh(&mut random);
            shop.buy(&wish, purchase, &mut random).await;
        }
        Visit::DoubleClick => {
            let wish = fresh(&mut random);
            let mut second = SmallRng::seed_from_u64(random.random());
            let other = (purchase + 1) % shop.urls.len();
            tokio::join!(shop.buy(&wish, purchase, &mut random), shop.buy(&wish, other, &mut second));
        }
        Visit::HangUp => {
            let wish = fresh(&mut random);
            let patience = random.random_range(Duration::ZERO..PATIENCE_OF_THE_RASH);
            shop.try_once(&wish, purchase, patience).await;
            // Half of them come back and ask again.
            if random.random_bool(0.5) {
                shop.buy(&wish, purchase, &mut random).await;
            }
        }
        Visit::Nonsense => shop.nonsense(&offer.voucher, &name, purchase, &mut random).await,
        Visit::Again | Visit::OtherKey | Visit::OtherQuantity | Visit::Look => {
            let Some((wish, order)) = shop.somebody(&mut random) else { return };
            match visit {
                Visit::Again => shop.buy(&wish, purchase, &mut random).await,
                Visit::OtherKey => {
                    let key = Some(format!("{name}-other"));
                    shop.buy(&Wish { key, ..wish }, purchase, &mut random).await;
                }
                Visit::OtherQuantity => {
                    let quantity = wish.quantity + 1;
                    shop.try_once(&Wish { quantity, ..wish }, purchase, shop.timeout).await;
                }
                _ => shop.look(&wish, order, purchase).await,
            }
        }
    }
}

fn drawn(offers: &[Offer], random: &mut SmallRng) -> Option<Offer> {
    offers.choose_weighted(random, |offer| offer.share).ok().cloned()
}

impl Shop {
    /// Somebody who was accepted not long ago, and his order.
    fn somebody(&self, random: &mut SmallRng) -> Option<(Wish, OrderId)> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        if accepted.is_empty() { None } else { accepted.get(random.random_range(0..accepted.len())).cloned() }
    }

    fn remember(&self, wish: &Wish, order: OrderId) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        if accepted.len() == REMEMBERED {
            accepted.pop_front();
        }
        accepted.push_back((wish.clone(), order));
    }

    /// Buys until there is an answer or patience is over; a quarter of the accepted look after their order at once and a little later.
    async fn buy(&self, wish: &Wish, purchase: usize, random: &mut SmallRng) {
        let (mut purchase, mut pause) = (purchase, FIRST_PAUSE);
        for _ in 0..=RETRIES {
            match self.try_once(wish, purchase, self.timeout).await {
                Outcome::Accepted { order_id, .. } => {
                    self.remember(wish, order_id);
                    if random.random_bool(0.25) {
                        self.look(wish, order_id, purchase).await;
                        sleep(random.random_range(Duration::ZERO..LOOK_WITHIN)).await;
                        if !self.stopped.load(Ordering::Relaxed) {
                            self.look(wish, order_id, (purchase + 1) % self.urls.len()).await;
                        }
                    }
                    return;
                }
                Outcome::Refused { .. } => return,
                Outcome::Busy | Outcome::Unknown(_) => {}
            }
            sleep(pause.mul_f64(random.random_range(0.5..2.0))).await;
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            (purchase, pause) = ((purchase + 1) % self.urls.len(), LONGEST_PAUSE.min(pause * 2));
        }
    }

    /// One purchase, given up (and the connection closed) after `patience`.
    async fn try_once(&self, wish: &Wish, purchase: usize, patience: Duration) -> Outcome {
        let what = What::Purchase { quantity: wish.quantity, key: wish.key.clone() };
        let mut request = self.order_at(purchase, &wish.voucher, &wish.user);
        if let Some(key) = &wish.key {
            request = request.header("idempotency-key", key);
        }
        // One unit may be asked for in words or by silence.
        if wish.quantity != 1 || wish.key.is_some() {
            request = request.body(format!(r#"{{"quantity":{}}}"#, wish.quantity));
        }
        self.make(request, purchase, &wish.user, &wish.voucher, what, patience).await
    }

    async fn look(&self, wish: &Wish, order: OrderId, purchase: usize) {
        let url = format!("{}/v1/vouchers/{}/orders/{order}", self.urls[purchase], wish.voucher);
        let request = self.http.get(url).bearer_auth(token(&wish.user));
        self.make(request, purchase, &wish.user, &wish.voucher, What::Status(order), self.timeout).await;
    }

    async fn nonsense(&self, voucher: &VoucherId, user: &str, purchase: usize, random: &mut SmallRng) {
        let plain = || self.order_at(purchase, voucher, user);
        let (what, request) = match random.random_range(0..6) {
            0 => ("no units", plain().body(r#"{"quantity":0}"#)),
            1 => ("no JSON", plain().body("one, please")),
            2 => ("a field too many", plain().body(r#"{"quantity":1,"price":0}"#)),
            3 => ("an endless key", plain().header("idempotency-key", "k".repeat(129))),
            4 => ("a forged token", self.http.post(self.orders(purchase, voucher)).bearer_auth(token(user) + "x")),
            _ => ("nobody", self.http.post(self.orders(purchase, voucher))),
        };
        self.make(request, purchase, user, voucher, What::Nonsense(what), self.timeout).await;
    }

    fn orders(&self, purchase: usize, voucher: &VoucherId) -> String {
        format!("{}/v1/vouchers/{voucher}/orders", self.urls[purchase])
    }

    fn order_at(&self, purchase: usize, voucher: &VoucherId, user: &str) -> RequestBuilder {
        self.http.post(self.orders(purchase, voucher)).bearer_auth(token(user))
    }

    /// Makes a call and writes down what became of it.
    async fn make(
        &self,
        request: RequestBuilder,
        purchase: usize,
        user: &str,
        voucher: &VoucherId,
        what: What,
        patience: Duration,
    ) -> Outcome {
        let begun = Instant::now();
        let outcome = match timeout(patience, answer(request)).await {
            Ok(Ok((status, body))) => read(status, &body),
            // With what is behind it; the library's own words stop at "error sending request".
            Ok(Err(error)) => Outcome::Unknown(format!("{:#}", anyhow::Error::from(error))),
            Err(_) => Outcome::Unknown(format!("hung up after {patience:?}")),
        };
        let (user, voucher, ended) = (user.to_owned(), voucher.clone(), Instant::now());
        self.ledger.call(Call { begun, ended, purchase, user, voucher, what, outcome: outcome.clone() });
        outcome
    }
}

async fn answer(request: RequestBuilder) -> reqwest::Result<(u16, Vec<u8>)> {
    let response = request.send().await?;
    let status = response.status().as_u16();
    Ok((status, response.bytes().await?.to_vec()))
}

/// What an answer says.
fn read(status: u16, body: &[u8]) -> Outcome {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let text = |field: &str| body.get(field).and_then(Value::as_str);
    match status {
        200 | 202 => {
            let order_id = text("order_id").and_then(|id| OrderId::parse(id).ok());
            let told = text("status").and_then(|word| match word {
                "pending" => Some(None),
                word => OrderStatus::parse(word).map(Some),
            });
            match (order_id, told) {
                (Some(order_id), Some(status)) => Outcome::Accepted { order_id, status },
                _ => Outcome::Unknown(format!("{status} without an order's id and status: {body}")),
            }
        }
        429 | 503 => Outcome::Busy,
        400..=499 => Outcome::Refused { code: text("code").map_or_else(|| status.to_string(), str::to_owned) },
        _ => Outcome::Unknown(format!("{status}: {body}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_what_they_promise() {
        let id = "0190b8a0-0000-8000-8000-000000000000";
        let order_id = OrderId::parse(id).unwrap();
        let order = |status: &str| format!(r#"{{"order_id":"{id}","status":"{status}"}}"#);
        assert_eq!(read(202, order("pending").as_bytes()), Outcome::Accepted { order_id, status: None });
        let confirmed = Outcome::Accepted { order_id, status: Some(OrderStatus::Confirmed) };
        assert_eq!(read(200, order("confirmed").as_bytes()), confirmed);
        assert_eq!(read(409, br#"{"code":"sold_out"}"#), Outcome::Refused { code: "sold_out".to_owned() });
        assert_eq!(read(404, b"<html>"), Outcome::Refused { code: "404".to_owned() });
        assert_eq!([read(503, b""), read(429, b"")], [Outcome::Busy, Outcome::Busy]);
        for (status, body) in [(500, b"{}".to_vec()), (202, b"{}".to_vec()), (200, order("gone").into_bytes())] {
            assert!(matches!(read(status, &body), Outcome::Unknown(_)), "{status}");
        }
    }

    #[test]
    fn the_shares_of_the_visits_are_percents() {
        assert_eq!(MIX.iter().map(|(_, percent)| percent).sum::<u32>(), 100);
    }
}
