//! The tables that are built beside the live ones, in a schema of their own, and how they take the place of the live ones.

use std::time::{Duration, Instant};

use domain::Voucher;
use infra::{
    config::Connections,
    crash,
    postgres::{
        DatabaseError, Fault, connect, migrate_here,
        rows::{copy_orders, copy_vouchers},
    },
};
use tokio_postgres::Client;

use super::fold::Chunk;
use crate::ReplayError;

/// Where the tables are built. Dropped when a rebuild begins.
const SHADOW: &str = "doorbuster_rebuild";

/// Where tables are kept that were replaced although they differed. Dropped when tables are next replaced.
pub(super) const REPLACED: &str = "doorbuster_replaced";

/// Key of the advisory lock under which one rebuild at a time works in a database.
const LOCK: i64 = 0x646f_6f72_7265_6275;

/// Longest wait for one lock on a live table, and for old snapshots to end. Whoever asks later waits behind it. Above the second after which
/// an autovacuum makes way (`deadlock_timeout`), below the 2 s after which a lane gives up a wait and tries again.
const LOCK_WAIT: Duration = Duration::from_millis(1_500);

/// Pause between two looks at who still has an old snapshot.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a session that builds is allowed: as long as it takes, and no wait for a disk (a crash of the server begins it all anew).
const PATIENT: &str = "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
     SET synchronous_commit = off; SET maintenance_work_mem = '128MB'";

/// Later events change these columns of an order; the last change is the one that stays.
const MERGE: &str = "UPDATE orders o SET status = c.status, changed_at = c.changed_at, voucher_seq = c.voucher_seq, \
       payment_ref = coalesce(c.payment_ref, o.payment_ref) \
     FROM (SELECT DISTINCT ON (order_id) order_id, status, changed_at, voucher_seq, \
             max(payment_ref) OVER (PARTITION BY order_id) AS payment_ref \
           FROM changed ORDER BY order_id, voucher_seq DESC) c \
     WHERE o.order_id = c.order_id; TRUNCATE changed";

/// The primary key, then the other indexes of `orders`: how each is made, and how it is dropped.
const INDEXES: &str = "SELECT format('ALTER TABLE orders ADD CONSTRAINT %I %s', conname, pg_get_constraintdef(oid)), \
       format('ALTER TABLE orders DROP CONSTRAINT %I', conname) \
     FROM pg_constraint WHERE conrelid = 'orders'::regclass AND contype = 'p' \
     UNION ALL SELECT pg_get_indexdef(indexrelid), format('DROP INDEX %s', indexrelid::regclass) \
     FROM pg_index WHERE indrelid = 'orders'::regclass AND NOT indisprimary";

/// What hangs on the live tables and would stay behind with them: whatever the migrations do not make, and rights to single columns.
const LEFT_BEHIND: &str = "SELECT DISTINCT pg_describe_object(d.classid, d.objid, 0) FROM pg_depend d \
       LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid \
       LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid \
       LEFT JOIN pg_trigger t ON d.classid = 'pg_trigger'::regclass AND t.oid = d.objid \
     WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid IN ('orders'::regclass, 'vouchers'::regclass) AND d.deptype <> 'i' \
       AND t.tgisinternal IS NOT TRUE \
       AND NOT EXISTS (SELECT FROM pg_class s WHERE s.relnamespace = $1::text::regnamespace AND s.relname = c.relname) \
       AND NOT EXISTS (SELECT FROM pg_constraint s WHERE s.connamespace = $1::text::regnamespace AND s.conname = k.conname) \
     UNION ALL SELECT format('rights to column %s of table %s', attname, attrelid::regclass) FROM pg_attribute \
     WHERE attrelid IN ('orders'::regclass, 'vouchers'::regclass) AND attacl IS NOT NULL";

/// Gives the tables in schema `$1` the owner, the rights and the settings of the live ones.
const AS_LIVE: &str = "SELECT format('ALTER TABLE %I.%I OWNER TO %I', $1::text, relname, pg_get_userbyid(relowner)) \
     FROM pg_class WHERE oid IN ('orders'::regclass, 'vouchers'::regclass) \
     UNION ALL SELECT format('GRANT %s ON %I.%I TO %s%s', privilege_type, $1::text, relname, \
       CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, \
       CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) \
     FROM pg_class, aclexplode(relacl) WHERE oid IN ('orders'::regclass, 'vouchers'::regclass) \
     UNION ALL SELECT format('ALTER TABLE %I.%I SET (%s)', $1::text, relname, array_to_string(reloptions, ', ')) \
     FROM pg_class WHERE oid IN ('orders'::regclass, 'vouchers'::regclass) AND reloptions IS NOT NULL";

