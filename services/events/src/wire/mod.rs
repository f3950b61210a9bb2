//! The records exactly as the schemas write them, and how they become domain types and back.
//!
//! The structs carry the records' and fields' names, because the Avro serializer matches by name. They are the only place that
//! knows the wire; a value that the domain cannot hold (an id that is none, a body that `kind` does not name) ends here as a
//! [`Misfit`]. `event` and `request` are tables of the records; the macros here make structs and conversions of them.

mod event;
mod request;

use domain::{Money, OrderId, Timestamp, UserId, VoucherId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::DecodeError;
pub(crate) use event::WireEvent;
pub(crate) use request::WireRequest;

/// Why a decoded record is no request or event of the domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// An enum says UNKNOWN: either a newer version wrote a symbol that this one does not have, or somebody wrote that very word.
    UnknownSymbol(&'static str),
    Invalid(String),
}

/// Where no newer version can have written it, UNKNOWN is that very word.
impl From<Misfit> for DecodeError {
    fn from(misfit: Misfit) -> Self {
        Self::Unreadable(match misfit {
            Misfit::UnknownSymbol(name) => format!("{name} is UNKNOWN"),
            Misfit::Invalid(why) => why,
        })
    }
}

/// A record that the codec can write and read.
pub(crate) trait Wire: Serialize + DeserializeOwned {}

impl Wire for WireRequest {}
impl Wire for WireEvent {}

/// A type of the domain, and what a field of it is on the wire.
trait Field: Sized {
    type Wire: Serialize + DeserializeOwned;
    fn write(&self) -> Self::Wire;
    fn read(wire: Self::Wire) -> Result<Self, Misfit>;
}

/// Types that the wire holds as they are.
macro_rules! as_they_are {
    ($($type:ty),+) => {$(
        impl Field for $type {
            type Wire = Self;
            fn write(&self) -> Self {
                self.clone()
            }
            fn read(wire: Self) -> Result<Self, Misfit> {
                Ok(wire)
            }
        }
    )+};
}
as_they_are!(i32, i64, String, UserId, Timestamp, Money);

impl Field for OrderId {
    type Wire = String;
    fn write(&self) -> String {
        self.to_string()
    }
    fn read(wire: String) -> Result<Self, Misfit> {
        Self::parse(&wire).map_err(|e| Misfit::Invalid(e.to_string()))
    }
}

impl<T: Field> Field for Option<T> {
    type Wire = Option<T::Wire>;
    fn write(&self) -> Self::Wire {
        self.as_ref().map(T::write)
    }
    fn read(wire: Self::Wire) -> Result<Self, Misfit> {
        wire.map(T::read).transpose()
    }
}

/// An enum of the schema, with UNKNOWN as its first symbol, and the domain's enum of the same name, which has no such variant. `$case`:
/// how the schema writes the variants' names.
macro_rules! symbols {
    ($name:ident in $case:literal: $($variant:ident),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = $case)]
        pub(crate) enum $name {
            #[serde(rename = "UNKNOWN")]
            Unknown,
            $($variant,)+
        }

        impl $crate::wire::Field for domain::$name {
            type Wire = $name;
            fn write(&self) -> $name {
                match self {
                    $(Self::$variant => $name::$variant,)+
                }
            }
            fn read(wire: $name) -> Result<Self, $crate::wire::Misfit> {
                match wire {
                    $name::Unknown => Err($crate::wire::Misfit::UnknownSymbol(stringify!($name))),
                    $($name::$variant => Ok(Self::$variant),)+
                }
            }
        }
    };
}
use symbols;

symbols! { CancelledBy in "SCREAMING_SNAKE_CASE": Buyer, Seller }

/// A record: common fields, a kind, and a nullable body for each kind, exactly one of them set. A body has the name of its kind, and the
/// fields of the variant of that name in `$Body` (in brackets: of the struct that the variant holds).
macro_rules! record {
    (
        $name:literal = $Wire:ident { $($common:ident: $common_type:ty),+ $(,)? }
        $Body:ident {
            $($slot:ident: $Kind:ident $(($inner:ident))? { $($(#[$attr:meta])* $field:ident: $type:ty),+ $(,)? })+
        }
    ) => {
        /// Names the body.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        enum Kind {
            #[default]
            #[serde(rename = "UNKNOWN")]
            Unknown,
            $($Kind,)+
        }

        $(
            #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
            struct $Kind { $($(#[$attr])* $field: <$type as $crate::wire::Field>::Wire,)+ }
        )+

        #[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
        #[serde(rename = $name)]
        pub(crate) struct $Wire {
            $($common: $common_type,)+
            kind: Kind,
            $($slot: Option<$Kind>,)+
        }

        impl $Wire {
            fn with_body(mut self, body: &$Body) -> Self {
                match body {
                    $($crate::wire::variant!($Body::$Kind $(($inner))? { $($field),+ }) => {
                        self.kind = Kind::$Kind;
                        self.$slot = Some($Kind { $($field: $crate::wire::Field::write($field),)+ });
                    })+
                }
                self
            }

            fn into_body(self) -> Result<$Body, Misfit> {
                // Before the bodies are counted: a newer kind comes with a body that this version does not see.
                if self.kind == Kind::Unknown {
                    return Err(Misfit::UnknownSymbol("kind"));
                }
                let bodies = [$(self.$slot.is_some()),+].into_iter().filter(|set| *set).count();
                if bodies != 1 {
                    return Err(Misfit::Invalid(format!("{bodies} bodies are set instead of one")));
                }
                $(if let (Kind::$Kind, Some($Kind { $($field),+ })) = (self.kind, self.$slot) {
                    $(let $field = <$type as $crate::wire::Field>::read($field)?;)+
                    return Ok($crate::wire::variant!($Body::$Kind $(($inner))? { $($field),+ }));
                })+
                Err(Misfit::Invalid(format!("kind is {:?}, but that body is not set", self.kind)))
            }
        }
    };
}
use record;

/// A variant with named fields, or of a struct with them; a pattern or an expression.
macro_rules! variant {
    ($Body:ident::$Kind:ident { $($field:ident),+ }) => {
        $Body::$Kind { $($field),+ }
    };
    ($Body:ident::$Kind:ident($inner:ident) { $($field:ident),+ }) => {
        $Body::$Kind($inner { $($field),+ })
    };
}
use variant;

fn voucher_id(text: &str) -> Result<VoucherId, Misfit> {
    VoucherId::parse(text).map_err(|e| Misfit::Invalid(e.to_string()))
}

fn request_id(text: &str) -> Result<domain::RequestId, Misfit> {
    uuid::Uuid::try_parse(text).map_err(|e| Misfit::Invalid(format!("request_id: {e}")))
}
