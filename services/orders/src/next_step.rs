//! What can happen to a lane, and what it does next: the table in `docs/ARCHITECTURE.md` ("The orders service") as one function.

use domain::VoucherId;
use events::{EncodeError, RegistryError};
use infra::{
    kafka::LogError,
    postgres::{DatabaseError, Fault, lane::CommitError},
};
use publish::TransactionError;

/// Everything that can stand in a lane's way.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    /// Somebody else (a hanging commit, a restored database, another owner) moved the position.
    #[error("next_offset in Postgres is {found}, this lane expected {expected}")]
    PositionDiffers { found: i64, expected: i64 },
    /// A current batch that does not begin where the lane stands.
    #[error("a batch begins at offset {first}, this lane stands at {expected}")]
    BatchElsewhere { first: i64, expected: i64 },
    /// The commit was acknowledged, yet the log does not show it.
    #[error("the last batch is committed up to offset {end} of the events topic, but that is stable only up to {stable}")]
    NotStable { end: i64, stable: i64 },
    /// Rolled back, since the partition is lost or the batch before is not published yet.
    #[error("given up before its commit")]
    GivenUp,
    /// The consumer was told that it cannot read where it stood.
    #[error("Kafka has no record at the offset where the consumer stood")]
    CannotRead,
    #[error("Postgres: {0}")]
    Commit(#[from] CommitError),
    /// Nothing was committed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    #[error(transparent)]
    Log(#[from] LogError),
    /// A schema id is unknown and the registry is away.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error("the request at offset {offset} has kind {kind:?}, which this version does not know: start the newer version")]
    UnknownKind { offset: i64, kind: String },
    #[error(
        "{count} requests in a row are unreadable, the last at offset {offset}: look at who writes to the topic, \
         or allow more with DOORBUSTER_ORDERS_MAX_DEAD_LETTERS"
    )]
    TooManyDeadLetters { count: u64, offset: i64 },
    /// Kafka gives no record at an offset although it says it has it (a transactional writer, or a damaged log).
    #[error(
        "offset {offset} of the requests topic holds no readable record, but later ones do: requests must not be written in transactions"
    )]
    Gap { offset: i64 },
    #[error("the event at offset {offset} of the events topic was written by no lane ({reason}): nothing else may write there")]
    ForeignEvent { offset: i64, reason: String },
    #[error("the event at offset {offset} was written by a newer version ({kind:?}): start the newer version")]
    NewerEvent { offset: i64, kind: String },
    #[error(
        "the events topic answers requests only up to offset {answered}, Postgres has decided up to {next_offset} and keeps records from \
         {stored:?}: the topic has lost acknowledged events; restore it, or publish what is missing from Postgres by hand"
    )]
    LostEvents { answered: i64, next_offset: i64, stored: Option<i64> },
    #[error(
        "the events topic cannot be folded into Postgres at request {request_offset}{}: {problem}; \
         restore Postgres as a whole from a backup, of any age: what it lacks is folded into it",
        .voucher.as_ref().map(|v| format!(" (voucher {v})")).unwrap_or_default()
    )]
    CannotFold { request_offset: i64, voucher: Option<VoucherId>, problem: String },
    /// The log's beginning is gone, and Postgres lacks what it said.
    #[error(
        "the events topic begins at offset {start}: the records of offsets 0..{start} were deleted, and {missing} among them, which \
         Postgres does not have; import a snapshot that has them into an empty database (`doorbuster snapshot import FILE --apply`)"
    )]
    Deleted { start: i64, missing: String },
    #[error(
        "next_offset in Postgres is {next_offset}, but the requests topic holds offsets {start}..{end}: Postgres and Kafka are not of the \
         same deployment, or the topic was recreated or trimmed; restore what is missing before starting again"
    )]
    PositionOutside { next_offset: i64, start: i64, end: i64 },
}

/// What a lane does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The same step again, from scratch, after a pause that grows.
    Again,
    /// Recover with the producer it has.
    Recover,
    /// Drop the producer and ask the consumer whether the assignment stands; if so, recover with a new one. Without asking, a lane that has
    /// lost its partition would fence the next owner.
    Ask,
    /// Stop loudly and keep everything as it is.
    Stop,
}

