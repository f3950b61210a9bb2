//! Postgres that is killed, locked, read-only, without space, or put back to an older state.

use std::{thread, time::Duration};

use anyhow::{Result, anyhow};
use rand::{Rng, rngs::SmallRng};

use super::frozen;
use crate::{
    fault::{Fault, Kind, Need, at_once, kind, needing, seconds, steps},
    site::{Site, until},
};

const POSTGRES: &[&str] = &["postgres"];

const HOLD: (Duration, Duration) = (seconds(2), seconds(12));
const NONE: (Duration, Duration) = (seconds(0), seconds(1));
/// Longer than the services' statement time-out of 5 s.
const LOCKED: (Duration, Duration) = (seconds(8), seconds(20));

const AGAIN: &str = "connect time-out 3 s + back-off 2 s + a lane's recovery 5 s + the backlog";
const SPACE: &str = "start and the log's replay 5 s + connect time-out 3 s + back-off 2 s + a lane's recovery 5 s + the backlog";
const OLDER: &str =
    "a lane's look at its position 1 s + its recovery, which folds the missing events, 10 s + back-off 2 s + the backlog";

pub(crate) const KINDS: &[Kind] = &[
    kind("postgres-killed", 15, AGAIN, HOLD, POSTGRES, |_| killed()),
    kind("postgres-restarted", 15, AGAIN, NONE, POSTGRES, |_| restarted()),
    kind("postgres-frozen", 15, AGAIN, HOLD, POSTGRES, |_| frozen("Postgres", |servers| &servers.postgres)),
    kind("postgres-connections-ended", 15, AGAIN, NONE, POSTGRES, |_| connections_ended()),
    kind("postgres-orders-locked", 15, AGAIN, LOCKED, POSTGRES, |_| locked("orders")),
    kind("postgres-positions-locked", 15, AGAIN, LOCKED, POSTGRES, |_| locked("lane_positions")),
    kind("postgres-read-only", 15, AGAIN, HOLD, POSTGRES, |_| read_only()),
    kind("postgres-deadlocked", 15, AGAIN, NONE, POSTGRES, |_| deadlocked()),
    needing(Need::Disk, kind("postgres-disk-full", 20, SPACE, HOLD, POSTGRES, disk_full)),
    kind("postgres-restored", 25, OLDER, HOLD, POSTGRES, |_| restored()),
];

fn killed() -> Fault {
    let begin = |site: &mut Site| {
        site.servers.postgres.server.kill();
        Ok(())
    };
    steps("kill -9 of Postgres", begin, |site, ()| Ok(site.servers.postgres.server.restart()?))
}

fn restarted() -> Fault {
    at_once("Postgres stopped (fast) and started again", |site| Ok(site.servers.postgres.server.restart()?))
}

fn connections_ended() -> Fault {
    let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    at_once("all connections to Postgres ended by it", move |site| site.sql(&[all]))
}

