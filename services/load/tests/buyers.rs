//! Buyers against a small shop in this process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::post,
};
use load::{Buyer, Plan, Shape};

/// Sells two units, one a user; answers 503 to everybody's first click if `grumpy`.
#[derive(Default)]
struct Shop {
    grumpy: bool,
    slow: Option<Duration>,
    clicks: HashMap<String, u32>,
    sold: Vec<String>,
}

type Shared = Arc<Mutex<Shop>>;

async fn buy(State(shop): State<Shared>, headers: HeaderMap) -> impl IntoResponse {
    let slow = shop.lock().unwrap().slow;
    if let Some(time) = slow {
        tokio::time::sleep(time).await;
    }
    let mut shop = shop.lock().unwrap();
    let user = headers["authorization"].to_str().unwrap().trim_start_matches("Bearer ").to_owned();
    let clicks = shop.clicks.entry(user.clone()).or_default();
    *clicks += 1;
    if shop.grumpy && shop.clicks[&user] == 1 {
        return (StatusCode::SERVICE_UNAVAILABLE, r#"{"code":"not_ready"}"#.to_owned());
    }
    if !shop.sold.contains(&user) && shop.sold.len() == 2 {
        return (StatusCode::CONFLICT, r#"{"code":"sold_out"}"#.to_owned());
    }
    if !shop.sold.contains(&user) {
        shop.sold.push(user.clone());
    }
    (StatusCode::ACCEPTED, format!(r#"{{"order_id":"order of {user}"}}"#))
}

async fn open(shop: Shop) -> (String, Shared) {
    let shared = Arc::new(Mutex::new(shop));
    let app = Router::new().route("/v1/vouchers/{voucher}/orders", post(buy)).with_state(Arc::clone(&shared));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, shared)
}

fn plan(url: String) -> Plan {
    Plan {
        urls: vec![url],
        voucher: "v".to_owned(),
        quantity: None,
        window: Duration::from_millis(200),
        shape: Shape::Even,
        double_clicks: 0.0,
        retries: 0,
        connections: 8,
        timeout: Duration::from_secs(5),
        seed: 1,
    }
}

fn buyers(count: usize) -> Vec<Buyer> {
    (0..count).map(|i| Buyer { user: format!("u{i}"), token: format!("u{i}") }).collect()
}

#[tokio::test]
async fn every_answer_is_recorded_by_kind_and_by_buyer() {
    let (url, shop) = open(Shop::default()).await;
    let mut last = load::Progress::default();
    let report = load::run(&plan(url), buyers(20), |p| last = p).await.unwrap();
    assert_eq!(report.answers["accepted"], 2);
    assert_eq!(report.answers["sold_out"], 18);
    assert_eq!((last.arrived, last.accepted, last.refused, last.failed), (20, 2, 18, 0));
    let mut winners: Vec<String> = report.visits.iter().filter(|v| !v.orders.is_empty()).map(|v| v.user.clone()).collect();
    let mut sold = shop.lock().unwrap().sold.clone();
    winners.sort();
    sold.sort();
    assert_eq!(winners, sold);
    assert_eq!(report.accepted.count(), 2);
    assert_eq!(report.answered.count(), 20);
}

#[tokio::test]
async fn a_double_click_is_two_requests_and_one_order() {
    let (url, shop) = open(Shop::default()).await;
    let report = load::run(&Plan { double_clicks: 1.0, ..plan(url) }, buyers(2), |_| ()).await.unwrap();
    assert_eq!(report.answers["accepted"], 4);
    assert!(report.visits.iter().all(|v| v.orders == vec![format!("order of {}", v.user)]));
    assert!(shop.lock().unwrap().clicks.values().all(|c| *c == 2));
}

#[tokio::test]
async fn a_buyer_tries_again_after_overload_as_often_as_told() {
    let (url, _) = open(Shop { grumpy: true, ..Shop::default() }).await;
    let report = load::run(&plan(url.clone()), buyers(2), |_| ()).await.unwrap();
    assert_eq!((report.answers["not_ready"], report.accepted_buyers()), (2, 0));
    let (url, _) = open(Shop { grumpy: true, ..Shop::default() }).await;
    let report = load::run(&Plan { retries: 1, ..plan(url) }, buyers(2), |_| ()).await.unwrap();
    assert_eq!((report.answers["not_ready"], report.answers["accepted"]), (2, 2));
    assert!(report.visits.iter().all(|v| v.last.is_accepted()));
}

#[tokio::test]
async fn nobody_answering_is_an_answer_of_its_own() {
    let report = load::run(&plan("http://127.0.0.1:1".to_owned()), buyers(3), |_| ()).await.unwrap();
    assert_eq!(report.answers["no_answer"], 3);
    assert_eq!(report.answered.count(), 0);
}

#[tokio::test]
async fn latency_counts_from_the_intended_click_also_while_waiting_for_a_connection() {
    let (url, _) = open(Shop { slow: Some(Duration::from_millis(100)), ..Shop::default() }).await;
    let tight = Plan { connections: 1, window: Duration::ZERO, ..plan(url) };
    let report = load::run(&tight, buyers(5), |_| ()).await.unwrap();
    assert!(report.answered.at(1.0).unwrap() >= Duration::from_millis(500));
}
