//! Whether this process can sell right now. A probe keeps the reasons against it current; asking costs nothing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use infra::{
    postgres::{self, DatabaseError},
    shutdown::CancellationToken,
    telemetry::Readiness,
};
use parking_lot::Mutex;

use crate::{purchase::Purchases, servers::RealServers};

/// Between two looks at Redis and the producer.
const PROBE: Duration = Duration::from_millis(500);

/// Longest wait for Redis' sign of life.
const PING_DEADLINE: Duration = Duration::from_secs(1);

/// Probes between two looks at Postgres, which readiness does not depend on: 5 s.
const PROBES_A_LOOK: u32 = 10;

/// The reasons why this process is not ready, by part.
pub(crate) struct Health {
    reasons: Mutex<BTreeMap<&'static str, String>>,
}

impl Health {
    /// Not ready until `start` is removed.
    pub(crate) fn starting() -> Self {
        Self { reasons: Mutex::new(BTreeMap::from([("start", "starting".to_owned())])) }
    }

    /// Not ready any more, on purpose.
    pub(crate) fn stopping(&self) {
        self.reasons.lock().insert("stop", "stopping".to_owned());
    }

    /// Sets or removes the reason of one part; logs when it comes and goes.
    pub(crate) fn set(&self, part: &'static str, reason: Option<String>) {
        let mut reasons = self.reasons.lock();
        let (had, has) = (reasons.contains_key(part), reason.clone());
        match reason {
            Some(reason) => reasons.insert(part, reason),
            None => reasons.remove(part),
        };
        drop(reasons);
        match has {
            Some(reason) if !had => tracing::warn!(part, reason, "not ready"),
            None if had => tracing::info!(part, "ready"),
            _ => {}
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        match self.reasons.lock().first_key_value() {
            None => Ok(()),
            Some((part, reason)) => Err(format!("{part}: {reason}")),
        }
    }

    pub(crate) fn readiness(self: &Arc<Self>) -> Readiness {
        let this = Arc::clone(self);
        Arc::new(move || this.check())
    }
}

/// Looks again and again until `stop`.
pub(crate) async fn probe(health: Arc<Health>, purchases: Arc<Purchases<RealServers>>, stop: CancellationToken) {
    let servers = &purchases.servers;
    let mut postgres_away = false;
    for round in 0_u32.. {
        let redis = match tokio::time::timeout(PING_DEADLINE, servers.store.ping()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {PING_DEADLINE:?}")),
        };
        health.set("redis", redis);
        health.set("kafka", servers.producer.trouble().or_else(|| purchases.unacknowledged.trouble()));
        if round.is_multiple_of(PROBES_A_LOOK) {
            // Away, it keeps readers of decided orders waiting, but purchases go on. With another schema nothing it says can be trusted.
            let found = postgres::check_schema(&servers.pool).await;
            let wrong = matches!(found, Err(DatabaseError::SchemaVersion { .. }));
            health.set("postgres", found.as_ref().err().filter(|_| wrong).map(ToString::to_string));
            if let Err(error) = &found
                && !postgres_away
            {
                tracing::warn!(%error, "Postgres does not answer");
            }
            postgres_away = found.is_err();
        }
        if stop.run_until_cancelled(tokio::time::sleep(PROBE)).await.is_none() {
            return;
        }
    }
}
