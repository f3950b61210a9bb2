//! Any path, headers and body of a purchase: read or refused. Built from the service's own sources of input and tokens, without its servers.
#![no_main]
#![allow(dead_code, unreachable_pub)]

use std::{convert::Infallible, sync::LazyLock};

use axum::{
    body::{Body, Bytes},
    extract::Path,
    http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION},
};
use domain::OrderKey;
use jsonwebtoken::{EncodingKey, Header};
use libfuzzer_sys::fuzz_target;

#[path = "../../services/purchase/src/auth.rs"]
mod auth;
#[path = "../../services/purchase/src/http/input.rs"]
mod input;

/// Stands for the service's answers to bad input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) code: &'static str,
    detail: String,
}

impl Problem {
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self { code: "malformed", detail: detail.into() }
    }

    pub(crate) fn too_slow() -> Self {
        Self { code: "too_slow", detail: String::new() }
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self { code: "too_large", detail: limit.to_string() }
    }
}

const SECRET: &[u8] = b"a secret for tests only, of no use to anybody else";

static VERIFIER: LazyLock<auth::Verifier> =
    LazyLock::new(|| auth::Verifier::with_secret(SECRET).expect("the secret is a good key").expecting(Some("shop"), None));
static KEY: LazyLock<OrderKey> =
    LazyLock::new(|| OrderKey::new(b"a key for tests only, 32 bytes..").expect("the key is long enough"));

fuzz_target!(|bytes: &[u8]| {
    // Path, token, idempotency keys and body, between bytes that no UTF-8 text holds.
    let mut parts = bytes.splitn(4, |b| *b == 0xff);
    let [path, token, key, body] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(&[b"Bearer ", token].concat()) {
        headers.insert(AUTHORIZATION, value);
    }
    for key in key.split(|b| *b == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(key) {
            headers.append(HeaderName::from_static("idempotency-key"), value);
        }
    }
    // A token as sent, and the same bytes as the claims of a token that is signed well.
    let _ = VERIFIER.user(&headers);
    let claims: Result<serde_json::Value, _> = serde_json::from_slice(token);
    let signed = claims.ok().and_then(|claims| {
        jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET).expect("a good key")).ok()
    });
    if let Some(signed) = signed {
        headers.insert(AUTHORIZATION, format!("Bearer {signed}").parse().expect("a token is a good value"));
    }
    let user = VERIFIER.user(&headers);
    if let Ok(user) = &user {
        assert!(user.is_valid(), "{user:?}");
    }
    let key = input::idempotency_key(&headers);
    if let Ok(Some(key)) = key {
        assert!(key.len() <= 128 && key.bytes().all(|b| (b' '..=b'~').contains(&b)), "{key:?}");
    }
    let text = String::from_utf8_lossy(path).into_owned();
    let (voucher, order) = text.split_once('\n').unwrap_or((&text, ""));
    let ids = input::order_path(Ok(Path((voucher.to_owned(), order.to_owned()))));
    let voucher = input::voucher_id(Ok(Path(voucher.to_owned())));
    if let Ok((of_path, order)) = &ids {
        assert_eq!(Ok(of_path), voucher.as_ref());
        assert_eq!(domain::OrderId::parse(&order.to_string()).as_ref(), Ok(order));
    }
    if let (Ok(voucher), Ok(user), Ok(key)) = (&voucher, &user, key) {
        assert!(!voucher.as_str().contains(['{', '}', '/', '%', '\r', '\n']), "{voucher:?}");
        assert_eq!(KEY.order_id(voucher, user, key), KEY.order_id(voucher, user, key));
    }
    // The body in pieces, as it comes from a connection.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let pieces: Vec<_> = body.chunks(7).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
    let in_pieces = runtime.block_on(input::quantity(Body::from_stream(futures::stream::iter(pieces))));
    let whole = runtime.block_on(input::quantity(Body::from(body.to_vec())));
    assert_eq!(in_pieces, whole);
    if let Ok(quantity) = whole {
        assert!((1..=domain::MAX_TOTAL).contains(&quantity));
    }
});
