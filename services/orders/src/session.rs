//! The lane's exchanges with Postgres: each with a time limit, and each on a session of which nothing is left open.

use std::time::Duration;

use infra::postgres::{
    DatabaseError,
    lane::{CommitError, LaneSession, LaneTransaction},
};

use crate::{Service, lane::Lane, next_step::LaneError};

/// Longest attempt, above the server's own time-outs and the wait for the batch before: it ends only attempts whose server has vanished.
const DATABASE_LIMIT: Duration = Duration::from_secs(12);

impl Lane {
    pub(crate) fn close_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.runtime.block_on(session.close());
        }
    }

    /// Whatever is still going on in a session that has failed must not be mistaken for the next attempt, nor keep the position locked.
    fn closed_if_failed<T>(&mut self, result: Result<T, LaneError>) -> Result<T, LaneError> {
        if matches!(result, Err(LaneError::Database(_) | LaneError::Commit(_))) {
            self.close_session();
        }
        result
    }

    /// Runs one exchange with Postgres on the lane's own session, connecting first where there is none.
    pub(crate) fn with_database<T>(
        &mut self,
        exchange: impl AsyncFnOnce(&LaneSession) -> Result<T, DatabaseError>,
    ) -> Result<T, LaneError> {
        let Self { runtime, session, service, partition, .. } = self;
        let result = runtime.block_on(async {
            tokio::time::timeout(DATABASE_LIMIT, async { exchange(connected(session, service, *partition).await?).await }).await
        });
        let result = result.unwrap_or(Err(DatabaseError::Timeout(DATABASE_LIMIT)));
        self.closed_if_failed(result.map_err(LaneError::from))
    }

    /// Runs `work` in one transaction of the lane's own session and commits it. Where this fails with [`CommitError::Unknown`] it may be committed;
    /// with any other error it is not.
    pub(crate) fn in_transaction<T>(
        &mut self,
        work: impl AsyncFnOnce(&LaneTransaction<'_>) -> Result<T, LaneError>,
    ) -> Result<T, LaneError> {
        let Self { runtime, session, service, partition, .. } = self;
        let result = runtime.block_on(async {
            let worked = tokio::time::timeout(DATABASE_LIMIT, async {
                let transaction = connected(session, service, *partition).await?.begin().await?;
                match work(&transaction).await {
                    Ok(worked) => Ok((transaction, worked)),
                    Err(error) => {
                        // Left to the drop, it would be sent with the next exchange only, and the position stay locked until then. Where it
                        // fails, so does the next exchange.
                        let _ = transaction.rollback().await;
                        Err(error)
                    }
                }
            });
            let (transaction, worked) = worked.await.map_err(|_| DatabaseError::Timeout(DATABASE_LIMIT))??;
            let committed = tokio::time::timeout(DATABASE_LIMIT, transaction.commit()).await;
            committed.map_err(|_| CommitError::Unknown(DatabaseError::Timeout(DATABASE_LIMIT)))??;
            Ok(worked)
        });
        self.closed_if_failed(result)
    }
}

async fn connected<'s>(
    session: &'s mut Option<LaneSession>,
    service: &Service,
    partition: i32,
) -> Result<&'s mut LaneSession, DatabaseError> {
    match session {
        Some(session) => Ok(session),
        None => {
            let connections = &service.config.connections;
            Ok(session.insert(LaneSession::connect(connections, &connections.topics.requests, partition).await?))
        }
    }
}