/// Sessions whose snapshot is older than transaction `$1`, but for those that wait for us. They would not see in the new tables what was
/// written there last.
const OLD_SNAPSHOTS: &str = "SELECT pid, application_name FROM pg_stat_activity \
     WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() \
       AND age(backend_xmin) >= age($1::text::xid) AND NOT pg_backend_pid() = ANY (pg_blocking_pids(pid)) LIMIT 1";

/// The tables being built, and the right to build them.
pub(super) struct Shadow {
    target: Connections,
    /// Holds the lock and never works, so that the server notices at once when this process dies.
    _lock: Client,
    writer: Writer,
    /// How the indexes of `orders` are made, the primary key first.
    indexes: Vec<String>,
}

impl Shadow {
    /// Takes the lock, removes what a run before has left, and makes empty tables; `orders` without indexes.
    pub(super) async fn make(target: &Connections) -> Result<Self, ReplayError> {
        let lock = connect(target).await?;
        let taken: bool = lock.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]).await?.try_get(0)?;
        if !taken {
            let holder = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() \
                 AND locktype = 'advisory' AND granted AND (classid::bigint << 32) | objid::bigint = $1";
            let pid = lock.query_opt(holder, &[&LOCK]).await?.map_or(Ok(0), |row| row.try_get(0))?;
            return Err(ReplayError::Busy { pid });
        }
        let mut client = connect(target).await?;
        let begin =
            format!("{PATIENT}; DROP SCHEMA IF EXISTS {SHADOW} CASCADE; CREATE SCHEMA {SHADOW}; SET search_path = {SHADOW}");
        client.batch_execute(&begin).await?;
        migrate_here(&mut client).await?;
        let mut indexes = Vec::new();
        for row in client.query(INDEXES, &[]).await? {
            indexes.push(row.try_get(0)?);
            client.batch_execute(row.try_get(1)?).await?;
        }
        client.batch_execute("CREATE UNLOGGED TABLE changed AS TABLE orders").await?;
        crash::point("rebuild.begun");
        Ok(Self { target: target.clone(), _lock: lock, writer: Writer { client, is_indexed: true }, indexes })
    }

    /// Another session on these tables, and on no others, for the time while `orders` has no indexes.
    pub(super) async fn loader(&self) -> Result<Writer, ReplayError> {
        let client = connect(&self.target).await?;
        client.batch_execute(&format!("{PATIENT}; SET search_path = {SHADOW}")).await?;
        Ok(Writer { client, is_indexed: false })
    }

    /// The session that writes once it has.
    pub(super) fn adder(&self) -> &Writer {
        &self.writer
    }

    /// Builds what makes `orders` whole after all chunks are loaded.
    pub(super) async fn index(&self) -> Result<(), ReplayError> {
        for (n, index) in self.indexes.iter().enumerate() {
            self.writer.client.batch_execute(index).await?;
            if n == 0 {
                self.writer.client.batch_execute(MERGE).await?;
            }
        }
        // Plans of live statements are made anew after a swap; without figures they would be bad ones.
        self.writer.client.batch_execute("ANALYZE orders").await?;
        crash::point("rebuild.folded");
        Ok(())
    }

    /// Writes the vouchers anew. Gives the transaction that did it, behind which nothing is written until the next call.
    pub(super) async fn write_vouchers(&self, vouchers: &[Voucher]) -> Result<String, ReplayError> {
        self.writer.client.batch_execute("BEGIN; DELETE FROM vouchers").await?;
        copy_vouchers(&self.writer.client, "vouchers", vouchers).await?;
        let id = self.writer.client.query_one("SELECT pg_current_xact_id()::xid::text", &[]).await?.try_get(0)?;
        self.writer.client.batch_execute("COMMIT; ANALYZE vouchers").await?;
        Ok(id)
    }

    pub(super) async fn drop(&self) -> Result<(), ReplayError> {
        Ok(self.writer.client.batch_execute(&format!("DROP SCHEMA IF EXISTS {SHADOW} CASCADE")).await?)
    }
}

