//! The scripts against a model, in random sequences of operations on a real Redis.
//!
//! The model is one sentence: **what Redis holds is the fold of the log up to its seq, plus the reservations in flight.** Stock, sold,
//! held, total and state are never tracked here; they are derived from `domain`'s fold after each step and compared with every field in
//! Redis. Settle calls are repeated, reordered and lost, keys are deleted and rolled back, the fence is raised by several hands.

mod redis_world;

use std::collections::BTreeMap;

use domain::{Event, OrderId, RequestBody, Timestamp, UserId, VoucherState};
use infra::redis::{Gate, Refusal, Reserve, Settle};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use redis_world::{Fields, Log, World, order, user};

const STEPS: usize = 4_000;

#[derive(Clone, Debug, PartialEq)]
struct Flight {
    user: UserId,
    quantity: i64,
    requested_at: i64,
    stamp: i64,
    token: Option<String>,
}

/// One voucher in Redis, as far as the log does not say it.
#[derive(Clone, Debug, PartialEq)]
struct InRedis {
    seq: i64,
    offset: Option<i64>,
    gate: Gate,
    epoch: String,
    rebuild: bool,
    flights: BTreeMap<OrderId, Flight>,
}

impl InRedis {
    fn stub(epoch: &str) -> Self {
        Self { seq: 0, offset: None, gate: Gate::Warming, epoch: epoch.into(), rebuild: false, flights: BTreeMap::new() }
    }
}

/// One voucher at some moment: as the model has it, and as Redis dumps it.
type Snapshot = (Option<InRedis>, Vec<Option<Vec<u8>>>);

struct Subject {
    log: Log,
    users: Vec<UserId>,
    redis: Option<InRedis>,
    snapshots: Vec<Snapshot>,
}

/// What the log and the reservations say about one voucher.
struct Derived {
    total: i64,
    stock: i64,
    reserved: i64,
    sold: i64,
    state: VoucherState,
    held: BTreeMap<String, i64>,
}

impl Subject {
    fn derived(&self, redis: &InRedis) -> Derived {
        let state = &self.log.states[usize::try_from(redis.seq).unwrap()];
        let mut held: BTreeMap<String, i64> = BTreeMap::new();
        let mut sold = 0;
        for order in state.orders.values().filter(|order| order.status.is_live()) {
            *held.entry(order.user_id.to_string()).or_default() += order.quantity;
            sold += order.quantity;
        }
        let mut reserved = 0;
        for flight in redis.flights.values() {
            *held.entry(flight.user.to_string()).or_default() += flight.quantity;
            reserved += flight.quantity;
        }
        let (total, state) = match state.vouchers.get(&self.log.voucher) {
            Some(voucher) => (voucher.terms.total, voucher.state),
            None => (0, VoucherState::Open),
        };
        Derived { total, stock: total - reserved - sold, reserved, sold, state, held }
    }

    fn expected_reserve(&mut self, id: OrderId, buyer: &UserId, quantity: i64) -> Expected {
        let Some(redis) = &self.redis else { return Expected::Exactly(Reserve::UnknownVoucher) };
        let derived = self.derived(redis);
        let terms = match self.log.states[1].vouchers.get(&self.log.voucher) {
            Some(voucher) => voucher.terms.clone(),
            None => panic!("every log begins with an opening"),
        };
        if let Some(flight) = redis.flights.get(&id) {
            return Expected::Exactly(if flight.quantity == quantity {
                Reserve::Same { quantity, requested_at: Timestamp(flight.requested_at), partition: self.log.partition }
            } else {
                Reserve::OtherQuantity { quantity: flight.quantity }
            });
        }
        if redis.gate != Gate::Ready {
            return Expected::Exactly(Reserve::NotReady { gate: redis.gate });
        }
        let held = derived.held.get(buyer.as_str()).copied().unwrap_or(0);
        let refused = |refusal| Expected::Exactly(Reserve::Refused { refusal, held });
        match derived.state {
            VoucherState::Paused => return refused(Refusal::Paused),
            VoucherState::Closed => return refused(Refusal::Closed),
            VoucherState::Open => {}
        }
        let now = redis_world::now();
        if now < terms.begins_at.0 {
            Expected::NotStarted { begins_at: terms.begins_at, held }
        } else if now >= terms.ends_at.0 {
            refused(Refusal::Ended)
        } else if held + quantity > terms.per_user_limit {
            refused(Refusal::LimitReached)
        } else if derived.stock < quantity {
            refused(Refusal::SoldOut)
        } else {
            Expected::Reserved { held }
        }
    }

