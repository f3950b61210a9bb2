//! The lane's side of Postgres: its position row and the one transaction in which it decides a batch (or folds events it has missed).
//!
//! The position row is fence, position and outbox in one. It is locked first and compared by the caller; facts are read in set
//! queries that are sent together; everything is written by one statement a table.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use domain::{Event, EventBody, LoggedRequest, Order, OrderId, RequestBody, State, Timestamp, UserId, Voucher, VoucherId};
use futures::{future::OptionFuture, try_join};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Statement, Transaction, types::ToSql};
use uuid::Uuid;

use super::{
    DatabaseError, OutRecord, connect_with_task,
    rows::{Instant, ORDER_COLUMNS, VOUCHER_COLUMNS, order_of, voucher_of},
};
use crate::config::Connections;

/// For the end of a session to be sent. Longer only holds up the next try where the server is away.
const CLOSE_LIMIT: Duration = Duration::from_millis(100);

/// A lane's position, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Offset in the requests topic of the next request to decide.
    pub next_offset: i64,
    /// What the last batch sends to Kafka.
    pub records: Vec<OutRecord>,
}

/// Which facts a batch needs.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub vouchers: HashSet<VoucherId>,
    pub orders: HashSet<OrderId>,
    pub buyers: HashSet<(VoucherId, UserId)>,
    pub payments: HashSet<(VoucherId, String)>,
}

/// How a COMMIT ended that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The server rolled back.
    #[error("not committed: {0}")]
    RolledBack(DatabaseError),
    /// It may or may not have happened: the position row must say.
    #[error("outcome of the commit unknown: {0}")]
    Unknown(DatabaseError),
}

impl Wanted {
    /// What deciding these requests may look at. Texts that Postgres cannot hold are left out: no row can have them.
    pub fn by_requests<'a>(requests: impl IntoIterator<Item = &'a LoggedRequest>) -> Self {
        let mut wanted = Self::default();
        for request in requests.into_iter().filter_map(|logged| logged.request.as_ref()) {
            wanted.vouchers.insert(request.voucher_id.clone());
            wanted.orders.extend(request.body.order_id());
            match &request.body {
                RequestBody::OrderRequested { user_id, .. } if user_id.is_valid() => {
                    wanted.buyers.insert((request.voucher_id.clone(), user_id.clone()));
                }
                RequestBody::PaymentReceived { payment_ref, .. } if !payment_ref.contains('\0') => {
                    wanted.payments.insert((request.voucher_id.clone(), payment_ref.clone()));
                }
                _ => {}
            }
        }
        wanted
    }

    /// What folding these events changes.
    pub fn by_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut wanted = Self::default();
        for event in events {
            wanted.vouchers.extend(event.voucher_id.clone());
            wanted.orders.extend(event.body.order_id());
        }
        wanted
    }
}

/// A lane's own connection, with its statements prepared.
///
/// Its I/O is done only while the runtime it was made on runs. A lane that runs it for one exchange at a time must therefore end each
/// transaction in it ([`LaneTransaction::commit`], [`LaneTransaction::rollback`]), and let the server know when it gives the session up
/// ([`LaneSession::close`]): else the position stays locked.
pub struct LaneSession {
    client: Client,
    connection: JoinHandle<()>,
    topic: String,
    partition: i32,
    statements: Statements,
}

struct Statements {
    position: Statement,
    lock: Statement,
    vouchers: Statement,
    orders: Statement,
    held: Statement,
    payments: Statement,
    write_orders: Statement,
    write_vouchers: Statement,
    move_position: Statement,
}

const POSITION: &str = "SELECT next_offset, records FROM lane_positions WHERE topic = $1 AND partition = $2";
const LOCK: &str = "SELECT next_offset FROM lane_positions WHERE topic = $1 AND partition = $2 FOR UPDATE";
const CREATE_POSITION: &str = "INSERT INTO lane_positions (topic, partition, next_offset, records) VALUES ($1, $2, 0, '') \
     ON CONFLICT (topic, partition) DO NOTHING";
const MOVE_POSITION: &str = "UPDATE lane_positions SET next_offset = $4, records = $5 \
     WHERE topic = $1 AND partition = $2 AND next_offset = $3";

/// Every statement of a lane looks rows up by an index. One that is planned while the tables are still empty (the first sale) would else go on
/// reading them whole, since its plan is kept: at 40,000 orders that was nine tenths of Postgres' time.
const PLANS: &str = "SET enable_seqscan = off";

/// One probe of `orders_live` a buyer. A join with GROUP BY instead is planned as a scan that grows with the table.
pub const HELD: &str = "SELECT k.voucher_id, k.user_id, held.units \
     FROM unnest($1::text[], $2::text[]) AS k (voucher_id, user_id) \
     CROSS JOIN LATERAL (SELECT sum(o.quantity)::bigint AS units FROM orders o \
       WHERE o.voucher_id = k.voucher_id AND o.user_id = k.user_id AND o.status IN ('confirmed', 'paid')) AS held \
     WHERE held.units IS NOT NULL";

