//! The records on Kafka: Avro schemas, Confluent wire format, schema ids and topic names.

mod codec;
pub mod dead_letter;
mod draft;
pub mod redrive;
mod registry;
mod schema;
mod topics;
mod wire;

pub use codec::{Codec, ConnectError, DecodeError, EncodeError, framed};
pub use draft::{Draft, EditError};
pub use registry::{Registry, RegistryError, SchemaVersion};
pub use topics::{DEFAULT_PARTITIONS, Topics, partition_for};

/// The schema of `order-requests`, as registered.
pub const REQUEST_SCHEMA: &str = include_str!("../../../schemas/order-requests.avsc");
/// The schema of `order-events`, as registered.
pub const EVENT_SCHEMA: &str = include_str!("../../../schemas/order-events.avsc");