    /// The table of settle.lua, as far as it is about seq and reservations.
    fn expected_settle(&mut self, event: &Event, offset: i64) -> Settle {
        let seq = event.voucher_seq;
        let redis = match &mut self.redis {
            Some(redis) => redis,
            none if seq == 1 => none.insert(InRedis::stub("")),
            None => return Settle::UnknownVoucher,
        };
        if seq <= redis.seq {
            return Settle::Skip { seq: redis.seq };
        }
        if seq > redis.seq + 1 {
            return Settle::Gap { seq: redis.seq };
        }
        (redis.seq, redis.offset) = (seq, Some(offset));
        if let domain::EventBody::OrderConfirmed { order_id, .. }
        | domain::EventBody::OrderRejected { order_id, .. }
        | domain::EventBody::RequestRepeated { order_id, .. } = &event.body
        {
            redis.flights.remove(order_id);
        }
        Settle::Applied
    }
}

#[derive(Debug)]
enum Expected {
    Exactly(Reserve),
    Reserved { held: i64 },
    NotStarted { begins_at: Timestamp, held: i64 },
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_the_fold_of_the_log_plus_what_is_in_flight() {
    let seed: u64 = std::env::var("DOORBUSTER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DOORBUSTER_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let world = World::new().await;
    let (now, hour) = (redis_world::now(), 3_600_000);
    let mut subjects = [
        subject(Log::opened("wide", 9, 4)),
        subject(Log::opened("one-each", 4, 1)),
        subject(Log::opened_with("early", 9, 2, now + hour, now + 2 * hour)),
        subject(Log::opened_with("late", 9, 2, now - 2 * hour, now - hour)),
    ];
    let mut seen = BTreeMap::<String, usize>::new();
    for step in 0..STEPS {
        // Mostly the voucher on which most can happen.
        let at = if dice.random_bool(0.6) { 0 } else { dice.random_range(0..subjects.len()) };
        let subject = &mut subjects[at];
        let what = one_step(&world, &mut dice, subject).await;
        let stock = check(&world, subject, &format!("seed {seed}, step {step} on {}: {what}", subject.log.voucher)).await;
        if stock < 0 {
            *seen.entry("stock below zero".into()).or_default() += 1;
        }
        *seen.entry(what.split([' ', '{', '(']).next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    println!("{seen:?}");
    let answers =
        ["Reserved", "Same", "OtherQuantity", "UnknownVoucher", "NotReady", "NotStarted", "Ended", "Paused", "LimitReached"];
    for answer in answers.iter().chain(&[
        "SoldOut",
        "released",
        "kept",
        "Applied",
        "Skip",
        "Gap",
        "swept",
        "opened",
        "shut",
        "stock below zero",
    ]) {
        assert!(seen.contains_key(*answer), "seed {seed}: {answer} never happened in {STEPS} steps: {seen:?}");
    }
}

fn subject(log: Log) -> Subject {
    let users = ["7", "007", "9007199254740992", "9007199254740993", "a b - 1", "Zoë"].map(user).to_vec();
    Subject { log, users, redis: None, snapshots: Vec::new() }
}

async fn one_step(world: &World, dice: &mut StdRng, subject: &mut Subject) -> String {
    match dice.random_range(0..100) {
        0..34 => reserve(world, dice, subject).await,
        34..38 => release(world, dice, subject).await,
        38..54 => {
            request(dice, subject);
            settle(world, dice, subject).await
        }
        54..72 => settle(world, dice, subject).await,
        72..76 => sweep(world, dice, subject).await,
        76..94 => gate(world, dice, subject).await,
        94..96 => {
            let dump = world.dump(&subject.log.voucher).await;
            subject.snapshots.push((subject.redis.clone(), dump));
            "snapshot".into()
        }
        96..98 => {
            let Some((redis, dump)) = subject.snapshots.choose(dice).cloned() else { return "nothing".into() };
            world.restore(&subject.log.voucher, &dump).await;
            subject.redis = redis;
            "rolled-back".into()
        }
        98 => {
            for key in redis_world::keys(&subject.log.voucher) {
                world.run(&["DEL", &key]).await;
            }
            subject.redis = None;
            "lost".into()
        }
        _ => {
            world.run(&["SCRIPT", "FLUSH"]).await;
            "flushed".into()
        }
    }
}

fn some_order(dice: &mut StdRng, subject: &Subject) -> (OrderId, UserId) {
    let buyer = subject.users.choose(dice).unwrap().clone();
    let attempt = dice.random_range(0..6).to_string();
    (order(&subject.log.voucher, &buyer, &attempt), buyer)
}

async fn reserve(world: &World, dice: &mut StdRng, subject: &mut Subject) -> String {
    let (mut id, mut buyer) = some_order(dice, subject);
    let quantity = dice.random_range(1..=2);
    let flights = subject.redis.iter().flat_map(|redis| &redis.flights);
    let flying: Vec<(OrderId, UserId)> = flights.map(|(id, flight)| (*id, flight.user.clone())).collect();
    if let Some(repeat) = flying.choose(dice).filter(|_| dice.random_bool(0.2)).cloned() {
        (id, buyer) = repeat;
    }
    let token = format!("t{}", dice.random::<u32>());
    let expected = subject.expected_reserve(id, &buyer, quantity);
    let before = redis_world::now();
    let answer = world.store.reserve(&subject.log.voucher, &id, &buyer, quantity, &token).await.unwrap();
    match (&expected, &answer) {
        (Expected::Exactly(exactly), answer) => assert_eq!(exactly, answer),
        (
            Expected::NotStarted { begins_at, held },
            Reserve::Refused { refusal: Refusal::NotStarted { begins_at: b, now }, held: h },
        ) => {
            assert_eq!((begins_at, held), (b, h));
            assert!((before..=redis_world::now()).contains(&now.0));
        }
        (Expected::Reserved { held }, Reserve::Reserved { requested_at, partition, held: h }) => {
            assert_eq!((held, &subject.log.partition), (h, partition));
            assert!((before..=redis_world::now()).contains(&requested_at.0));
            let at = requested_at.0;
            let flight = Flight { user: buyer, quantity, requested_at: at, stamp: at, token: Some(token) };
            subject.redis.as_mut().unwrap().flights.insert(id, flight);
        }
        _ => panic!("expected {expected:?}, got {answer:?}"),
    }
    if matches!(answer, Reserve::Same { .. }) {
        subject.redis.as_mut().unwrap().flights.get_mut(&id).unwrap().token = None;
    }
    match answer {
        Reserve::Refused { refusal, .. } => format!("{refusal:?}"),
        answer => format!("{answer:?}"),
    }
}

async fn release(world: &World, dice: &mut StdRng, subject: &mut Subject) -> String {
    let some = some_order(dice, subject).0;
    let flights = subject.redis.iter().flat_map(|redis| &redis.flights);
    let of_mine: Vec<(OrderId, Option<String>)> = flights.map(|(id, flight)| (*id, flight.token.clone())).collect();
    let (id, mut token) = of_mine.choose(dice).cloned().unwrap_or((some, None));
    if dice.random_bool(0.2) {
        token = None;
    }
    let released = world.store.release(&subject.log.voucher, &id, token.as_deref().unwrap_or("-")).await.unwrap();
    assert_eq!(released, token.is_some(), "release of {id} with {token:?}");
    if released {
        subject.redis.as_mut().unwrap().flights.remove(&id);
    }
    if released { "released".into() } else { "kept".into() }
}

/// Appends one request to the log, mostly one of a reservation in flight.
fn request(dice: &mut StdRng, subject: &mut Subject) {
    let (mut id, mut buyer) = some_order(dice, subject);
    let mut quantity = dice.random_range(1..=2);
    let flights: Vec<_> = subject.redis.iter().flat_map(|redis| redis.flights.clone()).collect();
    if let Some((flying, flight)) = flights.choose(dice).filter(|_| dice.random_bool(0.8)).cloned() {
        (id, buyer, quantity) = (flying, flight.user, flight.quantity);
    }
    let orders: Vec<OrderId> = subject.log.state().orders.keys().copied().collect();
    let known = orders.choose(dice).copied().unwrap_or(id);
    let expected_terms_version = subject.log.terms_version();
    match dice.random_range(0..23) {
        0..10 => subject.log.request(id, &buyer, quantity),
        10..14 => subject.log.cancel(known),
        14 | 15 => subject.log.append(RequestBody::PaymentWindowElapsed { order_id: known }),
        16 => {
            let (payment_ref, paid_at) = (dice.random::<u32>().to_string(), Timestamp(redis_world::now()));
            let amount = domain::Money::new(1999 * dice.random_range(1..=2), "EUR");
            subject.log.append(RequestBody::PaymentReceived { order_id: known, payment_ref, amount, paid_at })
        }
        17 => subject.log.append(RequestBody::StockChanged { delta: dice.random_range(-3..=3), expected_terms_version }),
        18 => subject.log.append(RequestBody::VoucherPaused { expected_terms_version }),
        _ => subject.log.append(RequestBody::VoucherResumed { expected_terms_version }),
    };
}

/// Settles a run of events: mostly what comes next, sometimes again, sometimes too early.
async fn settle(world: &World, dice: &mut StdRng, subject: &mut Subject) -> String {
    let len = subject.log.events.len();
    let next = subject.redis.as_ref().map_or(0, |redis| usize::try_from(redis.seq).unwrap());
    let from = match dice.random_range(0..10) {
        0 => dice.random_range(0..len),
        1 => next.saturating_sub(dice.random_range(0..4)),
        2 => next + 1,
        _ => next,
    };
    let to = (from + dice.random_range(1..8)).min(len);
    let mut events: Vec<(Event, i64)> = subject.log.events.get(from.min(to)..to).unwrap_or_default().to_vec();
    if dice.random_bool(0.05) && events.len() > 1 {
        let lost = dice.random_range(0..events.len());
        events.remove(lost);
    }
    let answers = world.store.settle(&events).await.unwrap();
    let expected: Vec<Settle> = events.iter().map(|(event, offset)| subject.expected_settle(event, *offset)).collect();
    assert_eq!(answers, expected);
    answers.last().map_or_else(|| "nothing".into(), |answer| format!("{answer:?}"))
}

async fn sweep(world: &World, dice: &mut StdRng, subject: &mut Subject) -> String {
    let flights: Vec<_> = subject.redis.iter().flat_map(|redis| redis.flights.clone()).collect();
    let Some((id, flight)) = flights.choose(dice).cloned() else {
        let id = some_order(dice, subject).0;
        assert_eq!(world.store.sweep(&subject.log.voucher, &id, Timestamp(0)).await.unwrap(), None);
        return "nothing".into();
    };
    let seen = if dice.random_bool(0.2) { flight.stamp - 1 } else { flight.stamp };
    let taken = world.store.sweep(&subject.log.voucher, &id, Timestamp(seen)).await.unwrap();
    assert_eq!(taken.is_some(), seen == flight.stamp);
    let Some(taken) = taken else { return "another's".into() };
    assert_eq!((taken.order_id, &taken.user_id, taken.quantity), (id, &flight.user, flight.quantity));
    assert_eq!(taken.requested_at.0, flight.requested_at);
    assert!(taken.stamp.0 > flight.stamp, "the stamp must change");
    let flight = Flight { stamp: taken.stamp.0, token: None, ..flight };
    subject.redis.as_mut().unwrap().flights.insert(id, flight);
    "swept".into()
}

async fn gate(world: &World, dice: &mut StdRng, subject: &mut Subject) -> String {
    let voucher = &subject.log.voucher;
    let epoch = format!("e{}", dice.random::<u32>());
    let redis = &mut subject.redis;
    match dice.random_range(0..20) {
        0..3 => {
            let reset = dice.random_bool(0.4) || redis.as_ref().is_some_and(|redis| redis.rebuild);
            let raised = world.store.raise_fence(voucher, subject.log.partition, &epoch, reset).await.unwrap();
            let known = redis.get_or_insert_with(|| InRedis::stub(&epoch));
            known.epoch = epoch;
            if known.gate == Gate::Ready || reset {
                known.gate = Gate::Warming;
            }
            if reset {
                (known.seq, known.offset, known.rebuild) = (0, None, false);
            }
            assert_eq!(world.store.voucher(voucher).await.unwrap(), Some(raised));
            "raised".into()
        }
        3..18 => {
            let mine = redis.as_ref().filter(|_| dice.random_bool(0.8)).map_or(epoch, |redis| redis.epoch.clone());
            let needed = redis.as_ref().map_or(0, |redis| redis.seq) + i64::from(dice.random_bool(0.1));
            let fits = |r: &&mut InRedis| r.epoch == mine && r.gate != Gate::Frozen && r.seq >= needed.max(1);
            let opens = redis.as_mut().filter(fits);
            assert_eq!(world.store.open_gate(voucher, &mine, needed).await.unwrap(), opens.is_some());
            let word = if opens.is_some() { "opened" } else { "shut" };
            if let Some(redis) = opens {
                redis.gate = Gate::Ready;
            }
            word.into()
        }
        18 => {
            world.store.freeze(voucher, &epoch).await.unwrap();
            if let Some(redis) = redis {
                (redis.gate, redis.epoch) = (Gate::Frozen, epoch);
            }
            "frozen".into()
        }
        _ => {
            assert_eq!(world.store.ask_rebuild(voucher, &epoch).await.unwrap(), redis.is_some());
            if let Some(redis) = redis {
                (redis.gate, redis.epoch, redis.rebuild) = (Gate::Warming, epoch, true);
            }
            "rebuild".into()
        }
    }
}

/// Compares every field of the three keys with what the log and the reservations say. Gives the stock.
async fn check(world: &World, subject: &Subject, context: &str) -> i64 {
    let [mut voucher, reservations, held] = world.content(&subject.log.voucher).await;
    let Some(redis) = &subject.redis else {
        assert!(voucher.is_empty() && reservations.is_empty() && held.is_empty(), "{context}");
        return 0;
    };
    let derived = subject.derived(redis);
    let mut expected = Fields::new();
    let mut put = |name: &str, text: String| expected.insert(name.to_owned(), text);
    put("total", derived.total.to_string());
    put("stock", derived.stock.to_string());
    put("reserved", derived.reserved.to_string());
    put("sold", derived.sold.to_string());
    put("seq", redis.seq.to_string());
    put("gate", format!("{:?}", redis.gate).to_lowercase());
    put("epoch", redis.epoch.clone());
    if redis.rebuild {
        put("rebuild", "1".into());
    }
    if let Some(offset) = redis.offset {
        put("offset", offset.to_string());
    }
    let terms = ["state", "title", "per_user_limit", "begins_ms", "ends_ms", "price", "partition"];
    if let Some(known) = subject.log.states[usize::try_from(redis.seq).unwrap()].vouchers.get(&subject.log.voucher) {
        put("state", derived.state.as_str().into());
        put("title", known.terms.title.clone());
        put("per_user_limit", known.terms.per_user_limit.to_string());
        put("begins_ms", known.terms.begins_at.0.to_string());
        put("ends_ms", known.terms.ends_at.0.to_string());
        put("price", format!("{} {}", known.terms.price.minor, known.terms.price.currency));
        put("partition", known.terms.partition.to_string());
    } else {
        // Before the opening is settled the terms say nothing, but they are there.
        for name in terms {
            assert!(voucher.remove(name).is_some(), "{context}: {name}");
        }
    }
    assert_eq!(voucher, expected, "{context}");
    assert_eq!(derived.total, derived.stock + derived.reserved + derived.sold, "{context}");
    let flights = redis.flights.iter().map(|(id, f)| {
        let token = f.token.as_deref().unwrap_or("-");
        (id.to_string(), format!("{} {} {} {token} {}", f.requested_at, f.stamp, f.quantity, f.user))
    });
    assert_eq!(reservations, flights.collect::<Fields>(), "{context}");
    let holders = derived.held.iter().map(|(user, units)| (user.clone(), units.to_string()));
    assert_eq!(held, holders.collect::<Fields>(), "{context}");
    // A reset voucher owes all it has reserved until its opening is settled; that is not what is counted here.
    if redis.seq == 0 { 0 } else { derived.stock }
}
