//! The handler on servers that answer at once; and how often a purchase asks for memory on its way through it, which says the same on any machine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{self, Request, StatusCode, header::AUTHORIZATION},
};
use domain::OrderKey;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use infra::redis::{Refusal, Reserve};
use jsonwebtoken::{EncodingKey, Header};
use parking_lot::Mutex;
use publish::Delivery;
use tokio::{runtime, sync::Semaphore};
use tokio_util::task::TaskTracker;

use super::{Shop, ToItsEnd, router};
use crate::{
    auth::Verifier,
    rate::RateLimit,
    scripted::{AT, PARTITION, Script, Scripted, purchases},
};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
/// Calls before the one that is counted, which make what is made once.
const WARM_UP: usize = 3;
/// Now and then a call makes one allocation more than the others: the fewest of these is what the path needs.
const MEASURED: usize = 5;

/// The calls of a shop with so much room, in which nobody waits his turn for longer than this.
fn shop(script: Script, room: &Arc<Semaphore>, patience: Duration) -> TowerToHyperService<axum::Router> {
    let servers = Scripted(Arc::new(Mutex::new(script)));
    let shop = Shop {
        purchases: purchases(&servers),
        verifier: Verifier::with_secret(SECRET).unwrap(),
        order_key: OrderKey::new(&[1; 32]).unwrap(),
        rate: RateLimit::new(10, 20, Instant::now()),
        purchases_at_once: Arc::clone(room),
        patience,
        reads_at_once: Semaphore::new(10),
        tasks: TaskTracker::new(),
    };
    TowerToHyperService::new(router(Arc::new(shop)))
}

/// A purchase, by nobody.
fn call() -> http::request::Builder {
    Request::post("/v1/vouchers/v/orders")
}

fn by_somebody() -> http::request::Builder {
    let claims = serde_json::json!({"sub": "u", "exp": jsonwebtoken::get_current_timestamp() + 60});
    let token = jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap();
    call().header(AUTHORIZATION, format!("Bearer {token}"))
}

/// Allocations, the fewest of some, of one purchase that the gate answers so (with those of the servers that stand in for the real ones).
fn allocations(reserve: &Reserve, room: usize, status: StatusCode) -> u64 {
    let calls = WARM_UP + MEASURED;
    let script = Script {
        reserve: (0..calls).map(|_| Ok(reserve.clone())).collect(),
        deliveries: (0..calls).map(|_| Delivery::Persisted { partition: PARTITION, offset: 0 }).collect(),
        calls: Vec::with_capacity(100),
        sent: Vec::with_capacity(100),
        ..Script::default()
    };
    let shop = shop(script, &Arc::new(Semaphore::new(room)), Duration::ZERO);
    // One thread, so that the purchase's own task is counted with the call.
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut requests = Vec::from_iter((0..calls).map(|_| by_somebody().body(Body::empty()).unwrap()));
    let mut buy = || {
        let answer = runtime.block_on(shop.call(requests.pop().unwrap())).unwrap();
        assert_eq!(answer.status(), status);
    };
    (0..WARM_UP).for_each(|_| buy());
    (0..MEASURED).map(|_| allocation_counter::measure(&mut buy).count_total).min().unwrap()
}

/// Exact: whoever makes it cheaper writes the new figure down.
#[test]
fn a_purchase_allocates_as_often_as_written_here() {
    let reserved = Reserve::Reserved { requested_at: AT, partition: PARTITION, held: 0 };
    let sold_out = Reserve::Refused { refusal: Refusal::SoldOut, held: 0 };
    let found = [
        ("accepted", allocations(&reserved, 10, StatusCode::ACCEPTED)),
        ("sold out", allocations(&sold_out, 10, StatusCode::CONFLICT)),
        ("no room", allocations(&reserved, 0, StatusCode::SERVICE_UNAVAILABLE)),
    ];
    assert_eq!(found, [("accepted", 48), ("sold out", 37), ("no room", 23)]);
}

#[tokio::test]
async fn a_full_shop_looks_at_no_token_and_who_waits_gets_his_turn() {
    let ask = async |room: &Arc<Semaphore>, patience| {
        shop(Script::default(), room, patience).call(call().body(Body::empty()).unwrap()).await.unwrap().status()
    };
    let room = Arc::new(Semaphore::new(1));
    assert_eq!(ask(&room, Duration::ZERO).await, StatusCode::UNAUTHORIZED);
    let taken = room.acquire().await.unwrap();
    assert_eq!(ask(&room, Duration::from_millis(1)).await, StatusCode::SERVICE_UNAVAILABLE);
    let leaves = async { drop(taken) };
    let (waited, ()) = tokio::join!(ask(&room, Duration::from_secs(60)), leaves);
    assert_eq!(waited, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn work_whose_caller_is_gone_or_that_panics_comes_to_its_end() {
    let (tasks, gate, done) = (TaskTracker::new(), Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let work = |panics: bool| {
        let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
        Some(Box::pin(async move {
            assert!(gate.acquire().await.is_ok() && !panics, "as the test wants it");
            done.add_permits(1);
        }))
    };
    let begun = tokio::time::timeout(Duration::ZERO, ToItsEnd { work: work(false), tasks: &tasks }).await;
    assert!(begun.is_err(), "it waits");
    gate.add_permits(2);
    done.acquire().await.unwrap().forget();
    assert!(ToItsEnd { work: work(true), tasks: &tasks }.await.is_err());
    assert!(ToItsEnd { work: work(false), tasks: &tasks }.await.is_ok());
    tasks.close();
    tasks.wait().await;
    assert_eq!(done.available_permits(), 1);
}
