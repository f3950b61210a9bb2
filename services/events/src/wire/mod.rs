//! The records exactly as the schemas write them, and how they become domain types and back.
//!
//! The structs carry the records' and fields' names, because the Avro serializer matches by name. They are the only place that
//! knows the wire; a value that the domain cannot hold (an id that is none, a body that `kind` does not name) ends here as a
//! [`Misfit`].

mod event;
mod request;

use domain::{Money, OrderId, Timestamp, VoucherId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use event::WireEvent;
pub(crate) use request::WireRequest;

/// Why a decoded record is no request or event of the domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// An enum says UNKNOWN: either a newer version wrote a symbol that this one does not have, or somebody wrote that very word.
    UnknownSymbol(&'static str),
    Invalid(String),
}

/// A record that the codec can write and read.
pub(crate) trait Wire: Serialize + DeserializeOwned {}

impl Wire for WireRequest {}
impl Wire for WireEvent {}

/// An enum of the schema, with UNKNOWN as its first symbol, and the domain's enum, which has no such variant.
macro_rules! symbols {
    ($(#[$doc:meta])* $wire:ident for $domain:ty { $($symbol:literal = $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub(super) enum $wire {
            #[serde(rename = "UNKNOWN")]
            Unknown,
            $(#[serde(rename = $symbol)] $variant,)+
        }

        impl From<$domain> for $wire {
            fn from(value: $domain) -> Self {
                match value {
                    $(<$domain>::$variant => Self::$variant,)+
                }
            }
        }

        impl TryFrom<$wire> for $domain {
            type Error = $crate::wire::Misfit;
            fn try_from(value: $wire) -> Result<Self, Self::Error> {
                match value {
                    $wire::Unknown => Err($crate::wire::Misfit::UnknownSymbol(stringify!($wire))),
                    $($wire::$variant => Ok(Self::$variant),)+
                }
            }
        }
    };
}
pub(crate) use symbols;

symbols! {
    CancelledBy for domain::CancelledBy { "BUYER" = Buyer, "SELLER" = Seller }
}

symbols! {
    /// Names the body of a request, and what a refusal refused. No request says `Unreadable`; its schema does not have the word.
    RequestKind for domain::RequestKind {
        "VoucherPublished" = VoucherPublished,
        "StockChanged" = StockChanged,
        "VoucherPaused" = VoucherPaused,
        "VoucherResumed" = VoucherResumed,
        "VoucherClosed" = VoucherClosed,
        "OrderRequested" = OrderRequested,
        "CancellationRequested" = CancellationRequested,
        "PaymentReceived" = PaymentReceived,
        "PaymentWindowElapsed" = PaymentWindowElapsed,
        "Unreadable" = Unreadable,
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename = "Money")]
struct WireMoney {
    minor: i64,
    currency: String,
}

impl From<&Money> for WireMoney {
    fn from(money: &Money) -> Self {
        Self { minor: money.minor, currency: money.currency.clone() }
    }
}

impl From<WireMoney> for Money {
    fn from(money: WireMoney) -> Self {
        Self { minor: money.minor, currency: money.currency }
    }
}

/// The terms of a voucher, which two records hold under names of their own: the one published, the other opened.
macro_rules! terms {
    ($record:ident) => {
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        pub(super) struct $record {
            title: String,
            total: i64,
            per_user_limit: i64,
            begins_at: i64,
            ends_at: i64,
            price: super::WireMoney,
            payment_window_ms: Option<i64>,
            partition: i32,
        }

        impl From<&domain::Terms> for $record {
            fn from(terms: &domain::Terms) -> Self {
                Self {
                    title: terms.title.clone(),
                    total: terms.total,
                    per_user_limit: terms.per_user_limit,
                    begins_at: terms.begins_at.0,
                    ends_at: terms.ends_at.0,
                    price: (&terms.price).into(),
                    payment_window_ms: terms.payment_window_ms,
                    partition: terms.partition,
                }
            }
        }

        impl From<$record> for domain::Terms {
            fn from(terms: $record) -> Self {
                Self {
                    title: terms.title,
                    total: terms.total,
                    per_user_limit: terms.per_user_limit,
                    begins_at: domain::Timestamp(terms.begins_at),
                    ends_at: domain::Timestamp(terms.ends_at),
                    price: terms.price.into(),
                    payment_window_ms: terms.payment_window_ms,
                    partition: terms.partition,
                }
            }
        }
    };
}
pub(crate) use terms;

fn voucher_id(text: &str) -> Result<VoucherId, Misfit> {
    VoucherId::parse(text).map_err(|e| Misfit::Invalid(e.to_string()))
}

fn order_id(text: &str) -> Result<OrderId, Misfit> {
    OrderId::parse(text).map_err(|e| Misfit::Invalid(e.to_string()))
}

fn request_id(text: &str) -> Result<domain::RequestId, Misfit> {
    uuid::Uuid::try_parse(text).map_err(|e| Misfit::Invalid(format!("request_id: {e}")))
}

/// The body that `kind` names.
fn body<T>(body: Option<T>, kind: &'static str) -> Result<T, Misfit> {
    body.ok_or_else(|| Misfit::Invalid(format!("kind is {kind}, but that body is not set")))
}

fn one_body(bodies: usize) -> Result<(), Misfit> {
    if bodies == 1 { Ok(()) } else { Err(Misfit::Invalid(format!("{bodies} bodies are set instead of one"))) }
}

fn instant(millis: i64) -> Timestamp {
    Timestamp(millis)
}
