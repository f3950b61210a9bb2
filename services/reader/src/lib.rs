//! Doorbuster's decisions for projections of your own: every event of `order-events`, once, from the beginning of the log, an offset or an
//! instant, and a notice when all history is read.
//!
//! You write a [`Projection`]: where it stands, what it makes of a batch, and, if it matters, what to do when it has caught up. [`run`]
//! reads the partitions and calls it. There is no consumer group and no offset in Kafka: **the positions are kept beside your own state, and
//! change together with it**. That is what makes it exactly once, whenever the process dies.
//!
//! ```no_run
//! use std::{collections::BTreeMap, fs, path::Path};
//!
//! use doorbuster_reader::{Batch, BoxError, Env, EventBody, Log, Options, Positions, Projection, run};
//!
//! const FILE: &str = "sold.json";
//!
//! /// Units sold of each voucher and how far they are counted, in one file that is replaced as a whole.
//! #[derive(Default, serde::Serialize, serde::Deserialize)]
//! struct Sold {
//!     positions: Positions,
//!     units: BTreeMap<String, i64>,
//! }
//!
//! impl Projection for Sold {
//!     async fn positions(&mut self) -> Result<Positions, BoxError> {
//!         if Path::new(FILE).exists() {
//!             *self = serde_json::from_slice(&fs::read(FILE)?)?;
//!         }
//!         Ok(self.positions.clone())
//!     }
//!
//!     async fn apply(&mut self, batch: Batch) -> Result<(), BoxError> {
//!         for event in batch.events.into_iter().map(|logged| logged.event) {
//!             let units = match event.body {
//!                 EventBody::OrderConfirmed { quantity, .. } => quantity,
//!                 EventBody::OrderCancelled { quantity, .. } | EventBody::OrderExpired { quantity, .. } => -quantity,
//!                 _ => continue,
//!             };
//!             if let Some(voucher) = event.voucher_id {
//!                 *self.units.entry(voucher.to_string()).or_default() += units;
//!             }
//!         }
//!         self.positions.extend(batch.to);
//!         fs::write("sold.json.new", serde_json::to_vec(self)?)?;
//!         fs::rename("sold.json.new", FILE)?;
//!         Ok(())
//!     }
//!
//!     async fn live(&mut self) -> Result<(), BoxError> {
//!         println!("all history is counted; from here on as it happens");
//!         Ok(())
//!     }
//! }
//!
//! # async fn example() -> Result<(), BoxError> {
//! // DOORBUSTER_KAFKA and DOORBUSTER_REGISTRY say where the log is; docs/CONFIGURATION.md has the rest.
//! let log = Log::connect(&Env::of_process()).await?;
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! let read = run(&log, Options::default(), &mut Sold::default(), stop).await?;
//! println!("{} events", read.events);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/units_per_minute.rs` does the same in Postgres, where two runs can meet. What the events promise stands in
//! `docs/ARCHITECTURE.md`, "For readers of events".

mod partition;
mod run;

use std::{collections::BTreeMap, error::Error, ops::Range, time::Duration};

pub use domain::{
    CancelledBy, Event, EventBody, Money, OrderId, OrderStatus, RefusalReason, RejectReason, RequestId, RequestKind, State,
    Terms, Timestamp, UserId, VoucherId, VoucherState,
};
pub use events::{Codec, DecodeError};
pub use infra::config::Env;
use infra::{
    config::{ConfigError, Connections},
    kafka::LogError,
};

pub use run::run;

/// Where a reader stands: partition of `order-events` -> offset of the next record to read.
pub type Positions = BTreeMap<i32, i64>;

/// Whatever went wrong in a projection.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The log of one deployment, and how to read its records. Cheap to clone.
#[derive(Clone)]
pub struct Log {
    connections: Connections,
    codec: Codec,
}

impl Log {
    /// Looks up the schemas; Kafka is not asked yet. Needs `DOORBUSTER_KAFKA` and `DOORBUSTER_REGISTRY`; takes `DOORBUSTER_TOPIC_PREFIX` and
    /// what `docs/CONFIGURATION.md` says about encryption and passwords. With an authorizer, the user may describe and read `order-events`, in
    /// the group `doorbuster-reader` (that Kafka wants the name of; nobody joins it).
    pub async fn connect(env: &Env) -> Result<Self, ConnectError> {
        let connections = Connections::of_log(env)?;
        let codec = Codec::connect(&connections.schema_registry()?, &connections.topics).await?;
        Ok(Self { connections, codec })
    }
}

/// Why the log cannot be read from here.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Registry(#[from] events::RegistryError),
    #[error(transparent)]
    Schemas(#[from] events::ConnectError),
}

