//! What callers send: ids in the path, the idempotency key, the body. Everything is bounded, and what makes no sense is refused here,
//! before anything is asked of a server.

use std::{error::Error, time::Duration};

use axum::{
    body::Body,
    extract::{Path, rejection::PathRejection},
    http::HeaderMap,
};
use domain::{MAX_TOTAL, OrderId, VoucherId};
use http_body_util::LengthLimitError;
use serde::Deserialize;

use super::Problem;

/// Longest body in bytes.
pub(crate) const MAX_BODY: usize = 16 * 1024;

/// A body arrives within this, or its connection is not worth keeping.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Longest idempotency key in bytes.
const MAX_KEY: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderBody {
    #[serde(default = "one")]
    quantity: i64,
}

fn one() -> i64 {
    1
}

pub(crate) fn voucher_id(path: Result<Path<String>, PathRejection>) -> Result<VoucherId, Problem> {
    let Path(voucher) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    VoucherId::parse(&voucher).map_err(|e| Problem::malformed(e.to_string()))
}

pub(crate) fn order_path(path: Result<Path<(String, String)>, PathRejection>) -> Result<(VoucherId, OrderId), Problem> {
    let Path((voucher, order)) = path.map_err(|e| Problem::malformed(e.body_text()))?;
    let voucher = VoucherId::parse(&voucher).map_err(|e| Problem::malformed(e.to_string()))?;
    let order = OrderId::parse(&order).map_err(|e| Problem::malformed(e.to_string()))?;
    Ok((voucher, order))
}

/// The key that tells one try of a user from another: 1 to 128 printable ASCII characters, taken as they are.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return if headers.contains_key(IDEMPOTENCY_KEY) {
            Err(Problem::malformed("one Idempotency-Key only"))
        } else {
            Ok(None)
        };
    };
    let printable = |key: &&str| (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|b| (b' '..=b'~').contains(&b));
    match key.to_str().ok().filter(printable) {
        Some(key) => Ok(Some(key)),
        None => Err(Problem::malformed(format!("an Idempotency-Key is 1 to {MAX_KEY} printable ASCII characters"))),
    }
}

/// The quantity asked for; no body means one unit.
pub(crate) async fn quantity(body: Body) -> Result<i64, Problem> {
    let read = tokio::time::timeout(BODY_DEADLINE, axum::body::to_bytes(body, MAX_BODY));
    let bytes = read.await.map_err(|_| Problem::too_slow())?.map_err(|error| {
        let too_large = error.source().is_some_and(|source| source.is::<LengthLimitError>());
        if too_large { Problem::too_large(MAX_BODY) } else { Problem::malformed("the body could not be read") }
    })?;
    parse_quantity(&bytes)
}

fn parse_quantity(bytes: &[u8]) -> Result<i64, Problem> {
    let bytes = bytes.trim_ascii();
    if bytes.is_empty() {
        return Ok(1);
    }
    // serde would also read a struct from an array.
    if bytes.first() != Some(&b'{') {
        return Err(Problem::malformed("the body is a JSON object, as {\"quantity\": 1}"));
    }
    let body: OrderBody =
        serde_json::from_slice(bytes).map_err(|e| Problem::malformed(format!("the body makes no sense: {e}")))?;
    if (1..=MAX_TOTAL).contains(&body.quantity) {
        Ok(body.quantity)
    } else {
        Err(Problem::malformed(format!("a quantity is a whole number from 1 to {MAX_TOTAL}")))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_an_object_with_a_whole_quantity_is_a_body() {
        assert_eq!(parse_quantity(b""), Ok(1));
        assert_eq!(parse_quantity(b" \n"), Ok(1));
        assert_eq!(parse_quantity(b"{}"), Ok(1));
        assert_eq!(parse_quantity(b" {\"quantity\": 3} "), Ok(3));
        for bad in [
            &b"[2]"[..],
            b"2",
            b"null",
            b"{",
            b"{\"quantity\":0}",
            b"{\"quantity\":-1}",
            b"{\"quantity\":1.0}",
            b"{\"quantity\":\"1\"}",
            b"{\"quantity\":null}",
            b"{\"quantity\":1e3}",
            b"{\"quantity\":9223372036854775808}",
            b"{\"quantity\":1000000001}",
            b"{\"quantity\":1,\"quantity\":2}",
            b"{\"quantity\":1,\"price\":0}",
            b"{\"\\u0000\":1}",
            b"{\"\\ud800\":1}",
            b"{\"quantity\":1}{}",
            b"{\"quantity\":1}\0",
            b"\xff\xfe",
            b"{\"\xff\":1}",
        ] {
            assert_eq!(parse_quantity(bad).unwrap_err().code, "malformed", "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn an_idempotency_key_is_short_and_printable() {
        let with = |keys: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for key in keys {
                headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(key).unwrap());
            }
            idempotency_key(&headers).map(|key| key.map(str::to_owned)).map_err(|p| p.code)
        };
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&[b"\"a b\""]), Ok(Some("\"a b\"".to_owned())));
        assert_eq!(with(&[&[b'k'; 128]]), Ok(Some("k".repeat(128))));
        for bad in [&[&b""[..]][..], &[&[b'k'; 129]], &[b"a\tb"], &["ä".as_bytes()], &[b"a", b"a"]] {
            assert_eq!(with(bad), Err("malformed"), "{bad:?}");
        }
    }
}
