//! Reads the log again: folds it, compares it with Redis and Postgres, says how far everybody came. No producer of ours is among this
//! crate's dependencies, so nothing here can publish, settle or decide. It writes nothing but tables of its own, which it puts in the place
//! of the live ones when it is asked to, and the rows of a snapshot into an empty database.

mod answers;
mod audit;
mod compare;
mod dead_letters;
mod error;
mod explain;
mod lag;
mod ledger;
mod rebuild;
mod snapshot;
mod state;
mod tail;
mod verdict;
mod verify;
mod walk;

pub use answers::Answers;
pub use audit::{Audit, AuditOptions, Auditor, VoucherCut, audit};
pub use dead_letters::{Attempt, KnownSchemas, Letter, LetterFilter, Redriven, dead_letters, request_of};
pub use error::ReplayError;
pub use explain::{Answer, ExplainOptions, Explained, InRedis, Looked, Reserved, Step, explain};
pub use lag::{Lag, PartitionLag, lag};
pub use ledger::{Entry, LedgerOptions, LedgerRead, ledger};
pub use rebuild::{Progress, Rebuild, RebuildOptions, Swap, Swapped, Watch, rebuild};
pub use snapshot::{End, Place, Snapshot, export, import, verify_file};
pub use state::{StateAt, StateOptions, Tally, state_at};
pub use tail::{TailFrom, TailOptions, TailRead, TailRecord, tail};
pub use verdict::{Difference, Kind, Verdict};
pub use verify::{Verified, verify};
pub use walk::{PartitionRead, Point, check_history};