/// State that events fold into, with its positions beside it. Any error ends the [`run`]; the next one begins with [`Projection::positions`].
pub trait Projection: Send {
    /// The stored positions; of a partition that was never stored, none.
    fn positions(&mut self) -> impl Future<Output = Result<Positions, BoxError>> + Send;

    /// Stores what the batch changes **and** `batch.to`, both or neither. Where another run may still be writing (one that was killed has perhaps
    /// sent its commit), only if the stored positions are still `batch.from`: otherwise fail, and the next run starts from what is stored.
    fn apply(&mut self, batch: Batch) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Everything that the log held when the run began is applied: "rebuilt, now live". Once a run, also where there was nothing to read.
    fn live(&mut self) -> impl Future<Output = Result<(), BoxError>> + Send {
        async { Ok(()) }
    }
}

/// Records that came since the last batch, in order within a partition, and the positions before and behind them.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub events: Vec<LoggedEvent>,
    /// Records that are no event to this version.
    pub skipped: Vec<Skipped>,
    /// Of the partitions that moved, where they stood. Both may be without a record between them: transactions end with one that nobody sees.
    pub from: Positions,
    /// Where they stand now: the same partitions.
    pub to: Positions,
}

/// An event and where it was found. Its partition is [`Event::partition`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    pub offset: i64,
    /// By the broker's clock; `decided_at` is earlier.
    pub appended_at: Timestamp,
    pub event: Event,
}

/// A record that was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub partition: i32,
    pub offset: i64,
    pub why: WhySkipped,
}

/// Why a record was passed over. Fail in [`Projection::apply`] where that must not be; nothing is stored then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhySkipped {
    /// A newer version wrote a kind of event, or a word in one, that this version does not know. It may matter to you: read again with a newer one.
    UnknownKind(String),
    /// No version can read it. Only a lane writes `order-events`, so somebody else did.
    Unreadable(String),
}

/// Where reading begins in partitions of which no position is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Offset 0. An error where history was deleted.
    #[default]
    Beginning,
    /// These offsets; partitions that are not named: offset 0.
    Offsets(Positions),
    /// The first event that the broker took at or after this instant, of those that are left. Its `decided_at` may be a little earlier.
    Time(Timestamp),
}

/// How a log is read.
#[derive(Clone, Debug)]
pub struct Options {
    pub start: Start,
    /// Only these partitions; without: all, also those that are added meanwhile (noticed within 10 s, read from offset 0).
    pub partitions: Option<Vec<i32>>,
    /// Most records of a batch.
    pub max_records: usize,
    /// A batch ends with the record that takes it to so many bytes (as encoded).
    pub max_bytes: usize,
    /// Longest wait of a record for others to join its batch.
    pub max_wait: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            start: Start::Beginning,
            partitions: None,
            max_records: 5_000,
            max_bytes: 4 << 20,
            max_wait: Duration::from_millis(200),
        }
    }
}

/// What a run has done when it was stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub events: u64,
    /// Of the skipped records: [`WhySkipped::UnknownKind`], [`WhySkipped::Unreadable`].
    pub unknown_kinds: u64,
    pub unreadable: u64,
    /// Whether [`Projection::live`] was called.
    pub is_live: bool,
    pub positions: Positions,
}

/// Why a run ended by itself. What was applied is applied; run again to go on from there.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// Kafka was away for longer than 20 s, or refused.
    #[error(transparent)]
    Log(LogError),
    /// What would be read next is gone, so no state that is folded from the rest is right.
    #[error(
        "partition {partition} of {topic}: offsets {}..{} were deleted before they were read; begin anew with empty state, from another place or \
         a longer log",
        .missing.start, .missing.end
    )]
    Deleted { topic: String, partition: i32, missing: Range<i64> },
    /// The position is of another log, or this one was made anew.
    #[error(
        "partition {partition} of {topic}: position {position} is beyond the log's end {end}; are these the topics that the positions are of?"
    )]
    BeyondEnd { topic: String, partition: i32, position: i64, end: i64 },
    /// Asked for, or named by a position.
    #[error("{topic} has partitions 0 to {last}, not {partition}; are these the topics that the positions are of?")]
    NoPartition { topic: String, partition: i32, last: i32 },
    #[error("the projection failed: {0}")]
    Projection(BoxError),
    /// The program itself failed.
    #[error("a reading thread failed")]
    Thread,
}

impl From<LogError> for ReaderError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::OutOfRange { topic, partition, start, wanted, .. } if wanted < start => {
                Self::Deleted { topic, partition, missing: wanted..start }
            }
            LogError::OutOfRange { topic, partition, end, wanted, .. } => {
                Self::BeyondEnd { topic, partition, position: wanted, end }
            }
            other => Self::Log(other),
        }
    }
}