/// Orders by id.
pub fn orders_sql() -> String {
    format!("SELECT {ORDER_COLUMNS} FROM orders WHERE order_id = ANY($1::uuid[])")
}

/// Orders by what paid them.
pub fn payments_sql() -> String {
    format!(
        "SELECT {ORDER_COLUMNS} FROM orders WHERE (voucher_id, payment_ref) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
    )
}

/// Writes a batch of final rows, whose columns are the parameters.
pub fn write_orders_sql() -> String {
    // In voucher_seq order: a cancelled order must leave the live index before the next one of the same user enters it.
    format!(
        "INSERT INTO orders ({ORDER_COLUMNS}) \
         SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::bigint[], $6::text[], $7::text[], \
           $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::text[], $13::bigint[], \
           $14::bigint[], $15::bigint[]) AS changed ({ORDER_COLUMNS}) ORDER BY voucher_seq \
         ON CONFLICT (order_id) DO UPDATE SET status = excluded.status, reason = excluded.reason, \
           changed_at = excluded.changed_at, payment_ref = excluded.payment_ref, voucher_seq = excluded.voucher_seq \
         WHERE orders.voucher_id = excluded.voucher_id AND orders.voucher_seq < excluded.voucher_seq"
    )
}

fn write_vouchers_sql() -> String {
    // In id order, so that lanes that open the same vouchers at once wait for each other instead of deadlocking.
    format!(
        "INSERT INTO vouchers ({VOUCHER_COLUMNS}) \
         SELECT * FROM unnest($1::text[], $2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[], \
           $8::timestamptz[], $9::bigint[], $10::text[], $11::bigint[], $12::text[], $13::bigint[], $14::bigint[]) \
           AS changed ({VOUCHER_COLUMNS}) ORDER BY voucher_id \
         ON CONFLICT (voucher_id) DO UPDATE SET total = excluded.total, remaining = excluded.remaining, \
           state = excluded.state, terms_version = excluded.terms_version, seq = excluded.seq \
         WHERE vouchers.partition = excluded.partition AND vouchers.seq < excluded.seq"
    )
}

impl LaneSession {
    /// Connects for the lane of one partition; its row is created, at offset 0, where no lane has ever worked on it.
    pub async fn connect(connections: &Connections, topic: &str, partition: i32) -> Result<Self, DatabaseError> {
        let (client, connection) = connect_with_task(connections).await?;
        client.batch_execute(PLANS).await?;
        client.execute(CREATE_POSITION, &[&topic, &partition]).await?;
        let vouchers = format!("SELECT {VOUCHER_COLUMNS} FROM vouchers WHERE voucher_id = ANY($1)");
        let (orders, payments) = (orders_sql(), payments_sql());
        let (write_orders, write_vouchers) = (write_orders_sql(), write_vouchers_sql());
        let (position, lock, vouchers, orders, held, payments, write_orders, write_vouchers, move_position) = try_join!(
            client.prepare(POSITION),
            client.prepare(LOCK),
            client.prepare(&vouchers),
            client.prepare(&orders),
            client.prepare(HELD),
            client.prepare(&payments),
            client.prepare(&write_orders),
            client.prepare(&write_vouchers),
            client.prepare(MOVE_POSITION),
        )?;
        let statements =
            Statements { position, lock, vouchers, orders, held, payments, write_orders, write_vouchers, move_position };
        Ok(Self { client, connection, topic: topic.to_owned(), partition, statements })
    }

    /// The position as committed, without locking it.
    pub async fn position(&self) -> Result<Position, DatabaseError> {
        let row = self.client.query_one(&self.statements.position, &[&self.topic, &self.partition]).await?;
        let records = OutRecord::decode_all(row.try_get(1)?)
            .map_err(|e| DatabaseError::Row { table: "lane_positions", problem: e.to_string() })?;
        Ok(Position { next_offset: row.try_get(0)?, records })
    }

    /// Only the offset of [`LaneSession::position`].
    pub async fn next_offset(&self) -> Result<i64, DatabaseError> {
        Ok(self.client.query_one(super::NEXT_OFFSET, &[&self.topic, &self.partition]).await?.try_get(0)?)
    }

    /// Ends the session, with whatever is open in it. Waits a moment for the server to be told, not for its answer.
    pub async fn close(mut self) {
        drop(self.client);
        if tokio::time::timeout(CLOSE_LIMIT, &mut self.connection).await.is_err() {
            self.connection.abort();
        }
    }

