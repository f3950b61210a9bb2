//! One statement, the lanes' own, that writes a batch of orders; and the transaction that is around it by itself.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use domain::{Timestamp, VoucherId};
use futures::{SinkExt, TryStreamExt, stream};
use infra::postgres::{lane, rows};
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

/// All rows of `orders`, copied into a table like it, in binary, in one transaction: rows a second.
pub(crate) fn copy(url: &str) -> Result<f64> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute("SET statement_timeout = 0; CREATE TABLE bare_copy (LIKE orders INCLUDING ALL)").await?;
        let rows: Vec<_> = client.copy_out("COPY orders TO STDOUT (FORMAT binary)").await?.try_collect().await?;
        let began = Instant::now();
        let mut sink = Box::pin(client.copy_in("COPY bare_copy FROM STDIN (FORMAT binary)").await?);
        sink.send_all(&mut stream::iter(rows.into_iter().map(Ok))).await?;
        let written = sink.as_mut().finish().await?;
        let took = began.elapsed();
        client.batch_execute("DROP TABLE bare_copy").await?;
        Ok(written as f64 / took.as_secs_f64())
    })
}

/// A connection with the statement prepared.
pub(crate) struct Orders {
    runtime: tokio::runtime::Runtime,
    client: Client,
    statement: Statement,
    voucher: VoucherId,
    seq: i64,
}

impl Orders {
    /// On the database of this address, for orders of a voucher that nobody else has.
    pub(crate) fn connect(url: &str, voucher: VoucherId) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (client, statement) = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            tokio::spawn(connection);
            let statement = client.prepare(&lane::write_orders_sql()).await?;
            anyhow::Ok((client, statement))
        })?;
        Ok(Self { runtime, client, statement, voucher, seq: 0 })
    }

    /// Writes so many new orders in one transaction and says how long that took.
    pub(crate) fn write(&mut self, count: usize) -> Result<Duration> {
        let ids: Vec<Uuid> = (0..count).map(|_| Uuid::new_v4()).collect();
        let users: Vec<String> = (0..count).map(|_| Uuid::new_v4().to_string()).collect();
        let first = self.seq + 1;
        self.seq += i64::try_from(count)?;
        let seqs: Vec<i64> = (first..=self.seq).collect();
        let (vouchers, statuses) = (vec![self.voucher.as_str(); count], vec!["confirmed"; count]);
        let (instants, none) = (vec![rows::Instant(Timestamp(1_790_000_000_000)); count], vec![None::<&str>; count]);
        let (partitions, ones, zeros) = (vec![0_i32; count], vec![1_i64; count], vec![0_i64; count]);
        let never = vec![None::<rows::Instant>; count];
        let began = Instant::now();
        let written = self.runtime.block_on(self.client.execute(
            &self.statement,
            &[
                &ids,
                &vouchers,
                &partitions,
                &users,
                &ones,
                &statuses,
                &none,
                &instants,
                &instants,
                &instants,
                &never,
                &none,
                &seqs,
                &seqs,
                &zeros,
            ],
        ))?;
        let took = began.elapsed();
        ensure!(written == count as u64, "{written} of {count} orders were written");
        Ok(took)
    }

    /// Removes all rows that were written through it, so that the table holds what the log says.
    pub(crate) fn clear(&self) -> Result<()> {
        let sql = "DELETE FROM orders WHERE voucher_id = $1";
        self.runtime.block_on(async {
            self.client.batch_execute("SET statement_timeout = 0").await?;
            self.client.execute(sql, &[&self.voucher.as_str()]).await?;
            self.client.batch_execute("VACUUM ANALYZE orders").await
        })?;
        Ok(())
    }

    /// Rows a second in batches of this size.
    pub(crate) fn rate(&mut self, count: usize, batch: usize) -> Result<f64> {
        let batches = count / batch;
        let took: Duration = (0..batches).map(|_| self.write(batch)).sum::<Result<Duration>>()?;
        Ok((batches * batch) as f64 / took.as_secs_f64())
    }
}
