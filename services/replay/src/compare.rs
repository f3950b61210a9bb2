//! One snapshot of Postgres, and its comparison with what the log folds into.

use std::collections::HashMap;

use domain::{Order, OrderId, Voucher, VoucherId};
use futures::{Stream, TryStreamExt};
use infra::postgres::rows::{ORDER_COLUMNS, VOUCHER_COLUMNS, order_of, voucher_of};
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::{Client, Row, types::ToSql};

use crate::{
    ReplayError,
    audit::log::Sum,
    verdict::{Findings, Kind},
};

/// What the snapshot holds besides the orders, which are streamed.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) vouchers: HashMap<VoucherId, Voucher>,
    /// Partition -> next_offset.
    pub(crate) positions: HashMap<i32, i64>,
}

/// Opens a snapshot on this connection; it stays until the connection ends. The session's time-outs are lifted: the log is folded
/// while it is open.
pub(crate) async fn open(client: &Client, requests_topic: &str) -> Result<Snapshot, ReplayError> {
    client
        .batch_execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
             SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0",
        )
        .await?;
    let positions = positions(client, requests_topic).await?;
    let rows = client.query(&format!("SELECT {VOUCHER_COLUMNS} FROM vouchers"), &[]).await?;
    let vouchers = rows.iter().map(voucher_of).map(|v| v.map(|v| (v.id.clone(), v))).collect::<Result<_, _>>()?;
    Ok(Snapshot { vouchers, positions })
}

/// The lanes' positions: partition -> next_offset.
pub(crate) async fn positions(client: &Client, requests_topic: &str) -> Result<HashMap<i32, i64>, ReplayError> {
    let sql = "SELECT partition, next_offset FROM lane_positions WHERE topic = $1";
    let rows = client.query(sql, &[&requests_topic]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Compares the vouchers.
pub(crate) fn compare_vouchers(
    rows: &HashMap<VoucherId, Voucher>,
    by_log: &HashMap<VoucherId, Voucher>,
    findings: &mut Findings,
) {
    for (id, expected) in by_log {
        match rows.get(id) {
            None => findings.differs(Kind::VoucherRow, format!("voucher {id} has no row")),
            Some(row) if row != expected => {
                findings.differs(Kind::VoucherRow, format!("voucher {id}: {}", changes(row, expected, "by the log")));
            }
            Some(_) => {}
        }
    }
    for id in rows.keys().filter(|id| !by_log.contains_key(*id)) {
        findings.differs(Kind::VoucherRow, format!("voucher {id} has a row, but the log has not opened it"));
    }
}

/// Compares what the rows of each voucher's orders add up to. Gives the number of rows, and the units of live orders that they count
/// otherwise.
pub(crate) async fn compare_sums(
    client: &Client,
    by_log: &HashMap<VoucherId, Sum>,
    findings: &mut Findings,
) -> Result<(u64, u64), ReplayError> {
    let sql = "SELECT voucher_id, count(*), coalesce(sum(quantity) FILTER (WHERE status IN ('confirmed', 'paid')), 0)::bigint \
               FROM orders GROUP BY voucher_id";
    let (mut rows, mut drift, mut by_rows) = (0, 0, HashMap::new());
    for row in client.query(sql, &[]).await? {
        let sum = Sum { orders: row.try_get(1)?, live: row.try_get(2)? };
        rows += sum.orders.unsigned_abs();
        by_rows.insert(row.try_get::<_, String>(0)?, sum);
    }
    let mut compare = |voucher: &str, found: Sum, expected: Sum| {
        if found != expected {
            drift += found.live.abs_diff(expected.live);
            let what = format!(
                "voucher {voucher}: {} rows of orders, {} live units in them, by the log {} and {}",
                found.orders, found.live, expected.orders, expected.live
            );
            findings.differs(Kind::OrderRows, what);
        }
    };
    for (voucher, expected) in by_log {
        compare(voucher.as_str(), by_rows.remove(voucher.as_str()).unwrap_or_default(), *expected);
    }
    by_rows.iter().for_each(|(voucher, found)| compare(voucher, *found, Sum::default()));
    Ok((rows, drift))
}

/// The rows of `orders` on this connection, by id, as they come.
pub(crate) async fn orders(client: &Client) -> Result<impl Stream<Item = Result<Row, ReplayError>> + Unpin, ReplayError> {
    let none: [&(dyn ToSql + Sync); 0] = [];
    let rows = client.query_raw(&format!("SELECT {ORDER_COLUMNS} FROM orders ORDER BY order_id"), none).await?;
    Ok(Box::pin(rows.map_err(ReplayError::from)))
}

/// Compares every row with the orders of the log; both come by id, and neither is kept. Gives the number of rows, which `each` is told,
/// too, as they pass.
pub(crate) async fn compare_orders(
    mut rows: impl Stream<Item = Result<Row, ReplayError>> + Unpin,
    mut by_log: impl Stream<Item = Result<Order, ReplayError>> + Unpin,
    findings: &mut Findings,
    each: impl Fn(u64),
) -> Result<u64, ReplayError> {
    let mut count = 0;
    let mut expected = by_log.try_next().await?;
    while let Some(row) = rows.try_next().await? {
        count += 1;
        each(count);
        let id = OrderId::from_uuid(row.try_get("order_id")?);
        while let Some(missing) = expected.take_if(|order| order.id < id) {
            findings.differs(Kind::OrderRowMissing, format!("order {} has events, but no row", missing.id));
            expected = by_log.try_next().await?;
        }
        let Some(order) = expected.take_if(|order| order.id == id) else {
            findings.differs(Kind::OrderRowExtra, format!("order {id} has a row, but no event"));
            continue;
        };
        expected = by_log.try_next().await?;
        match order_of(&row) {
            Ok(found) if found == order => {}
            Ok(found) => {
                findings.differs(Kind::OrderRowChanged, format!("order {id}: {}", changes(&found, &order, "by the log")));
            }
            Err(error) => findings.differs(Kind::OrderRowChanged, format!("order {id}: {error}")),
        }
    }
    while let Some(missing) = expected {
        findings.differs(Kind::OrderRowMissing, format!("order {} has events, but no row", missing.id));
        expected = by_log.try_next().await?;
    }
    Ok(count)
}

/// The fields that differ: `quantity is 2, by the log 1`.
pub(crate) fn changes<T: Serialize>(row: &T, expected: &T, by: &str) -> String {
    let fields = |value| match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (row, expected) = (fields(row), fields(expected));
    let differing = row.iter().filter(|(name, value)| expected.get(*name) != Some(*value));
    let told = differing.map(|(name, value)| format!("{name} is {value}, {by} {}", expected.get(name).unwrap_or(&Value::Null)));
    told.collect::<Vec<_>>().join("; ")
}
