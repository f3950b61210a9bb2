//! Ids as they are, and everything that makes no sense: refused before Redis is asked.

use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;
use testkit::wait_until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::shop::{PATIENCE, Shop, asked_for, on_sale};

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_look_like_numbers_stay_apart_and_unchanged() {
    let (world, store, voucher, shop) = on_sale(100, 1, &[]).await;
    let uuid = "d9428888-122b-11e1-b85c-61cd3cbb3210";
    let users = ["9007199254740992", "9007199254740993", "9223372036854775807", "7", "007", "7.0", uuid, "Zoë {v} -", " 7"];
    for user in users {
        shop.buy(&voucher, user, None, 1).await.order_id();
    }
    let mut asked: Vec<_> = asked_for(&world, &voucher).into_iter().map(|(_, user, _)| user).collect();
    let mut held: Vec<_> = store.held(&voucher).await.unwrap().into_iter().map(|(user, _)| user.as_str().to_owned()).collect();
    let mut users = users.to_vec();
    for list in [&mut asked, &mut held] {
        list.sort_unstable();
    }
    users.sort_unstable();
    assert_eq!(asked, users);
    assert_eq!(held, users);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_and_takes_nothing() {
    let (world, store, voucher, shop) = on_sale(10, 1, &[]).await;
    for id in ["%7Bv%7D", "a%20b", "%00", "%F0%28%8C%BC", "%ED%A0%80", "ä", &"x".repeat(65), "%7Bv:1%7D:voucher"] {
        shop.send(shop.post(id, "u")).await.assert_problem(400, "malformed");
    }
    let bodies: [&[u8]; 9] = [
        b"{\"quantity\":0}",
        b"{\"quantity\":1.5}",
        b"{\"quantity\":\"1\"}",
        b"[1]",
        b"{\"quantity\":1,\"note\":\"\\u0000\"}",
        b"{\"\\ud800\":1}",
        b"{\"note\":\"\\udfff\"}",
        b"\xff\xfe\x00",
        b"{\"quantity\":1",
    ];
    for body in bodies {
        shop.send(shop.post(voucher.as_str(), "u").body(body)).await.assert_problem(400, "malformed");
    }
    for key in ["", "ä", &"k".repeat(129)] {
        shop.send(shop.post(voucher.as_str(), "u").header("Idempotency-Key", key)).await.assert_problem(400, "malformed");
    }
    let large = vec![b' '; 16 * 1024 + 1];
    shop.send(shop.post(voucher.as_str(), "u").body(large.clone())).await.assert_problem(413, "too_large");
    let just_fits = large[..16 * 1024].to_vec();
    shop.send(shop.get(&format!("{voucher}/orders/nonsense")).bearer_auth(shop.token("u")))
        .await
        .assert_problem(400, "malformed");
    let client = reqwest::Client::new();
    shop.send(client.get(format!("{}/v2", shop.http))).await.assert_problem(404, "no_such_call");
    shop.send(client.delete(format!("{}/v1/vouchers/{voucher}", shop.http))).await.assert_problem(405, "method_not_allowed");
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().stock, 10);
    assert!(asked_for(&world, &voucher).is_empty());
    shop.send(shop.post(voucher.as_str(), "u").body(just_fits)).await.order_id();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_known_gets_nothing() {
    let vars = [("DOORBUSTER_JWT_AUDIENCE", "shop"), ("DOORBUSTER_JWT_ISSUER", "issuer")];
    let (_world, store, voucher, shop) = on_sale(10, 1, &vars).await;
    let now = i64::try_from(jsonwebtoken::get_current_timestamp()).unwrap();
    let good = json!({"sub": "u", "exp": now + 60, "aud": "shop", "iss": "issuer"});
    let with = |name: &str, value: serde_json::Value| {
        let mut claims = good.clone();
        claims[name] = value;
        shop.sign(&claims)
    };
    let payload = shop.sign(&good).split('.').nth(1).unwrap().to_owned();
    let other_key = EncodingKey::from_secret(b"a secret that nobody configured....").unwrap();
    for token in [
        with("exp", json!(now - 60)),
        with("exp", json!("soon")),
        with("nbf", json!(now + 60)),
        with("iat", json!(now + 60)),
        with("aud", json!("other")),
        with("iss", json!("other")),
        with("sub", json!("a\u{0}b")),
        with("sub", json!("")),
        encode(&Header::default(), &good, &other_key).unwrap(),
        encode(&Header::new(Algorithm::HS384), &good, &other_key).unwrap(),
        format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}."),
        "x".repeat(9_000),
        "x".to_owned(),
    ] {
        let reply = shop.send(shop.post(voucher.as_str(), "u").header("authorization", format!("Bearer {token}"))).await;
        // The client adds its own header first; a request with two is refused as well, so send it alone.
        reply.assert_problem(401, "unauthorized");
        let client = reqwest::Client::new();
        let reply = client.post(format!("{}/v1/vouchers/{voucher}/orders", shop.http)).bearer_auth(&token);
        let reply = shop.send(reply).await;
        reply.assert_problem(401, "unauthorized");
        assert!(reply.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
        assert!(!reply.body.to_string().contains(&token), "a token is never repeated");
    }
    assert_eq!(store.voucher(&voucher).await.unwrap().unwrap().stock, 10);
    let client = reqwest::Client::new();
    let request = client.post(format!("{}/v1/vouchers/{voucher}/orders", shop.http)).bearer_auth(shop.sign(&good));
    shop.send(request).await.order_id();
}

async fn raw(shop: &Shop, request: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(shop.address).await.unwrap();
    stream.write_all(request).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_who_hangs_up_has_bought_all_the_same() {
    let (world, _store, voucher, shop) = on_sale(100, 1, &[]).await;
    const BUYERS: usize = 20;
    for buyer in 0..BUYERS {
        let token = shop.token(&format!("u{buyer}"));
        let head = format!("POST /v1/vouchers/{voucher}/orders HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {token}\r\n");
        drop(raw(&shop, format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).await);
    }
    wait_until(PATIENCE, "all orders to be asked for", || asked_for(&world, &voucher).len() == BUYERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_giant_head_is_refused() {
    let (_world, _store, voucher, shop) = on_sale(1, 1, &[]).await;
    let giant = "x".repeat(64 * 1024);
    let request = format!("POST /v1/vouchers/{voucher}/orders HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {giant}\r\n\r\n");
    let mut stream = TcpStream::connect(shop.address).await.unwrap();
    // The service may close before it has read everything.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.expect("the connection ends");
    let answer = String::from_utf8_lossy(&answer);
    assert!(read.is_err() || answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}