/// A session of somebody else holds the table.
fn locked(table: &'static str) -> Fault {
    /// In seconds: it ends by itself should nobody end it.
    const LONGEST: u32 = 50;
    let begin = move |site: &mut Site| {
        let url = site.own_postgres();
        let lock = format!(
            "BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({LONGEST}) /* a lock held by chaos */; ROLLBACK"
        );
        // Ended by force in the end, so its outcome is an error.
        let hold = move || drop(devstack::postgres::query(&url, &lock));
        Ok(thread::Builder::new().name("lock".to_owned()).spawn(hold)?)
    };
    let end = |site: &mut Site, session: thread::JoinHandle<()>| {
        let session_of = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                          WHERE query LIKE '%a lock held by chaos%' AND pid <> pg_backend_pid()";
        while !session.is_finished() {
            site.sql(&[session_of])?;
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    steps(format!("table {table} locked by somebody, longer than a statement may take"), begin, end)
}

/// As a server that was demoted, or whose disk is running full, is made: every new transaction is read-only.
fn read_only() -> Fault {
    let set = |site: &mut Site, value: &str| {
        let alter = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
        site.sql(&["SET default_transaction_read_only = off", &alter, "SELECT pg_reload_conf()"])
    };
    steps("Postgres is read-only", move |site: &mut Site| set(site, "on"), move |site, ()| set(site, "off"))
}

/// Not one page more. Tables that must grow refuse their rows at once, with 53100; Postgres itself fails as soon as its own log needs a new
/// segment, here either whenever it happens to or at once, and cannot recover before there is space. Somebody makes room and starts it again.
fn disk_full(rng: &mut SmallRng) -> Fault {
    /// Segments of Postgres' log that it may have ready.
    const SEGMENTS: usize = 32;
    let at_once = rng.random_bool(0.5);
    let begin = move |site: &mut Site| {
        site.servers.disk.as_ref().map_err(|error| anyhow!("{error:#}"))?.fill()?;
        if at_once {
            let next_segment = "SELECT pg_logical_emit_message(true, 'chaos', 'x'); SELECT pg_switch_wal()";
            let _ = (0..SEGMENTS).try_for_each(|_| site.sql(&[next_segment]));
        }
        Ok(())
    };
    let end = |site: &mut Site, ()| {
        site.servers.disk.as_ref().map_err(|error| anyhow!("{error:#}"))?.free()?;
        let postgres = &site.servers.postgres.server;
        // It may be recovering by itself, and fail in that with what it met before there was space.
        let is_up = || postgres.process().is_some_and(|process| process.is_alive()) || postgres.restart().is_ok();
        until("Postgres to answer again", || is_up() && site.sql(&["SELECT 1"]).is_ok())
    };
    let what = if at_once { ", to which its log has just come" } else { "" };
    steps(format!("no space on Postgres' disk{what}"), begin, end)
}

/// Takes what a lane takes, in the other order, several times: Postgres ends one of the two after `deadlock_timeout` (1 s).
fn deadlocked() -> Fault {
    const TIMES: usize = 4;
    at_once("deadlocks between lanes and somebody who locks in another order", |site| {
        for _ in 0..TIMES {
            let other_order = "BEGIN; LOCK TABLE orders IN SHARE MODE; SELECT pg_sleep(0.2); \
                               SELECT FROM lane_positions FOR UPDATE; COMMIT";
            // Whichever of the two Postgres ends.
            let _ = site.sql(&[other_order]);
        }
        Ok(())
    })
}

/// The tables as they were when the fault began, all of one moment, come back in one transaction.
fn restored() -> Fault {
    // As a lane does: its position first, so that no lane is in the middle of a transaction on either side.
    const LOCK: &str = "LOCK TABLE lane_positions, vouchers, orders IN ACCESS EXCLUSIVE MODE;";
    let begin = |site: &mut Site| {
        let copy = format!(
            "BEGIN; {LOCK} DROP SCHEMA IF EXISTS older CASCADE; CREATE SCHEMA older; \
             CREATE TABLE older.lane_positions AS TABLE lane_positions; CREATE TABLE older.vouchers AS TABLE vouchers; \
             CREATE TABLE older.orders AS TABLE orders; COMMIT"
        );
        site.sql(&[&copy])
    };
    let end = |site: &mut Site, ()| {
        let put_back = format!(
            "BEGIN; {LOCK} DELETE FROM orders; DELETE FROM vouchers; DELETE FROM lane_positions; \
             INSERT INTO lane_positions TABLE older.lane_positions; INSERT INTO vouchers TABLE older.vouchers; \
             INSERT INTO orders TABLE older.orders; DROP SCHEMA older CASCADE; COMMIT"
        );
        retried(|| site.sql(&[&put_back]))
    };
    steps("Postgres put back to what it held some seconds ago", begin, end)
}

/// A lane that waits for one of the tables may be in the way.
fn retried(mut action: impl FnMut() -> Result<()>) -> Result<()> {
    const TRIES: usize = 5;
    (1..TRIES).find_map(|_| action().ok()).map_or_else(action, Ok)
}