/// The table. Nothing of what is decided here may depend on anything but the error.
pub(crate) fn next_step(error: &LaneError) -> Next {
    match error {
        LaneError::PositionDiffers { .. }
        | LaneError::BatchElsewhere { .. }
        | LaneError::NotStable { .. }
        | LaneError::CannotRead
        | LaneError::Commit(CommitError::Unknown(_)) => Next::Recover,
        LaneError::Database(error) | LaneError::Commit(CommitError::RolledBack(error)) => match error.fault() {
            Fault::Again => Next::Again,
            Fault::Constraint | Fault::Wrong => Next::Stop,
        },
        LaneError::Registry(_) | LaneError::GivenUp => Next::Again,
        LaneError::Transaction(_) => Next::Ask,
        LaneError::Log(LogError::OutOfRange { .. } | LogError::Topic { .. }) => Next::Stop,
        LaneError::Log(_) => Next::Again,
        LaneError::Encode(_)
        | LaneError::UnknownKind { .. }
        | LaneError::TooManyDeadLetters { .. }
        | LaneError::Gap { .. }
        | LaneError::ForeignEvent { .. }
        | LaneError::NewerEvent { .. }
        | LaneError::LostEvents { .. }
        | LaneError::CannotFold { .. }
        | LaneError::Deleted { .. }
        | LaneError::PositionOutside { .. } => Next::Stop,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn away() -> DatabaseError {
        DatabaseError::Timeout(Duration::from_secs(1))
    }

    #[test]
    fn a_position_that_differs_or_a_commit_with_unknown_outcome_recovers() {
        assert_eq!(next_step(&LaneError::PositionDiffers { found: 1, expected: 2 }), Next::Recover);
        assert_eq!(next_step(&LaneError::BatchElsewhere { first: 1, expected: 2 }), Next::Recover);
        assert_eq!(next_step(&LaneError::CannotRead), Next::Recover);
        assert_eq!(next_step(&LaneError::NotStable { end: 2, stable: 1 }), Next::Recover);
        assert_eq!(next_step(&CommitError::Unknown(away()).into()), Next::Recover);
    }

    #[test]
    fn a_database_that_is_away_is_tried_again() {
        assert_eq!(next_step(&LaneError::Database(away())), Next::Again);
        assert_eq!(next_step(&LaneError::GivenUp), Next::Again);
    }

    #[test]
    fn a_row_nobody_understands_stops_the_lane() {
        let row = DatabaseError::Row { table: "orders", problem: "unknown status".into() };
        assert_eq!(next_step(&LaneError::Database(row)), Next::Stop);
        assert_eq!(next_step(&DatabaseError::Rows { table: "orders", expected: 2, written: 1 }.into()), Next::Stop);
    }

    #[test]
    fn a_voucher_published_twice_at_once_is_decided_again() {
        assert_eq!(next_step(&DatabaseError::VoucherTaken.into()), Next::Again);
    }

    #[test]
    fn a_finished_producer_is_dropped_before_asking() {
        for error in [TransactionError::Failed("fenced".into()), TransactionError::Unknown("time-out".into())] {
            assert_eq!(next_step(&error.into()), Next::Ask);
        }
    }

    #[test]
    fn a_registry_that_is_away_makes_the_lane_wait() {
        let away = RegistryError::Unavailable { url: "u".into(), reason: "r".into() };
        assert_eq!(next_step(&away.into()), Next::Again);
    }

    #[test]
    fn a_kafka_that_is_away_is_tried_again_and_a_log_without_the_offset_stops() {
        let stalled = LogError::Stalled { topic: "t".into(), partition: 0, offset: 1, seconds: 20 };
        assert_eq!(next_step(&stalled.into()), Next::Again);
        let trimmed = LogError::OutOfRange { topic: "t".into(), partition: 0, start: 5, end: 9, wanted: 1 };
        assert_eq!(next_step(&trimmed.into()), Next::Stop);
    }

    #[test]
    fn what_repeating_cannot_mend_stops_the_lane_and_names_the_remedy() {
        let stops: [(LaneError, &str); 9] = [
            (LaneError::UnknownKind { offset: 1, kind: "New".into() }, "newer version"),
            (LaneError::NewerEvent { offset: 1, kind: "New".into() }, "newer version"),
            (LaneError::TooManyDeadLetters { count: 9, offset: 1 }, "DOORBUSTER_ORDERS_MAX_DEAD_LETTERS"),
            (LaneError::Gap { offset: 1 }, "transactions"),
            (LaneError::ForeignEvent { offset: 1, reason: "no magic byte".into() }, "nothing else may write"),
            (LaneError::LostEvents { answered: 1, next_offset: 5, stored: Some(3) }, "restore it"),
            (LaneError::CannotFold { request_offset: 1, voucher: None, problem: "a gap".into() }, "from a backup"),
            (LaneError::Deleted { start: 1, missing: "all answers".into() }, "snapshot import"),
            (LaneError::PositionOutside { next_offset: 9, start: 0, end: 5 }, "restore"),
        ];
        for (error, remedy) in stops {
            assert_eq!(next_step(&error), Next::Stop, "{error}");
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