    /// Begins the transaction of one batch.
    pub async fn begin(&mut self) -> Result<LaneTransaction<'_>, DatabaseError> {
        let Self { client, topic, partition, statements, .. } = self;
        Ok(LaneTransaction { tx: client.transaction().await?, topic, partition: *partition, statements })
    }
}

/// One open transaction of a lane. Dropping it rolls back.
pub struct LaneTransaction<'a> {
    tx: Transaction<'a>,
    topic: &'a str,
    partition: i32,
    statements: &'a Statements,
}

impl LaneTransaction<'_> {
    /// Locks the position (waiting for whoever holds it) and reads the wanted facts as they are after that. Gives next_offset, which
    /// the caller must compare with what it expects before it believes the facts.
    pub async fn lock_and_read(&self, wanted: &Wanted) -> Result<(i64, State), DatabaseError> {
        let vouchers: Vec<&str> = wanted.vouchers.iter().map(VoucherId::as_str).collect();
        let orders: Vec<Uuid> = wanted.orders.iter().map(OrderId::as_uuid).collect();
        let lock = async { Ok(self.tx.query_one(&self.statements.lock, &[&self.topic, &self.partition]).await?) };
        let vouchers = async { Ok(self.tx.query(&self.statements.vouchers, &[&vouchers]).await?) };
        let orders = async { Ok(self.tx.query(&self.statements.orders, &[&orders]).await?) };
        let held = self.held(wanted.buyers.iter());
        let payments = OptionFuture::from((!wanted.payments.is_empty()).then(|| self.payments(&wanted.payments)));
        // Polled in this order, so sent in this order: the lock comes first.
        let (lock, vouchers, orders, held, payments) =
            try_join!(lock, vouchers, orders, held, async { payments.await.transpose() })?;

        let mut facts = State { held, ..State::default() };
        for row in &vouchers {
            let voucher = voucher_of(row)?;
            facts.vouchers.insert(voucher.id.clone(), voucher);
        }
        for row in &orders {
            let order = order_of(row)?;
            facts.orders.insert(order.id, order);
        }
        for order in payments.unwrap_or_default() {
            if let Some(reference) = &order.payment_ref {
                facts.payments.insert((order.voucher_id.clone(), reference.clone()), order.id);
            }
            facts.orders.insert(order.id, order);
        }
        self.hold_of_order_owners(wanted, &mut facts).await?;
        Ok((lock.try_get(0)?, facts))
    }

    /// Orders that were found belong to buyers whom the requests need not name; their units are facts, too.
    async fn hold_of_order_owners(&self, wanted: &Wanted, facts: &mut State) -> Result<(), DatabaseError> {
        let owners: HashSet<_> = facts.orders.values().map(|o| (o.voucher_id.clone(), o.user_id.clone())).collect();
        let missing: Vec<_> = owners.difference(&wanted.buyers).collect();
        if !missing.is_empty() {
            facts.held.extend(self.held(missing.into_iter()).await?);
        }
        Ok(())
    }

    async fn held(
        &self,
        buyers: impl Iterator<Item = &(VoucherId, UserId)>,
    ) -> Result<std::collections::HashMap<(VoucherId, UserId), i64>, DatabaseError> {
        let (vouchers, users): (Vec<&str>, Vec<&str>) = buyers.map(|(v, u)| (v.as_str(), u.as_str())).unzip();
        let rows = self.tx.query(&self.statements.held, &[&vouchers, &users]).await?;
        let held = rows.iter().map(|row| {
            let voucher =
                VoucherId::parse(row.try_get(0)?).map_err(|e| DatabaseError::Row { table: "orders", problem: e.to_string() })?;
            Ok(((voucher, UserId::from_log(row.try_get(1)?)), row.try_get(2)?))
        });
        held.collect()
    }

    async fn payments(&self, wanted: &HashSet<(VoucherId, String)>) -> Result<Vec<Order>, DatabaseError> {
        let (vouchers, references): (Vec<&str>, Vec<&str>) = wanted.iter().map(|(v, r)| (v.as_str(), r.as_str())).unzip();
        let rows = self.tx.query(&self.statements.payments, &[&vouchers, &references]).await?;
        rows.iter().map(order_of).collect()
    }

    /// Writes what `events` changed, as `state` has it after them, and moves the position from `expected` to `next_offset` with the
    /// records to send. One final row an order; an older row never overwrites a newer one, and every row must arrive.
    pub async fn write(
        &self,
        state: &State,
        events: &[Event],
        expected: i64,
        next_offset: i64,
        records: &[OutRecord],
    ) -> Result<(), DatabaseError> {
        let (orders, vouchers) = changed(state, events);
        let stored = OutRecord::encode_all(records);
        let position = async {
            let row: [&(dyn ToSql + Sync); 5] = [&self.topic, &self.partition, &expected, &next_offset, &stored];
            Ok(self.tx.execute(&self.statements.move_position, &row).await?)
        };
        let (vouchers_written, orders_written, moved) =
            try_join!(self.write_vouchers(&vouchers), self.write_orders(&orders), position)?;
        if vouchers_written != vouchers.len() as u64 {
            return Err(DatabaseError::VoucherTaken);
        }
        for (table, expected, written) in [("orders", orders.len() as u64, orders_written), ("lane_positions", 1, moved)] {
            if expected != written {
                return Err(DatabaseError::Rows { table, expected, written });
            }
        }
        Ok(())
    }

    async fn write_vouchers(&self, vouchers: &[&Voucher]) -> Result<u64, DatabaseError> {
        if vouchers.is_empty() {
            return Ok(0);
        }
        let columns: [&(dyn ToSql + Sync); 14] = [
            &column(vouchers, |v| v.id.as_str()),
            &column(vouchers, |v| v.terms.partition),
            &column(vouchers, |v| v.terms.title.as_str()),
            &column(vouchers, |v| v.terms.total),
            &column(vouchers, |v| v.remaining),
            &column(vouchers, |v| v.terms.per_user_limit),
            &column(vouchers, |v| Instant(v.terms.begins_at)),
            &column(vouchers, |v| Instant(v.terms.ends_at)),
            &column(vouchers, |v| v.terms.price.minor),
            &column(vouchers, |v| v.terms.price.currency.as_str()),
            &column(vouchers, |v| v.terms.payment_window_ms),
            &column(vouchers, |v| v.state.as_str()),
            &column(vouchers, |v| v.terms_version),
            &column(vouchers, |v| v.seq),
        ];
        Ok(self.tx.execute(&self.statements.write_vouchers, &columns).await?)
    }

    async fn write_orders(&self, orders: &[&Order]) -> Result<u64, DatabaseError> {
        if orders.is_empty() {
            return Ok(0);
        }
        let instants = |f: fn(&Order) -> Timestamp| column(orders, |o| Instant(f(o)));
        let columns: [&(dyn ToSql + Sync); 15] = [
            &column(orders, |o| o.id.as_uuid()),
            &column(orders, |o| o.voucher_id.as_str()),
            &column(orders, |o| o.partition),
            &column(orders, |o| o.user_id.as_str()),
            &column(orders, |o| o.quantity),
            &column(orders, |o| o.status.as_str()),
            &column(orders, |o| o.reason.map(|r| r.as_str())),
            &instants(|o| o.requested_at),
            &instants(|o| o.decided_at),
            &instants(|o| o.changed_at),
            &column(orders, |o| o.expires_at.map(Instant)),
            &column(orders, |o| o.payment_ref.as_deref()),
            &column(orders, |o| o.voucher_seq),
            &column(orders, |o| o.request_offset),
            &column(orders, |o| o.slot),
        ];
        Ok(self.tx.execute(&self.statements.write_orders, &columns).await?)
    }

    /// Gives everything up and frees the position.
    pub async fn rollback(self) -> Result<(), DatabaseError> {
        Ok(self.tx.rollback().await?)
    }

    /// Commits. Only after this may anything be published.
    pub async fn commit(self) -> Result<(), CommitError> {
        self.tx.commit().await.map_err(|error| {
            let error = DatabaseError::from(error);
            if error.leaves_commit_open() { CommitError::Unknown(error) } else { CommitError::RolledBack(error) }
        })
    }
}

