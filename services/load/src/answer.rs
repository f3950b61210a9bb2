//! What the shop answered to one click.

use serde_json::Value;

/// One answer to one click.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status; 0 where no answer came.
    pub status: u16,
    /// The word that says which answer it was: `accepted`, a problem's name (`sold_out`), `no_answer`, or the bare status.
    pub kind: String,
    /// Of an accepted order.
    pub order_id: Option<String>,
    /// Seconds after which the shop wants to be asked again.
    pub retry_after: Option<u64>,
}

impl Answer {
    /// Reads an answer's status and body. A body that is no JSON of ours leaves the status to speak.
    pub fn read(status: u16, retry_after: Option<u64>, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let text = |field: &str| body.get(field).and_then(Value::as_str).map(str::to_owned);
        if status == 202 {
            return Self { status, kind: "accepted".to_owned(), order_id: text("order_id"), retry_after };
        }
        let of_type = |uri: String| uri.rsplit(['/', ':', '#']).next().map(str::to_owned);
        let kind = text("code").or_else(|| text("type").and_then(of_type)).filter(|kind| !matches!(kind.as_str(), "" | "blank"));
        Self { status, kind: kind.unwrap_or_else(|| status.to_string()), order_id: None, retry_after }
    }

    /// No answer came: the connection broke or the time ran out. Whether the shop took the order is unknown.
    pub(crate) fn none() -> Self {
        Self { status: 0, kind: "no_answer".to_owned(), order_id: None, retry_after: None }
    }

    pub fn is_accepted(&self) -> bool {
        self.status == 202
    }

    /// Whether the same click may have another answer later: overload, not ready, too fast, or no answer at all.
    pub fn may_retry(&self) -> bool {
        matches!(self.status, 0 | 429 | 500..=599)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_named_by_what_the_shop_says() {
        let kind = |status, body: &str| Answer::read(status, None, body.as_bytes()).kind;
        assert_eq!(kind(409, r#"{"type":"https://doorbuster.example/problems/sold_out","status":409}"#), "sold_out");
        assert_eq!(kind(409, r#"{"type":"urn:doorbuster:sold_out"}"#), "sold_out");
        assert_eq!(kind(403, r#"{"type":"about:blank","code":"paused"}"#), "paused");
        assert_eq!(kind(404, r#"{"type":"about:blank"}"#), "404");
        assert_eq!(kind(502, "<html>"), "502");
    }

    #[test]
    fn an_accepted_order_has_its_id() {
        let answer = Answer::read(202, None, br#"{"order_id":"x","status":"pending"}"#);
        assert!(answer.is_accepted() && !answer.may_retry());
        assert_eq!(answer.order_id.as_deref(), Some("x"));
    }

    #[test]
    fn only_refusals_are_final() {
        let may_retry = |status| Answer::read(status, None, b"").may_retry();
        assert!(Answer::none().may_retry() && may_retry(503) && may_retry(429));
        assert!(!may_retry(409) && !may_retry(410) && !may_retry(404));
    }
}
