//! Redis that loses its data or parts of it, goes back in time, is full, busy, paused, or another one than before.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use devstack::redis::RedisOptions;
use rand::rngs::SmallRng;
use redis::Connection;

use super::{draw, draw_time, frozen};
use crate::{
    fault::{Fault, Kind, at_once, kind, seconds, steps},
    site::{Site, redis_at, until},
};

const REDIS: &[&str] = &["redis"];

const HOLD: (Duration, Duration) = (seconds(1), seconds(10));
const NONE: (Duration, Duration) = (seconds(0), seconds(1));

const REPAIR: &str = "the warden's look 1 s + reading the log again 5 s + a repair's wait 3 s + the backlog";
const DAMAGE: &str = "count of reservations 3 s, twice + a reset and the reading of the whole log 10 s + a repair's wait 3 s";
const AGAIN: &str = "reconnection 1 s + the backlog; no data is lost";

pub(crate) const KINDS: &[Kind] = &[
    kind("redis-flushed", 20, REPAIR, NONE, REDIS, |_| command("FLUSHALL", &["FLUSHALL"])),
    kind("redis-scripts-flushed", 10, AGAIN, NONE, REDIS, |_| command("SCRIPT FLUSH", &["SCRIPT", "FLUSH"])),
    kind("redis-killed", 15, AGAIN, HOLD, REDIS, |_| killed(false)),
    kind("redis-killed-without-data", 20, REPAIR, HOLD, REDIS, |_| killed(true)),
    kind("redis-restarted", 15, AGAIN, NONE, REDIS, |_| restarted()),
    kind("redis-key-deleted", 25, DAMAGE, NONE, REDIS, |rng| key_broken(rng, "deleted", |key| vec!["DEL", key])),
    kind("redis-key-of-wrong-type", 25, DAMAGE, NONE, REDIS, |rng| {
        key_broken(rng, "overwritten with a string", |key| vec!["SET", key, "not a hash"])
    }),
    kind("redis-older-snapshot", 25, DAMAGE, HOLD, REDIS, |_| older_snapshot()),
    kind("redis-paused", 10, AGAIN, HOLD, REDIS, client_pause),
    kind("redis-frozen", 10, AGAIN, HOLD, REDIS, |_| frozen("Redis", |servers| &servers.redis)),
    kind("redis-out-of-memory", 10, AGAIN, HOLD, REDIS, |_| out_of_memory()),
    kind("redis-busy", 10, AGAIN, (seconds(7), seconds(10)), REDIS, |_| busy()),
    kind("redis-failed-over", 25, DAMAGE, HOLD, REDIS, |_| failed_over()),
];

fn run(site: &Site, words: &[&str]) -> Result<()> {
    tell(&mut site.servers.redis()?, words)
}

fn tell(connection: &mut Connection, words: &[&str]) -> Result<()> {
    redis::Cmd::new().arg(words).exec(connection).with_context(|| format!("Redis refuses {}", words.join(" ")))
}

fn wait_answers(site: &Site) -> Result<()> {
    until("Redis to answer", || run(site, &["PING"]).is_ok())
}

