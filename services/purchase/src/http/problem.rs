//! Errors as `application/problem+json` (RFC 9457), each with a stable `code` for programs.

use std::{borrow::Cow, fmt, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use domain::Timestamp;
use infra::redis::Refusal;
use rand::Rng;
use serde::Serialize;

use crate::{auth::Unauthorized, instants::rfc3339, purchase::Server};

/// Seconds after which a caller may try again where something passes by itself; drawn between these, so that not all come back at once.
const SOON: std::ops::RangeInclusive<u64> = 1..=3;

/// One error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// The stable name of what went wrong.
    pub(crate) code: &'static str,
    title: &'static str,
    detail: Cow<'static, str>,
    /// Seconds after which a new try makes sense.
    pub(crate) retry_after: Option<u64>,
    /// When the sale begins, where it has not.
    begins_at: Option<Timestamp>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, title, detail: detail.into(), retry_after: None, begins_at: None }
    }

    fn soon(self) -> Self {
        Self { retry_after: Some(rand::rng().random_range(SOON)), ..self }
    }

    pub(crate) fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", "The request makes no sense", detail)
    }

    pub(crate) fn unauthorized(why: Unauthorized) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "Who is asking is not known", why.to_string())
    }

    pub(crate) fn no_such_call() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no_such_call", "There is no such call", "look at the path")
    }

    pub(crate) fn method_not_allowed() -> Self {
        let title = "This resource has no such method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", title, "look at the method")
    }

    pub(crate) fn unknown_voucher() -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown_voucher", "There is no such voucher", "nothing is sold under this id")
    }

    pub(crate) fn unknown_order() -> Self {
        let detail = "you have no order with this id for this voucher";
        Self::new(StatusCode::NOT_FOUND, "unknown_order", "There is no such order", detail)
    }

    pub(crate) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too_slow", "The body did not arrive in time", "send it without pauses")
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let detail = format!("at most {limit} bytes are read");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The body is too large", detail)
    }

    pub(crate) fn other_quantity(stored: i64) -> Self {
        let detail = format!("this order was placed for a quantity of {stored}; a new one needs another Idempotency-Key");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "other_quantity", "The order was placed for another quantity", detail)
    }

    pub(crate) fn too_many_requests(wait: Duration) -> Self {
        let title = "Too many tries of one user";
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", title, "slow down");
        Self { retry_after: Some(whole_seconds(wait)), ..problem }
    }

    pub(crate) fn internal() -> Self {
        let detail = "trying again is safe";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong in here", detail)
    }

    pub(crate) fn not_ready() -> Self {
        let detail = "this voucher is being made ready; trying again is safe";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", "The voucher cannot be sold at this moment", detail).soon()
    }

    pub(crate) fn ask_again() -> Self {
        let detail = "orders before this one are still being decided";
        let title = "It is not certain yet whether there is such an order";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "undecided", title, detail).soon()
    }

    pub(crate) fn overloaded(detail: impl Into<Cow<'static, str>>) -> Self {
        let title = "Too much is going on at this moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", title, detail).soon()
    }

    pub(crate) fn away(server: Server) -> Self {
        let code = match server {
            Server::Redis => "gate_away",
            Server::Kafka => "log_away",
            Server::Postgres => "orders_away",
        };
        let detail = "nothing was promised; trying again is safe";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, "A part of the shop did not answer", detail).soon()
    }

    /// What the gate refused.
    pub(crate) fn refused(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotStarted { begins_at, now } => {
                let detail = format!("the sale begins at {}", rfc3339(begins_at));
                let wait = begins_at.0.saturating_sub(now.0).max(0).unsigned_abs();
                Self {
                    retry_after: Some(whole_seconds(Duration::from_millis(wait))),
                    begins_at: Some(begins_at),
                    ..Self::new(StatusCode::FORBIDDEN, "not_started", "The sale has not begun", detail)
                }
            }
            Refusal::Paused => Self::new(StatusCode::FORBIDDEN, "paused", "The sale is paused", "the seller may resume it"),
            Refusal::Ended => Self::new(StatusCode::GONE, "ended", "The sale is over", "its window has ended"),
            Refusal::Closed => Self::new(StatusCode::GONE, "closed", "The sale is closed", "the seller closed it for good"),
            Refusal::LimitReached => {
                let detail = "this would be more than one user may hold";
                Self::new(StatusCode::CONFLICT, "limit_reached", "The limit of one user is reached", detail)
            }
            Refusal::SoldOut => {
                let detail = "fewer units are left than were asked for; some may come back";
                Self::new(StatusCode::CONFLICT, "sold_out", "Sold out", detail)
            }
        }
    }
}

/// As it is written.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(rename = "type")]
    kind: fmt::Arguments<'a>,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    begins_at: Option<String>,
}

/// Rounded up, at least 1: 0 would mean "at once".
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Told {
            kind: format_args!("/problems/{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code,
            retry_after: self.retry_after,
            begins_at: self.begins_at.map(rfc3339),
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\""));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sale_that_has_not_begun_says_when_to_come_back() {
        let refusal = |now| Problem::refused(Refusal::NotStarted { begins_at: Timestamp(10_000), now: Timestamp(now) });
        assert_eq!(refusal(8_999).retry_after, Some(2));
        assert_eq!(refusal(9_000).retry_after, Some(1));
        assert_eq!(refusal(9_999).retry_after, Some(1));
        assert_eq!(refusal(i64::MIN).retry_after, Some(i64::MAX as u64 / 1_000 + 1));
        assert_eq!(refusal(10_001).retry_after, Some(1));
    }
}
