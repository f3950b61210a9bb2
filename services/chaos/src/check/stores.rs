//! Everything that the log, Postgres and Redis hold, read once, at rest. Past the services' own readers of state: what is read here is
//! what is there.

use std::{collections::HashMap, ops::ControlFlow, time::Duration};

use anyhow::Context;
use domain::{Event, LoggedRequest, Order, OrderId, UserId, Voucher, VoucherId};
use events::Codec;
use infra::{
    config::Connections,
    kafka::{PartitionReader, Record},
    postgres::rows::{ORDER_COLUMNS, VOUCHER_COLUMNS, order_of, voucher_of},
    redis::{Patience, Reservation, Store, StoreError, VoucherInRedis},
};
use testkit::World;

/// Whoever checks has time, and a machine that breaks things is busy: an answer that comes late is an answer.
const PATIENCE: Patience = Patience { short: Duration::from_secs(10), long: Duration::from_secs(20) };

/// Statements here read whole tables.
const NO_LIMIT: &str = "SET statement_timeout = 0";

pub(super) struct Stores {
    /// Of all partitions, each in the order of its offsets.
    pub(super) requests: Vec<LoggedRequest>,
    /// With their offsets, likewise.
    pub(super) events: Vec<(Event, i64)>,
    pub(super) orders: HashMap<OrderId, Order>,
    pub(super) vouchers: HashMap<VoucherId, Voucher>,
    /// What Redis has of the vouchers in Postgres.
    pub(super) redis: HashMap<VoucherId, InRedis>,
}

pub(super) struct InRedis {
    pub(super) voucher: VoucherInRedis,
    pub(super) reservations: Vec<Reservation>,
    pub(super) held: Vec<(UserId, i64)>,
}

impl Stores {
    pub(super) async fn read(world: &World) -> anyhow::Result<Self> {
        let (connections, codec, partitions) = (world.connections().clone(), world.codec(), world.partitions());
        let log = tokio::task::spawn_blocking(move || log(&connections, &codec, partitions));
        let (requests, events) = log.await?.context("the log")?;
        let (orders, vouchers) = tables(world.connections()).await.context("Postgres")?;
        let redis = redis(world.connections(), vouchers.keys()).await.context("Redis")?;
        Ok(Self { requests, events, orders, vouchers, redis })
    }
}

/// Redis, waited for longer than a buyer would.
pub(super) async fn patient_store(connections: &Connections) -> Result<Store, StoreError> {
    Store::connect_with(&connections.redis, PATIENCE).await
}

/// Requests, and events with their offsets.
type Log = (Vec<LoggedRequest>, Vec<(Event, i64)>);

fn log(connections: &Connections, codec: &Codec, partitions: i32) -> anyhow::Result<Log> {
    let (mut requests, mut events) = (Vec::new(), Vec::new());
    for partition in 0..partitions {
        read(connections, &connections.topics.requests, partition, |record| {
            let request = codec.decode_request(&record.payload).ok();
            requests.push(LoggedRequest { partition, offset: record.offset, appended_at: record.timestamp, request });
            Ok(())
        })?;
        read(connections, &connections.topics.events, partition, |record| {
            let event = codec.decode_event(&record.payload, partition);
            events.push((event.with_context(|| format!("partition {partition}, event {}", record.offset))?, record.offset));
            Ok(())
        })?;
    }
    Ok((requests, events))
}

/// Every committed record of a partition.
fn read(
    connections: &Connections,
    topic: &str,
    partition: i32,
    mut each: impl FnMut(Record) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut reader = PartitionReader::open(connections, topic, partition)?;
    let ends = reader.ends()?;
    let mut failed = Ok(());
    reader.read(ends.start, ends.stable, &mut |record| match each(record) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Err(error);
            ControlFlow::Break(())
        }
    })?;
    failed
}

async fn tables(connections: &Connections) -> anyhow::Result<(HashMap<OrderId, Order>, HashMap<VoucherId, Voucher>)> {
    let client = infra::postgres::connect(connections).await?;
    client.batch_execute(NO_LIMIT).await?;
    let rows = client.query(&format!("SELECT {ORDER_COLUMNS} FROM orders"), &[]).await?;
    let orders = rows.iter().map(|row| order_of(row).map(|order| (order.id, order))).collect::<Result<_, _>>()?;
    let rows = client.query(&format!("SELECT {VOUCHER_COLUMNS} FROM vouchers"), &[]).await?;
    let vouchers = rows.iter().map(|row| voucher_of(row).map(|v| (v.id.clone(), v))).collect::<Result<_, _>>()?;
    Ok((orders, vouchers))
}

async fn redis(
    connections: &Connections,
    vouchers: impl Iterator<Item = &VoucherId>,
) -> anyhow::Result<HashMap<VoucherId, InRedis>> {
    let store = patient_store(connections).await?;
    let mut found = HashMap::new();
    for id in vouchers {
        let voucher = match store.voucher(id).await {
            Ok(Some(voucher)) => voucher,
            // Missing or damaged: the wait for rest and the audit say whether that may be.
            Ok(None) | Err(StoreError::Damaged { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let (reservations, held) = (store.reservations(id).await?, store.held(id).await?);
        found.insert(id.clone(), InRedis { voucher, reservations, held });
    }
    Ok(found)
}
