//! The rows of Postgres at one cut, with the positions in the log that belong to them, in one file: what Postgres is restored from, and what
//! a rebuild begins with where the beginning of the log is gone.
//!
//! A lane's stored records are not in it. The export waits until the log holds the answer to everything that is decided in the rows, so
//! nothing of them is left to publish; and whatever the log says beyond the cut, the lanes fold into the rows by themselves.

mod file;

use std::{
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

use domain::Order;
use events::Codec;
use futures::{StreamExt, TryStreamExt};
use infra::{
    config::Connections,
    postgres::{
        check_schema, connect, pool,
        rows::{copy_orders, copy_vouchers, order_of},
    },
};
use tokio_postgres::Client;

pub use self::file::{End, Place, Snapshot};
use self::file::{Header, Writer};
pub(crate) use self::file::{Reader, Rows};
use crate::{
    ReplayError, compare,
    walk::{Log, Walk, blocking, open_all, partitions, side_by_side},
};

/// Rows that are kept in memory at once.
const CHUNK: usize = 10_000;

/// Whether anything is in the tables. Lanes that have done nothing yet leave positions of 0.
const HOLDS_ROWS: &str = "SELECT EXISTS (SELECT FROM orders) OR EXISTS (SELECT FROM vouchers) \
     OR EXISTS (SELECT FROM lane_positions WHERE next_offset > 0)";

/// Writes a snapshot to `path`, which must not be there yet; an export that failed or was killed leaves nothing under that name.
///
/// Waits up to `patience` for events of decisions that Postgres has; [`ReplayError::NotNow`] where they do not come.
pub async fn export(connections: &Connections, codec: &Codec, path: &Path, patience: Duration) -> Result<Snapshot, ReplayError> {
    let path = path.to_owned();
    let mut writer = blocking(move || Writer::create(&path)).await?;
    let places = match write(connections, codec, patience, &mut writer).await {
        Ok(places) => places,
        Err(error) => {
            writer.discard();
            return Err(error);
        }
    };
    Ok(Snapshot { places, end: blocking(move || writer.finish()).await? })
}

async fn write(
    connections: &Connections,
    codec: &Codec,
    patience: Duration,
    writer: &mut Writer,
) -> Result<Vec<Place>, ReplayError> {
    let topics = &connections.topics;
    check_schema(&pool(connections, 1)?).await?;
    let client = connect(connections).await?;
    let cut = compare::open(&client, &topics.requests).await?;
    let mut positions: Vec<(i32, i64)> = cut.positions.into_iter().collect();
    positions.sort_unstable();
    // After the cut: what lanes decide from here on is neither in the rows nor waited for.
    let (log, until) = (Log::of(connections, codec), Instant::now() + patience);
    let find = move |at: (i32, i64)| place(log.events(at.0)?, at, until);
    let places = side_by_side(positions, find).await?;
    let mut vouchers: Vec<_> = cut.vouchers.into_values().collect();
    vouchers.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    // The disk is quicker than the rows come, and nobody else works in this process: no thread of its own for it.
    writer.begin(&topics.requests, &topics.events, places.clone())?;
    writer.vouchers(vouchers)?;
    let mut rows = compare::orders(&client).await?.map(|row| Ok::<Order, ReplayError>(order_of(&row?)?));
    while let Some(order) = rows.try_next().await? {
        writer.order(order)?;
    }
    Ok(places)
}

/// Where the answers to the requests below a lane's position end. Blocks until they are in the log.
fn place(mut events: Walk, (partition, next_offset): (i32, i64), until: Instant) -> Result<Place, ReplayError> {
    if next_offset == 0 {
        return Ok(Place { partition, next_offset, events_from: 0 });
    }
    let ends = events.wait_answered(next_offset, None, until)?;
    let events_from = events.first_answer(ends, next_offset, next_offset)?;
    if events_from == ends.start && events_from > 0 {
        // The last answer that the rows hold is gone. So the next one that is there must be the next that they lack.
        let mut next = None;
        events.events(events_from, ends.stable, |event, _| {
            next = Some(event.request_offset);
            Ok(ControlFlow::Break(()))
        })?;
        if let Some(found) = next.filter(|found| *found > next_offset) {
            let start = ends.start;
            return Err(ReplayError::Deleted(format!(
                "partition {partition}: the events of offsets 0..{start} were deleted, and the answers to requests {next_offset}..{found} \
                 among them, which Postgres lacks"
            )));
        }
    }
    Ok(Place { partition, next_offset, events_from })
}

/// Reads a whole file and checks it against its digest.
pub async fn verify_file(path: &Path) -> Result<Snapshot, ReplayError> {
    let path = path.to_owned();
    blocking(move || {
        let mut reader = Reader::open(&path, None)?;
        while !reader.rows(CHUNK)?.is_empty() {}
        reader.end()
    })
    .await
}

/// Opens a file of this deployment.
pub(crate) async fn open(connections: &Connections, path: &Path) -> Result<Reader, ReplayError> {
    let (path, topics) = (path.to_owned(), connections.topics.clone());
    blocking(move || Reader::open(&path, Some((&topics.requests, &topics.events)))).await
}

/// The log must still hold what it says beyond a snapshot.
async fn check_log(connections: &Connections, codec: &Codec, header: &Header) -> Result<(), ReplayError> {
    let (log, header) = (Log::of(connections, codec), header.clone());
    let open = move |partition| log.events(partition)?.whole_from(header.begin(partition).0);
    open_all(partitions(connections).await?, open).await.map(drop)
}

/// Puts a snapshot's rows and positions into an empty database; without `apply` only looks whether it could.
///
/// All or nothing, in one transaction, and nothing where the file turns out not to be whole. The lanes must not run meanwhile, or stand at the
/// beginning: they wait for the lock, and then fold what the log says beyond the snapshot.
pub async fn import(connections: &Connections, codec: &Codec, path: &Path, apply: bool) -> Result<Snapshot, ReplayError> {
    check_schema(&pool(connections, 1)?).await?;
    let mut reader = open(connections, path).await?;
    check_log(connections, codec, &reader.header).await?;
    let client = connect(connections).await?;
    let begin = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; BEGIN";
    client.batch_execute(begin).await?;
    if apply {
        client.batch_execute("LOCK TABLE lane_positions IN EXCLUSIVE MODE").await?;
    }
    if client.query_one(HOLDS_ROWS, &[]).await?.try_get(0)? {
        let problem = "the database is not empty: a snapshot is imported into a new one, after `doorbuster migrate --apply`";
        return Err(ReplayError::NotNow(problem.to_owned()));
    }
    loop {
        let (read, rows) = next_rows(reader, CHUNK).await?;
        reader = read;
        if rows.is_empty() {
            break;
        }
        if apply {
            copy_vouchers(&client, "vouchers", &rows.vouchers).await?;
            copy_orders(&client, "orders", &rows.orders).await?;
        }
    }
    let snapshot = reader.end()?;
    if apply {
        put_positions(&client, &connections.topics.requests, &snapshot.places).await?;
        client.batch_execute("COMMIT").await.map_err(|error| ReplayError::Unknown(error.into()))?;
        // For the plans of the lanes; an autovacuum does it, too.
        if let Err(error) = client.batch_execute("ANALYZE orders; ANALYZE vouchers").await {
            tracing::warn!(%error, "the tables are imported, and not analyzed");
        }
    }
    Ok(snapshot)
}

async fn put_positions(client: &Client, topic: &str, places: &[Place]) -> Result<(), ReplayError> {
    client.batch_execute("DELETE FROM lane_positions").await?;
    let put = "INSERT INTO lane_positions (topic, partition, next_offset, records) VALUES ($1, $2, $3, '')";
    for place in places {
        client.execute(put, &[&topic, &place.partition, &place.next_offset]).await?;
    }
    Ok(())
}

/// The next rows of a file, read on a thread that may block.
pub(crate) async fn next_rows(mut reader: Reader, most: usize) -> Result<(Reader, Rows), ReplayError> {
    blocking(move || {
        let rows = reader.rows(most)?;
        Ok((reader, rows))
    })
    .await
}
