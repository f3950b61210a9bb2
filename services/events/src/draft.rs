//! A request as somebody wrote it, before it is judged: what an operator looks at, and mends, in a dead letter.

use domain::Request;
use serde_json::{Map, Value};

use crate::DecodeError;
use crate::wire::WireRequest;

/// The one text field that may be null.
const NULLABLE: &str = "reason";

/// The fields of a request's record. Their values may be none that the domain accepts (a voucher id with a brace, a kind without its body);
/// [`Draft::request`] tells.
#[derive(Clone, Debug)]
pub struct Draft(WireRequest);

/// Why a field cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("this request has no field {0}: `doorbuster dlq show` shows those it has")]
    NoField(String),
    /// Numbers and instants are what was decided when the request was made; another number is another request.
    #[error("{0} is no text: only text fields can be set")]
    NoText(String),
    #[error("{field} cannot be {value:?}: {problem}")]
    Value { field: String, value: String, problem: String },
}

impl Draft {
    pub(crate) fn of(wire: WireRequest) -> Self {
        Self(wire)
    }

    /// The request, if all its values are such as the domain accepts.
    pub fn request(&self) -> Result<Request, DecodeError> {
        Ok(self.0.clone().try_into()?)
    }

    /// The fields that are set, as JSON.
    pub fn fields(&self) -> Map<String, Value> {
        match serde_json::to_value(&self.0) {
            Ok(Value::Object(fields)) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            _ => Map::new(),
        }
    }

    /// Sets a text field of the record or of its body. What it makes of the request, [`Draft::request`] tells.
    pub fn set(&mut self, field: &str, value: &str) -> Result<(), EditError> {
        let mut fields = self.fields();
        fields.entry(NULLABLE).or_insert(Value::Null);
        match find(&mut fields, field) {
            None => return Err(EditError::NoField(field.to_owned())),
            Some(place) if place.is_string() || field == NULLABLE => *place = value.into(),
            Some(_) => return Err(EditError::NoText(field.to_owned())),
        }
        let refused = |problem: serde_json::Error| EditError::Value {
            field: field.to_owned(),
            value: value.to_owned(),
            problem: problem.to_string(),
        };
        self.0 = serde_json::from_value(Value::Object(fields)).map_err(refused)?;
        Ok(())
    }
}

/// A field by its name, wherever it stands. No two fields of a request that are set together have the same name.
fn find<'a>(fields: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Value> {
    if fields.contains_key(name) {
        return fields.get_mut(name);
    }
    fields.values_mut().filter_map(Value::as_object_mut).find_map(|inner| find(inner, name))
}

#[cfg(test)]
mod tests {
    use domain::{CancelledBy, Money, OrderId, RequestBody, Terms, Timestamp, VoucherId};

    use super::*;
    use crate::Codec;

    fn draft(body: RequestBody) -> Draft {
        let voucher_id = VoucherId::parse("tv").unwrap();
        let codec = Codec::offline();
        let request = Request { id: uuid::Uuid::from_u128(7), voucher_id, actor: "shop".into(), reason: None, body };
        codec.draft_request(&codec.encode_request(&request).unwrap()).unwrap()
    }

    fn cancellation() -> Draft {
        draft(RequestBody::CancellationRequested { order_id: OrderId::from_uuid(uuid::Uuid::nil()), by: CancelledBy::Buyer })
    }

    #[test]
    fn text_is_set_where_it_stands_and_nothing_else_is() {
        let terms = Terms {
            title: "TV".into(),
            total: 5,
            per_user_limit: 1,
            begins_at: Timestamp(1),
            ends_at: Timestamp(2),
            price: Money::new(1, "EUR"),
            payment_window_ms: None,
            partition: 0,
        };
        let mut draft = draft(RequestBody::VoucherPublished(terms.clone()));
        for (field, value) in
            [("title", "Radio"), ("currency", "USD"), ("voucher_id", "radio"), ("actor", "ann"), ("reason", "typo")]
        {
            draft.set(field, value).unwrap();
        }
        let request = draft.request().unwrap();
        assert_eq!((request.voucher_id.as_str(), &*request.actor, request.reason.as_deref()), ("radio", "ann", Some("typo")));
        let price = Money::new(1, "USD");
        assert_eq!(request.body, RequestBody::VoucherPublished(Terms { title: "Radio".into(), price, ..terms }));
        for number in ["total", "begins_at", "voucher_published"] {
            assert_eq!(draft.set(number, "1"), Err(EditError::NoText(number.into())));
        }
        // What is null is no field of this request.
        assert_eq!(draft.set("order_requested", "x"), Err(EditError::NoField("order_requested".into())));
    }

    #[test]
    fn words_and_ids_that_make_no_sense_are_mended() {
        let mut draft = cancellation();
        draft.set("by", "UNKNOWN").unwrap();
        draft.set("voucher_id", "{tv}").unwrap();
        assert!(draft.request().unwrap_err().to_string().contains("{tv}"));
        draft.set("voucher_id", "tv").unwrap();
        assert_eq!(draft.request().unwrap_err().to_string(), "unreadable: CancelledBy is UNKNOWN");
        assert!(matches!(draft.set("by", "NOBODY"), Err(EditError::Value { problem, .. }) if problem.contains("SELLER")));
        draft.set("by", "SELLER").unwrap();
        assert!(matches!(draft.request().unwrap().body, RequestBody::CancellationRequested { by: CancelledBy::Seller, .. }));
    }
}
