//! What an error of Postgres means for whoever wanted to write.

use tokio_postgres::error::SqlState;

use super::DatabaseError;

/// What to do about an error of Postgres whose transaction certainly did not commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The same work may succeed later: again, with a pause.
    Again,
    /// A constraint refused the rows (class 23): the work is wrong, repeating it changes nothing.
    Constraint,
    /// Anything else that repeating does not change: a statement or value the server cannot take, a row nobody understands.
    Wrong,
}

impl Fault {
    /// By the server's code (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).
    ///
    /// Beyond connections (08), serialisation (40), resources (53) and operators (57, also a time-out of the server's own) also a lock
    /// not got in time (55), I/O (58), a plan that a migration made stale (0A000), a standby that took over (25), and refused
    /// log-ins or a database that is away (28, 3D), which somebody mends while we wait.
    pub fn of(code: &SqlState) -> Self {
        match code.code().get(..2).unwrap_or_default() {
            "23" => Self::Constraint,
            "08" | "0A" | "25" | "28" | "3D" | "40" | "53" | "55" | "57" | "58" => Self::Again,
            _ => Self::Wrong,
        }
    }
}

impl DatabaseError {
    /// What to do about this error, if it is certain that nothing was committed.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Pool(_) | Self::Timeout(_) | Self::VoucherTaken => Fault::Again,
            Self::Postgres(error) => match error.code() {
                Some(code) => Fault::of(code),
                // Values that do not convert are told apart only by their text; everything else without a code is the connection.
                None if error.to_string().contains("serializing") => Fault::Wrong,
                None => Fault::Again,
            },
            Self::SchemaVersion { .. } | Self::Migration(_) | Self::Address(_) | Self::Row { .. } | Self::Rows { .. } => {
                Fault::Wrong
            }
        }
    }

    /// Whether a COMMIT that failed so may still have happened: true unless the server itself said that it rolled back.
    pub(super) fn leaves_commit_open(&self) -> bool {
        let Self::Postgres(error) = self else { return true };
        !error.code().is_some_and(|code| matches!(code.code().get(..2), Some("23" | "25" | "40")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_the_table_says() {
        let again = ["08006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01", "57P03", "0A000"];
        for code in again {
            assert_eq!(Fault::of(&SqlState::from_code(code)), Fault::Again, "{code}");
        }
        for code in ["23505", "23514", "23502"] {
            assert_eq!(Fault::of(&SqlState::from_code(code)), Fault::Constraint, "{code}");
        }
        for code in ["21000", "22021", "22003", "42703", "42P01", "XX001"] {
            assert_eq!(Fault::of(&SqlState::from_code(code)), Fault::Wrong, "{code}");
        }
    }
}