fn column<'r, R, T>(rows: &[&'r R], f: impl Fn(&'r R) -> T) -> Vec<T> {
    rows.iter().map(|row| f(row)).collect()
}

/// The orders and vouchers that these events changed, each once, as `state` has them.
fn changed<'s>(state: &'s State, events: &[Event]) -> (Vec<&'s Order>, Vec<&'s Voucher>) {
    let mut orders = BTreeMap::new();
    let mut vouchers = BTreeMap::new();
    for event in events.iter().filter(|e| e.voucher_seq > 0) {
        if let Some(voucher) = event.voucher_id.as_ref().and_then(|id| state.vouchers.get(id)) {
            vouchers.insert(&voucher.id, voucher);
        }
        let order_id = match &event.body {
            EventBody::OrderConfirmed { order_id, .. }
            | EventBody::OrderRejected { order_id, .. }
            | EventBody::OrderPaid { order_id, .. }
            | EventBody::OrderCancelled { order_id, .. }
            | EventBody::OrderExpired { order_id, .. } => order_id,
            EventBody::VoucherOpened(_)
            | EventBody::VoucherChanged { .. }
            | EventBody::RequestRepeated { .. }
            | EventBody::RequestRefused { .. } => continue,
        };
        if let Some(order) = state.orders.get(order_id) {
            orders.insert(order.id, order);
        }
    }
    (orders.into_values().collect(), vouchers.into_values().collect())
}
