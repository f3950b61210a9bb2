//! One snapshot of Postgres, and its comparison with what the log folds into.

use std::{collections::HashMap, pin::pin};

use domain::{Order, State, Voucher, VoucherId};
use futures::TryStreamExt;
use infra::postgres::rows::{ORDER_COLUMNS, VOUCHER_COLUMNS, order_of, voucher_of};
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::{Client, types::ToSql};

use super::verdict::{Findings, Kind};
use crate::ReplayError;

/// What the snapshot holds besides the orders, which are streamed.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) vouchers: HashMap<VoucherId, Voucher>,
    /// Partition -> next_offset.
    pub(super) positions: HashMap<i32, i64>,
}

/// Opens a snapshot on this connection; it stays until the connection ends. The session's time-outs are lifted: the log is folded
/// while it is open.
pub(super) async fn open(client: &Client, requests_topic: &str) -> Result<Snapshot, ReplayError> {
    client
        .batch_execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
             SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0",
        )
        .await?;
    let positions =
        client.query("SELECT partition, next_offset FROM lane_positions WHERE topic = $1", &[&requests_topic]).await?;
    let positions =
        positions.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, tokio_postgres::Error>>()?;
    let rows = client.query(&format!("SELECT {VOUCHER_COLUMNS} FROM vouchers"), &[]).await?;
    let vouchers = rows.iter().map(voucher_of).map(|v| v.map(|v| (v.id.clone(), v))).collect::<Result<_, _>>()?;
    Ok(Snapshot { vouchers, positions })
}

/// Compares the vouchers.
pub(super) fn compare_vouchers(rows: &HashMap<VoucherId, Voucher>, state: &State, findings: &mut Findings) {
    for (id, expected) in &state.vouchers {
        match rows.get(id) {
            None => findings.differs(Kind::VoucherRow, format!("voucher {id} has no row")),
            Some(row) if row != expected => {
                findings.differs(Kind::VoucherRow, format!("voucher {id}: {}", changes(row, expected, "by the log")));
            }
            Some(_) => {}
        }
    }
    for id in rows.keys().filter(|id| !state.vouchers.contains_key(*id)) {
        findings.differs(Kind::VoucherRow, format!("voucher {id} has a row, but the log has not opened it"));
    }
}

/// Compares every row of `orders` in the snapshot with the fold, and gives the number of rows. The fold's orders are consumed: what is
/// left has no row.
pub(super) async fn compare_orders(client: &Client, mut state: State, findings: &mut Findings) -> Result<u64, ReplayError> {
    let mut rows = 0;
    let none: [&(dyn ToSql + Sync); 0] = [];
    let stream = client.query_raw(&format!("SELECT {ORDER_COLUMNS} FROM orders"), none).await?;
    let mut stream = pin!(stream);
    while let Some(row) = stream.try_next().await? {
        rows += 1;
        let found: Order = match order_of(&row) {
            Ok(order) => order,
            Err(error) => {
                findings.differs(Kind::OrderRowChanged, error.to_string());
                continue;
            }
        };
        match state.orders.remove(&found.id) {
            None => findings.differs(Kind::OrderRowExtra, format!("order {} has a row, but no event", found.id)),
            Some(expected) if expected != found => {
                findings
                    .differs(Kind::OrderRowChanged, format!("order {}: {}", found.id, changes(&found, &expected, "by the log")));
            }
            Some(_) => {}
        }
    }
    for missing in state.orders.keys() {
        findings.differs(Kind::OrderRowMissing, format!("order {missing} has events, but no row"));
    }
    Ok(rows)
}

/// The fields that differ: `quantity is 2, by the log 1`.
pub(super) fn changes<T: Serialize>(row: &T, expected: &T, by: &str) -> String {
    let fields = |value| match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (row, expected) = (fields(row), fields(expected));
    let differing = row.iter().filter(|(name, value)| expected.get(*name) != Some(*value));
    let told = differing.map(|(name, value)| format!("{name} is {value}, {by} {}", expected.get(name).unwrap_or(&Value::Null)));
    told.collect::<Vec<_>>().join("; ")
}