fn command(what: &'static str, words: &'static [&'static str]) -> Fault {
    at_once(what, move |site| run(site, words))
}

fn killed(without_data: bool) -> Fault {
    let begin = move |site: &mut Site| {
        let redis = &site.servers.redis.server;
        redis.kill();
        if without_data {
            // As Redis 7 names it.
            fs::remove_dir_all(redis.folder().join("data/appendonlydir"))?;
        }
        Ok(())
    };
    let what = if without_data { "kill -9 of Redis, started again without its data" } else { "kill -9 of Redis" };
    steps(what, begin, |site, ()| Ok(site.servers.redis.server.restart()?))
}

fn restarted() -> Fault {
    at_once("Redis stopped in good order and started again", |site| Ok(site.servers.redis.server.restart()?))
}

/// All keys of the world, sorted, so that the same seed picks the same one of the same keys.
fn keys(connection: &mut Connection) -> Result<Vec<Vec<u8>>> {
    let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(connection)?;
    keys.sort();
    Ok(keys)
}

fn key_broken(rng: &mut SmallRng, how: &'static str, words: fn(&str) -> Vec<&str>) -> Fault {
    let which = draw(rng);
    at_once(format!("one of Redis' keys {how}"), move |site| {
        let mut redis = site.servers.redis()?;
        let keys = keys(&mut redis)?;
        // Before anything is on sale there is none.
        if let Some(key) = keys.get(which(keys.len())) {
            let key = String::from_utf8_lossy(key);
            tell(&mut redis, &words(&key))?;
        }
        Ok(())
    })
}

/// What Redis held when the fault began is all it holds at its end: settled events, reservations and held units since then are gone, and units
/// sold since then are in stock again.
fn older_snapshot() -> Fault {
    let begin = |site: &mut Site| {
        let mut redis = site.servers.redis()?;
        let mut all = redis::pipe();
        let keys = keys(&mut redis)?;
        all.atomic();
        for key in &keys {
            all.cmd("DUMP").arg(key);
        }
        let dumps: Vec<Option<Vec<u8>>> = if keys.is_empty() { Vec::new() } else { all.query(&mut redis)? };
        Ok(keys.into_iter().zip(dumps).filter_map(|(key, dump)| Some((key, dump?))).collect::<Vec<_>>())
    };
    let end = |site: &mut Site, snapshot: Vec<(Vec<u8>, Vec<u8>)>| {
        let mut all = redis::pipe();
        all.atomic().cmd("FLUSHALL").ignore();
        for (key, dump) in &snapshot {
            all.cmd("RESTORE").arg(key).arg(0).arg(dump).ignore();
        }
        Ok(all.exec(&mut site.servers.redis()?)?)
    };
    steps("Redis put back to what it held some seconds ago", begin, end)
}

fn client_pause(rng: &mut SmallRng) -> Fault {
    let time = draw_time(rng, seconds(2), seconds(8));
    let millis = time.as_millis().to_string();
    let begin = move |site: &mut Site| run(site, &["CLIENT", "PAUSE", &millis, "ALL"]);
    steps(format!("CLIENT PAUSE of {time:?}"), begin, |site, ()| wait_answers(site))
}

fn out_of_memory() -> Fault {
    let begin = |site: &mut Site| run(site, &["CONFIG", "SET", "maxmemory", "1"]);
    steps("Redis' memory is full", begin, |site, ()| run(site, &["CONFIG", "SET", "maxmemory", "0"]))
}

/// After 5 s (`busy-reply-threshold`) Redis answers everybody with BUSY; before, nobody.
fn busy() -> Fault {
    /// It ends by itself, after half a minute or so, should nobody end it.
    const SCRIPT: &str = "for _ = 1, 3e9 do end";
    let begin = |site: &mut Site| {
        let mut redis = site.servers.redis()?;
        // Longer than the script.
        redis.set_read_timeout(Some(seconds(60)))?;
        let keep_busy = move || {
            // Killed or not, its answer is of no interest.
            let _ = tell(&mut redis, &["EVAL", SCRIPT, "0"]);
        };
        let script = thread::Builder::new().name("busy script".to_owned()).spawn(keep_busy)?;
        until("Redis to be busy", || script.is_finished() || run(site, &["PING"]).is_err())?;
        ensure!(!script.is_finished(), "the script did not keep Redis busy");
        Ok(script)
    };
    let end = |site: &mut Site, script: thread::JoinHandle<()>| {
        // Refused where it has ended by itself.
        let _ = run(site, &["SCRIPT", "KILL"]);
        let _ = script.join();
        wait_answers(site)
    };
    steps("a script that does not end, killed at last", begin, end)
}

/// The replica has everything up to a moment ago when the address moves to it. It refuses writes until it is promoted; what the old one
/// wrote since then is lost.
fn failed_over() -> Fault {
    /// How long the old one goes on alone.
    const LOST: Duration = seconds(1);
    let begin = |site: &mut Site| {
        // Else it waits 5 s for further replicas.
        run(site, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"])?;
        let old = site.servers.redis.server.port().to_string();
        let replica = devstack::redis::start(RedisOptions { aof: true, ..RedisOptions::default() })?;
        let mut told = redis_at(&replica)?;
        // By a command: as an argument it would be its master again whenever it is restarted.
        tell(&mut told, &["REPLICAOF", "127.0.0.1", &old])?;
        until("the replica to have everything", || {
            let info: Result<String, _> = redis::cmd("INFO").arg("replication").query(&mut told);
            info.is_ok_and(|text| text.contains("master_link_status:up"))
        })?;
        // To a port where nobody is: it keeps its data, goes on refusing writes, and hears no more of the old one.
        tell(&mut told, &["REPLICAOF", "127.0.0.1", "1"])?;
        thread::sleep(LOST);
        let proxied = &mut site.servers.redis;
        let old = std::mem::replace(&mut proxied.server, replica);
        proxied.proxy.set_target(proxied.server.port());
        proxied.proxy.cut();
        Ok(old)
    };
    let end = |site: &mut Site, old: devstack::Server| {
        // Nobody must find his way back to it.
        old.kill();
        run(site, &["REPLICAOF", "NO", "ONE"])
    };
    steps("Redis' address moved to a replica that lacks the last second and is promoted later", begin, end)
}
