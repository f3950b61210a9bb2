//! The handler on servers that answer at once; and how often a purchase asks for memory on its way through it, which says the same on any machine.

use std::{sync::Arc, time::Instant};

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

use super::{Shop, router};
use crate::{
    auth::Verifier,
    rate::RateLimit,
    scripted::{AT, PARTITION, Script, Scripted, purchases},
};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
/// Calls before the one that is counted, which make what is made once.
const WARM_UP: usize = 3;

/// The calls of a shop that lets so many purchases in at one moment.
fn shop(script: Script, room: usize) -> TowerToHyperService<axum::Router> {
    let servers = Scripted(Arc::new(Mutex::new(script)));
    let shop = Shop {
        purchases: purchases(&servers),
        verifier: Verifier::with_secret(SECRET).unwrap(),
        order_key: OrderKey::new(&[1; 32]).unwrap(),
        rate: RateLimit::new(10, 20, Instant::now()),
        purchases_at_once: Arc::new(Semaphore::new(room)),
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

/// Allocations of one purchase that the gate answers so (with those of the servers that stand in for the real ones).
fn allocations(reserve: &Reserve, room: usize, status: StatusCode) -> u64 {
    let calls = WARM_UP + 1;
    let script = Script {
        reserve: (0..calls).map(|_| Ok(reserve.clone())).collect(),
        deliveries: (0..calls).map(|_| Delivery::Persisted { partition: PARTITION, offset: 0 }).collect(),
        calls: Vec::with_capacity(100),
        sent: Vec::with_capacity(100),
        ..Script::default()
    };
    let shop = shop(script, room);
    // One thread, so that the purchase's own task is counted with the call.
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut requests = Vec::from_iter((0..calls).map(|_| by_somebody().body(Body::empty()).unwrap()));
    let mut buy = || {
        let answer = runtime.block_on(shop.call(requests.pop().unwrap())).unwrap();
        assert_eq!(answer.status(), status);
    };
    (0..WARM_UP).for_each(|_| buy());
    allocation_counter::measure(buy).count_total
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
    assert_eq!(found, [("accepted", 55), ("sold out", 49), ("no room", 36)]);
}

#[tokio::test]
async fn a_full_shop_looks_at_no_token() {
    let ask = async |room| shop(Script::default(), room).call(call().body(Body::empty()).unwrap()).await.unwrap().status();
    assert_eq!(ask(1).await, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(0).await, StatusCode::SERVICE_UNAVAILABLE);
}
