//! Units sold per minute, in a table of the reader's own.
//!
//! ```text
//! units_per_minute postgresql://user@host/database [from=beginning | from=PARTITION:OFFSET,... | from=MILLISECONDS-SINCE-1970] [once]
//! ```
//! Kafka and the registry are those of `DOORBUSTER_KAFKA` and `DOORBUSTER_REGISTRY`. `once`: ends when all history is counted; else it
//! goes on until Ctrl-C. Kill it at any moment, and start it again: no unit is counted twice or forgotten.
//!
//! **The minute** is that of `decided_at`, the broker's clock when the order was asked for, in UTC: it stays the same however often the log
//! is read. **What comes back** (an order cancelled or expired) is taken from the minute in which that was decided, not from the minute of
//! the sale: so a minute once past never changes, a minute may be below zero, and the sum over all minutes is what is sold now.

#![expect(clippy::print_stdout, reason = "it talks to whoever tries it")]

use std::{collections::BTreeMap, error::Error, sync::Arc};

use doorbuster_reader::{Batch, BoxError, Env, EventBody, Log, Options, Positions, Projection, Start, Timestamp, run};
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls};

/// In a schema of their own: they may live beside anything.
const TABLES: &str = "
    CREATE SCHEMA IF NOT EXISTS units_per_minute;
    SET search_path = units_per_minute;
    CREATE TABLE IF NOT EXISTS units_sold_per_minute (
        voucher_id text COLLATE \"C\",
        minute timestamptz,
        units bigint NOT NULL,
        PRIMARY KEY (voucher_id, minute));
    CREATE TABLE IF NOT EXISTS positions (partition integer PRIMARY KEY, next_offset bigint NOT NULL)";

/// A run that was killed may have sent a commit that arrives only now. So a position moves only from where this run believes it to be; the
/// row is locked until the transaction ends.
const MOVE: &str = "
    INSERT INTO positions VALUES ($1, $3)
    ON CONFLICT (partition) DO UPDATE SET next_offset = excluded.next_offset WHERE positions.next_offset = $2";

const COUNT: &str = "
    INSERT INTO units_sold_per_minute AS known
    SELECT voucher_id, to_timestamp(second), units FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS sold (voucher_id, second, units)
    ON CONFLICT (voucher_id, minute) DO UPDATE SET units = known.units + excluded.units";

struct UnitsPerMinute {
    client: Client,
    is_live: Arc<Notify>,
}

impl Projection for UnitsPerMinute {
    async fn positions(&mut self) -> Result<Positions, BoxError> {
        let rows = self.client.query("SELECT partition, next_offset FROM positions", &[]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    async fn apply(&mut self, batch: Batch) -> Result<(), BoxError> {
        let mut sold: BTreeMap<(String, i64), i64> = BTreeMap::new();
        for event in batch.events.into_iter().map(|logged| logged.event) {
            let units = match event.body {
                EventBody::OrderConfirmed { quantity, .. } => quantity,
                EventBody::OrderCancelled { quantity, .. } | EventBody::OrderExpired { quantity, .. } => -quantity,
                _ => continue,
            };
            if let Some(voucher) = event.voucher_id {
                let second = event.decided_at.0.div_euclid(60_000) * 60;
                *sold.entry((voucher.to_string(), second)).or_default() += units;
            }
        }
        let transaction = self.client.transaction().await?;
        for ((partition, from), to) in batch.from.iter().zip(batch.to.values()) {
            if transaction.execute(MOVE, &[partition, from, to]).await? != 1 {
                return Err(format!("partition {partition}: another run has moved on from {from}").into());
            }
        }
        let (keys, units): (Vec<_>, Vec<i64>) = sold.into_iter().unzip();
        let (vouchers, seconds): (Vec<String>, Vec<i64>) = keys.into_iter().unzip();
        transaction.execute(COUNT, &[&vouchers, &seconds, &units]).await?;
        Ok(transaction.commit().await?)
    }

    async fn live(&mut self) -> Result<(), BoxError> {
        println!("rebuilt, now live");
        self.is_live.notify_one();
        Ok(())
    }
}

/// `beginning`, `partition:offset,...`, or an instant in milliseconds since 1970.
fn start(text: &str) -> Result<Start, BoxError> {
    if text == "beginning" {
        return Ok(Start::Beginning);
    }
    if !text.contains(':') {
        return Ok(Start::Time(Timestamp(text.parse()?)));
    }
    let offset = |part: &str| -> Result<(i32, i64), BoxError> {
        let (partition, offset) = part.split_once(':').ok_or("write partition:offset")?;
        Ok((partition.parse()?, offset.parse()?))
    };
    Ok(Start::Offsets(text.split(',').map(offset).collect::<Result<_, _>>()?))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let postgres = arguments.next().ok_or("say where the table is: units_per_minute postgresql://user@host/database")?;
    let (mut options, mut once) = (Options::default(), false);
    for argument in arguments {
        match argument.split_once('=') {
            Some(("from", text)) => options.start = start(text).map_err(|e| format!("{argument}: {e}"))?,
            None if argument == "once" => once = true,
            _ => return Err(format!("{argument} is not known: from=... or once").into()),
        }
    }
    let log = Log::connect(&Env::of_process()).await?;
    let (client, connection) = tokio_postgres::connect(&postgres, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(TABLES).await?;
    let is_live = Arc::new(Notify::new());
    let mut table = UnitsPerMinute { client, is_live: is_live.clone() };
    let stop = async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            () = is_live.notified(), if once => {}
        }
    };
    let read = run(&log, options, &mut table, stop).await?;
    println!("{} events, {} of a newer version, {} unreadable", read.events, read.unknown_kinds, read.unreadable);
    Ok(())
}
