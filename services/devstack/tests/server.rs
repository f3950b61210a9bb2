//! Single servers: crashes, restarts and pauses.

mod probing;

use std::{net::TcpListener, thread, time::Duration};

use devstack::{
    Disk,
    kafka::{self, KafkaOptions},
    postgres::{self, PostgresOptions},
    redis::{self, RedisOptions},
    registry::{self, RegistryOptions},
};
use probing::{redis as ask_redis, registry_status, try_redis, with_children};

#[test]
fn redis_with_aof_has_its_data_again_on_the_same_port() {
    let server = redis::start(RedisOptions { aof: true, ..RedisOptions::default() }).unwrap();
    let (endpoint, pid) = (server.endpoint().to_owned(), server.pid());
    assert_eq!(ask_redis(&endpoint, "SET key value"), "+OK");
    server.restart().unwrap();
    assert_eq!(server.endpoint(), endpoint);
    assert_ne!(server.pid(), pid);
    assert_eq!(ask_redis(&endpoint, "GET key"), "value");
}

#[test]
fn a_killed_redis_without_aof_comes_back_empty() {
    let server = redis::start(RedisOptions::default()).unwrap();
    ask_redis(server.endpoint(), "SET key value");
    server.kill();
    assert_eq!(server.pid(), None);
    assert!(try_redis(server.endpoint(), "PING", Duration::from_secs(1)).is_err());
    server.restart().unwrap();
    assert_eq!(ask_redis(server.endpoint(), "DBSIZE"), ":0");
}

#[test]
fn a_paused_redis_answers_after_it_was_resumed() {
    let server = redis::start(RedisOptions::default()).unwrap();
    server.pause().unwrap();
    assert!(try_redis(server.endpoint(), "PING", Duration::from_millis(200)).is_err());
    server.resume().unwrap();
    assert_eq!(ask_redis(server.endpoint(), "PING"), "+PONG");
    server.stop().unwrap();
    assert!(server.pause().is_err());
}

#[test]
fn a_killed_postgres_leaves_no_child_and_has_its_data_again() {
    let server = postgres::start(PostgresOptions { fsync: false, ..PostgresOptions::default() }).unwrap();
    postgres::query(server.endpoint(), "create table t as select 1 as x").unwrap();
    let endpoint = server.endpoint().to_owned();
    let busy = thread::spawn(move || postgres::query(&endpoint, "select pg_sleep(600)"));
    while postgres::query(server.endpoint(), "select 1 from pg_stat_activity where query = 'select pg_sleep(600)'").unwrap()
        != "1"
    {}
    let processes = with_children(server.process());
    server.kill();
    assert!(busy.join().unwrap().is_err());
    assert!(processes.len() > 2 && processes.iter().all(|process| !process.is_alive()), "{processes:?}");
    server.restart().unwrap();
    assert_eq!(postgres::query(server.endpoint(), "select x from t").unwrap(), "1");
    assert_eq!(postgres::query(server.endpoint(), "show timezone").unwrap(), "UTC");
}

#[test]
fn a_postgres_whose_disk_is_full_has_its_data_again_once_there_is_space() {
    let disk = Disk::new(512 << 20).inspect_err(|error| println!("left out: {error}"));
    let Ok(disk) = disk else { return };
    let options = PostgresOptions {
        fsync: false,
        dir: Some(disk.path().to_owned()),
        settings: vec!["min_wal_size=32MB".to_owned()],
        ..PostgresOptions::default()
    };
    let server = postgres::start(options).unwrap();
    let ask = |statement: &str| postgres::query(server.endpoint(), statement);
    ask("create table t as select 1 as x").unwrap();
    println!("{} MB after the start", disk.used().unwrap() >> 20);
    disk.fill().unwrap();
    let refused = ask("create table u as select repeat('x', 100) from generate_series(1, 100000)").unwrap_err();
    assert!(refused.to_string().contains("No space left on device"), "{refused:?}");
    // Once its log needs a new file, Postgres fails, and again when it recovers.
    while ask("select pg_logical_emit_message(true, 'test', 'x'), pg_switch_wal()").is_ok() {}
    disk.free().unwrap();
    server.restart().unwrap();
    assert_eq!(ask("select x from t").unwrap(), "1");
    ask("create table u as select repeat('x', 100) from generate_series(1, 100000)").unwrap();
}

#[test]
fn postgres_runs_below_a_folder_that_only_its_owner_may_enter() {
    // A temporary folder has mode 700, like /root, and Postgres is another user when we are root.
    let private = tempfile::tempdir().unwrap();
    let options = PostgresOptions { fsync: false, dir: Some(private.path().join("below")), ..PostgresOptions::default() };
    let server = postgres::start(options).unwrap();
    assert_eq!(postgres::query(server.endpoint(), "select 1").unwrap(), "1");
}

#[test]
fn a_killed_kafka_comes_back_on_the_same_port() {
    let server = kafka::start(KafkaOptions::default()).unwrap();
    let endpoint = server.endpoint().to_owned();
    server.kill();
    // Ready again means that it named its own cluster's id again.
    server.restart().unwrap();
    assert_eq!(server.endpoint(), endpoint);
}

#[test]
fn the_registry_keeps_nothing_in_memory_over_a_restart_but_comes_back() {
    let server = registry::start(RegistryOptions::default()).unwrap();
    assert_eq!(registry_status(server.endpoint()), 200);
    server.restart().unwrap();
    assert_eq!(registry_status(server.endpoint()), 200);
}

#[test]
fn a_taken_port_is_an_error_that_shows_the_log() {
    let first = redis::start(RedisOptions::default()).unwrap();
    let error = redis::start(RedisOptions { port: first.port(), ..RedisOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    assert_eq!(ask_redis(first.endpoint(), "PING"), "+PONG", "the one that was there goes on");
}

#[test]
fn every_server_says_when_its_port_is_taken() {
    // A start on a free port counts on these words to try another one.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let errors = [
        kafka::start(KafkaOptions { port, ..KafkaOptions::default() }).unwrap_err(),
        postgres::start(PostgresOptions { port, fsync: false, ..PostgresOptions::default() }).unwrap_err(),
        registry::start(RegistryOptions { port, ..RegistryOptions::default() }).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string().to_lowercase();
        assert!(text.contains("already in use") || text.contains("in use by another process"), "{error}");
    }
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = thread::spawn(|| redis::start(RedisOptions::default()).unwrap()).join().unwrap();
    assert_eq!(ask_redis(server.endpoint(), "PING"), "+PONG");
}
