//! EVALSHA of the real scripts and nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Result, ensure};
use domain::VoucherId;
use redis::{Client, Pipeline, Script, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use super::{CALLERS, runtime};

const RESERVE: &str = include_str!("../../../../lua/reserve.lua");
const SETTLE: &str = include_str!("../../../../lua/settle.lua");
/// As many as the services' store has for short calls.
const CONNECTIONS: usize = 2;

fn keys(voucher: &VoucherId) -> [String; 3] {
    ["voucher", "reservations", "held"].map(|part| format!("{{v:{voucher}}}:{part}"))
}

/// reserve.lua, once for each (order, user), from 64 callers: calls a second. An error unless each is answered with `wanted`.
pub(crate) fn reserve(url: &str, voucher: &VoucherId, tries: Vec<(String, String)>, wanted: &'static str) -> Result<f64> {
    runtime()?.block_on(async {
        let client = Client::open(url)?;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(client.get_multiplexed_async_connection().await?);
        }
        let (script, tries, next) = (Arc::new(Script::new(RESERVE)), Arc::new(tries), Arc::new(AtomicUsize::new(0)));
        let (began, count) = (Instant::now(), tries.len());
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (script, tries, next) = (Arc::clone(&script), Arc::clone(&tries), Arc::clone(&next));
            let (mut connection, keys) = (connections[caller % CONNECTIONS].clone(), keys(voucher));
            callers.spawn(async move {
                while let Some((order, user)) = tries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut invocation = script.prepare_invoke();
                    for key in &keys {
                        invocation.key(key);
                    }
                    invocation.arg(order).arg(user).arg("1").arg("token");
                    let answer: Vec<String> = invocation.invoke_async(&mut connection).await?;
                    ensure!(answer.first().is_some_and(|word| word == wanted), "reserve.lua answered {answer:?}, not {wanted}");
                }
                Ok(())
            });
        }
        while let Some(caller) = callers.join_next().await {
            caller??;
        }
        Ok(count as f64 / began.elapsed().as_secs_f64())
    })
}

/// settle.lua for confirmed orders (order, user) with the given first `seq`, in pipelines of `batch`: events a second.
pub(crate) fn settle(url: &str, voucher: &VoucherId, orders: &[(String, String)], first_seq: i64, batch: usize) -> Result<f64> {
    runtime()?.block_on(async {
        let mut connection: MultiplexedConnection = Client::open(url)?.get_multiplexed_async_connection().await?;
        let script = Script::new(SETTLE);
        script.load_async(&mut connection).await?;
        let (began, mut seq) = (Instant::now(), first_seq);
        for batch in orders.chunks(batch) {
            let mut pipeline = Pipeline::with_capacity(batch.len());
            for (order, user) in batch {
                let mut invocation = script.prepare_invoke();
                for key in keys(voucher) {
                    invocation.key(key);
                }
                invocation.arg(seq).arg(seq).arg("OrderConfirmed").arg(order).arg(user).arg("1");
                pipeline.invoke_script(&invocation);
                seq += 1;
            }
            let answers: Vec<Vec<String>> = pipeline.query_async(&mut connection).await?;
            ensure!(answers.iter().all(|answer| answer[0] == "APPLIED"), "settle.lua answered {:?}", answers.first());
        }
        Ok(orders.len() as f64 / began.elapsed().as_secs_f64())
    })
}

/// What Redis says of itself under this name in a section of INFO.
pub(crate) fn info(url: &str, section: &str, name: &str) -> Result<f64> {
    let text: String = redis::cmd("INFO").arg(section).query(&mut Client::open(url)?.get_connection()?)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.unwrap_or_default().trim().parse()?)
}

/// Deletes the voucher's keys.
pub(crate) fn forget(url: &str, voucher: &VoucherId) -> Result<()> {
    Ok(redis::cmd("DEL").arg(&keys(voucher)).exec(&mut Client::open(url)?.get_connection()?)?)
}

/// Empties it.
pub(crate) fn empty(url: &str) -> Result<()> {
    Ok(redis::cmd("FLUSHALL").exec(&mut Client::open(url)?.get_connection()?)?)
}
