//! How often one purchase asks for memory on its way through the handler: counted, so that it says the same on any machine. Exact: whoever makes it
//! cheaper writes the new figure down.

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    http::{Request, StatusCode, header::AUTHORIZATION},
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

/// Allocations of one purchase that the gate answers so, on servers that answer at once (with what these allocate themselves).
fn allocations(reserve: Reserve, status: StatusCode) -> u64 {
    let calls = WARM_UP + 1;
    let script = Script {
        reserve: (0..calls).map(|_| Ok(reserve.clone())).collect(),
        deliveries: (0..calls).map(|_| Delivery::Persisted { partition: PARTITION, offset: 0 }).collect(),
        calls: Vec::with_capacity(100),
        sent: Vec::with_capacity(100),
        ..Script::default()
    };
    let servers = Scripted(Arc::new(Mutex::new(script)));
    let shop = Shop {
        purchases: purchases(&servers),
        verifier: Verifier::with_secret(SECRET).unwrap(),
        order_key: OrderKey::new(&[1; 32]).unwrap(),
        rate: RateLimit::new(10, 20, Instant::now()),
        purchases_at_once: Arc::new(Semaphore::new(10)),
        reads_at_once: Semaphore::new(10),
        tasks: TaskTracker::new(),
    };
    let service = TowerToHyperService::new(router(Arc::new(shop)));
    // One thread, so that the purchase's own task is counted with the call.
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let claims = serde_json::json!({"sub": "u", "exp": jsonwebtoken::get_current_timestamp() + 60});
    let token = jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap();
    let call = || {
        let request = Request::post("/v1/vouchers/v/orders").header(AUTHORIZATION, format!("Bearer {token}"));
        let answer = runtime.block_on(service.call(request.body(Body::empty()).unwrap())).unwrap();
        assert_eq!(answer.status(), status);
    };
    (0..WARM_UP).for_each(|_| call());
    allocation_counter::measure(call).count_total
}

#[test]
fn a_purchase_allocates_as_often_as_written_here() {
    let reserved = Reserve::Reserved { requested_at: AT, partition: PARTITION, held: 0 };
    let sold_out = Reserve::Refused { refusal: Refusal::SoldOut, held: 0 };
    let found =
        [("accepted", allocations(reserved, StatusCode::ACCEPTED)), ("sold out", allocations(sold_out, StatusCode::CONFLICT))];
    assert_eq!(found, [("accepted", 60), ("sold out", 54)]);
}