/// A session that writes chunks.
pub(super) struct Writer {
    pub(super) client: Client,
    is_indexed: bool,
}

impl Writer {
    pub(super) async fn write(&self, chunk: &Chunk) -> Result<(), ReplayError> {
        self.client.batch_execute("BEGIN").await?;
        if !chunk.changed.is_empty() {
            copy_orders(&self.client, "changed", &chunk.changed).await?;
            if self.is_indexed {
                // First: a cancelled order must leave the index of live ones before its user's next one enters it.
                self.client.batch_execute(MERGE).await?;
            }
        }
        copy_orders(&self.client, "orders", &chunk.orders).await?;
        Ok(self.client.batch_execute("COMMIT").await?)
    }
}

/// A session that puts the new tables in the place of the live ones.
pub(super) struct Swap {
    live: Client,
}

impl Swap {
    /// Gives the names of what would stay behind with the live tables.
    pub(super) async fn left_behind(connections: &Connections) -> Result<Vec<String>, ReplayError> {
        let rows = connect(connections).await?.query(LEFT_BEHIND, &[&SHADOW]).await?;
        Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
    }

    pub(super) async fn connect(connections: &Connections) -> Result<Self, ReplayError> {
        let live = connect(connections).await?;
        live.batch_execute(&format!("SET statement_timeout = 0; SET lock_timeout = {}", LOCK_WAIT.as_millis())).await?;
        Ok(Self { live })
    }

    /// Begins the transaction. From here the lanes stand still, since it holds what they lock first; whoever only reads goes on.
    pub(super) async fn begin(&self) -> Result<(), ReplayError> {
        self.or_busy("BEGIN; LOCK TABLE lane_positions IN EXCLUSIVE MODE").await
    }

    /// Whoever uses a table now may have left it at the next try.
    async fn or_busy(&self, sql: &str) -> Result<(), ReplayError> {
        self.live.batch_execute(sql).await.map_err(|error| match DatabaseError::from(error) {
            error if error.fault() == Fault::Again => ReplayError::NotNow(error.to_string()),
            error => error.into(),
        })
    }

    /// Its client.
    pub(super) fn live(&self) -> &Client {
        &self.live
    }

    /// Waits until no snapshot is older than transaction `written`.
    pub(super) async fn wait_for_snapshots(&self, written: &str) -> Result<(), ReplayError> {
        let started = Instant::now();
        while let Some(row) = self.live.query_opt(OLD_SNAPSHOTS, &[&written]).await? {
            if started.elapsed() > LOCK_WAIT {
                let (pid, name): (i32, &str) = (row.try_get(0)?, row.try_get(1)?);
                let what = format!(
                    "process {pid} ({name}) reads an older snapshot of the database, and would miss rows in the new tables"
                );
                return Err(ReplayError::NotNow(what));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Puts the tables in the place of the live ones and commits. The old ones are dropped, or kept where `keep` says so.
    pub(super) async fn commit(self, keep: bool) -> Result<(), ReplayError> {
        self.or_busy("LOCK TABLE orders, vouchers IN ACCESS EXCLUSIVE MODE").await?;
        let schema = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = 'orders'::regclass";
        let schema: String = self.live.query_one(schema, &[]).await?.try_get(0)?;
        for row in self.live.query(AS_LIVE, &[&SHADOW]).await? {
            self.live.batch_execute(row.try_get(0)?).await?;
        }
        let old = if keep {
            format!(
                "DROP SCHEMA IF EXISTS {REPLACED} CASCADE; CREATE SCHEMA {REPLACED}; \
                 ALTER TABLE {schema}.orders SET SCHEMA {REPLACED}; ALTER TABLE {schema}.vouchers SET SCHEMA {REPLACED}"
            )
        } else {
            format!("DROP TABLE {schema}.orders, {schema}.vouchers")
        };
        let swap = format!(
            "{old}; ALTER TABLE {SHADOW}.orders SET SCHEMA {schema}; ALTER TABLE {SHADOW}.vouchers SET SCHEMA {schema}; \
             DROP SCHEMA {SHADOW} CASCADE"
        );
        self.or_busy(&swap).await?;
        crash::point("rebuild.swap");
        self.live.batch_execute("COMMIT").await.map_err(|error| ReplayError::Unknown(error.into()))?;
        crash::point("rebuild.swapped");
        Ok(())
    }
}
