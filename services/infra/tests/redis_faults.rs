//! Faults of the server and of the way to it: full memory, lost scripts, silence, failover, missing rights, and servers that are not fit.

mod redis_world;

use std::time::{Duration, Instant};

use domain::Timestamp;
use infra::redis::{Gate, Refusal, Reserve, Settle, Store, StoreError};
use redis_world::{Log, World, keys, order, user};

/// How long a condition may take to come true; far above what it takes.
const DEADLINE: Duration = Duration::from_secs(10);

const SETTLE: &str = include_str!("../../../lua/settle.lua");

/// Calls until the answer is one that `wanted` accepts.
async fn until<T: std::fmt::Debug>(what: &str, mut call: impl AsyncFnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = call().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} still answers {answer:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_memory_refuses_reservations_and_nothing_else() {
    let world = World::new().await;
    let mut log = Log::opened("v", 9, 4);
    world.open(&log).await;
    let (store, v, ann) = (&world.store, log.voucher.clone(), user("ann"));
    let ids = ["1", "2", "3"].map(|attempt| order(&v, &ann, attempt));
    for id in &ids {
        store.reserve(&v, id, &ann, 1, "t").await.unwrap();
    }
    world.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    // Scripts that have to be loaded first work too.
    world.run(&["SCRIPT", "FLUSH"]).await;
    let before = world.dump(&v).await;
    let refused = store.reserve(&v, &order(&v, &ann, "4"), &ann, 1, "t").await;
    assert!(matches!(&refused, Err(StoreError::Unavailable(text)) if text.contains("OOM")), "{refused:?}");
    assert_eq!(world.dump(&v).await, before);

    assert!(store.release(&v, &ids[0], "t").await.unwrap());
    let stamp = store.reservation(&v, &ids[1]).await.unwrap().unwrap().stamp;
    assert!(store.sweep(&v, &ids[1], stamp).await.unwrap().is_some());
    log.request(ids[1], &ann, 1);
    assert_eq!(store.settle(&log.events[1..]).await.unwrap(), [Settle::Applied]);
    assert_eq!(store.raise_fence(&v, 3, "e", false).await.unwrap().gate, Gate::Warming);
    assert!(store.open_gate(&v, "e", 2).await.unwrap());
    store.raise_fence(&v, 3, "e", true).await.unwrap();
    assert_eq!(store.settle(&log.events).await.unwrap(), [Settle::Applied, Settle::Applied]);
    let read = store.voucher(&v).await.unwrap().unwrap();
    assert_eq!((read.stock, read.reserved, read.sold), (7, 1, 1));

    world.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(store.open_gate(&v, "e", 2).await.unwrap());
    let answer = store.reserve(&v, &order(&v, &ann, "4"), &ann, 1, "t").await.unwrap();
    assert!(matches!(answer, Reserve::Reserved { held: 2, .. }), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_survives_lost_scripts() {
    let world = World::new().await;
    let mut log = Log::opened("v", 9, 4);
    world.open(&log).await;
    let (store, v, ann) = (&world.store, log.voucher.clone(), user("ann"));
    let (first, second) = (order(&v, &ann, "1"), order(&v, &ann, "2"));
    let flush = async || world.run(&["SCRIPT", "FLUSH"]).await;
    flush().await;
    assert!(matches!(store.reserve(&v, &first, &ann, 1, "t").await.unwrap(), Reserve::Reserved { .. }));
    flush().await;
    assert!(store.release(&v, &first, "t").await.unwrap());
    let Reserve::Reserved { requested_at, .. } = store.reserve(&v, &second, &ann, 1, "t").await.unwrap() else { panic!() };
    flush().await;
    assert!(store.sweep(&v, &second, requested_at).await.unwrap().is_some());
    log.request(second, &ann, 1);
    flush().await;
    assert_eq!(store.settle(&log.events).await.unwrap(), [Settle::Skip { seq: 1 }, Settle::Applied]);
    flush().await;
    store.raise_fence(&v, 3, "e", false).await.unwrap();
    flush().await;
    assert!(store.open_gate(&v, "e", 2).await.unwrap());
}

/// Scripts are lost and come back while pipelines run: calls in the middle do not run, some after them do, and still each voucher's events
/// are applied in order, and answered so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelines_survive_scripts_lost_in_their_middle() {
    const EVENTS: i64 = 1_000;
    let world = World::new().await;
    let logs = ["v", "w"].map(|id| {
        let mut log = Log::opened(id, EVENTS, EVENTS);
        let confirmed = log.request(order(&log.voucher, &user("ann"), "1"), &user("ann"), 1).clone();
        for seq in 3..=EVENTS {
            log.events.push((domain::Event { voucher_seq: seq, ..confirmed.clone() }, seq));
        }
        log
    });
    // Each pipeline begins with one voucher and ends with the other.
    let blocks = logs[0].events.chunks(250).zip(logs[1].events.chunks(250));
    let events: Vec<_> = blocks.flat_map(|(v, w)| v.iter().chain(w)).cloned().collect();
    let mut raw = redis_world::raw(&world.server).await;
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let forgetful = tokio::spawn(async move {
        let mut flushes = 0_u32;
        while stopped.try_recv().is_err() {
            redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut raw).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            redis::cmd("SCRIPT").arg("LOAD").arg(SETTLE).exec_async(&mut raw).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            flushes += 1;
        }
        flushes
    });
    for round in 0..5 {
        for log in &logs {
            let raise = async || world.store.raise_fence(&log.voucher, 3, &round.to_string(), true).await;
            until("raise", raise, Result::is_ok).await.unwrap();
        }
        let mut calls = 0;
        let settle = async || {
            calls += 1;
            world.store.settle(&events).await
        };
        let answers = until("settle", settle, |result| !matches!(result, Err(StoreError::Unavailable(_)))).await.unwrap();
        let fits = |answer: &Settle| *answer == Settle::Applied || (calls > 1 && matches!(answer, Settle::Skip { .. }));
        assert!(answers.len() == events.len() && answers.iter().all(fits), "after {calls} calls: {answers:?}");
        for log in &logs {
            let read = world.store.voucher(&log.voucher).await.unwrap().unwrap();
            assert_eq!((read.seq, read.sold, read.stock), (EVENTS, EVENTS - 1, 1));
        }
    }
    stop.send(()).unwrap();
    let flushes = forgetful.await.unwrap();
    assert!(flushes >= 5, "only {flushes} flushes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_an_unknown_outcome_and_the_retry_finds_its_own_reservation() {
    let world = World::new().await;
    let log = Log::opened("v", 9, 1);
    world.open(&log).await;
    let store = &Store::connect(world.server.endpoint()).await.unwrap();
    let (v, ann) = (&log.voucher, user("ann"));
    let id = order(v, &ann, "1");
    // Redis has the script, so that the call runs after all, behind the back of whoever gave up on it.
    store.reserve(v, &order(v, &user("bob"), "1"), &user("bob"), 1, "t").await.unwrap();
    world.run(&["CLIENT", "PAUSE", "1000", "ALL"]).await;
    let began = Instant::now();
    let answer = store.reserve(v, &id, &ann, 1, "t1").await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    assert!(began.elapsed() < Duration::from_millis(700), "a call is bounded: {:?}", began.elapsed());
    let find = async || store.reservation(v, &id).await;
    let found = until("the reservation", find, |found| matches!(found, Ok(Some(_)))).await.unwrap().unwrap();
    let retry = store.reserve(v, &id, &ann, 1, "t2").await.unwrap();
    assert_eq!(retry, Reserve::Same { quantity: 1, requested_at: found.requested_at, partition: 3 });
    let read = store.voucher(v).await.unwrap().unwrap();
    assert_eq!((read.stock, read.reserved), (7, 2));
    assert!(!store.release(v, &id, "t1").await.unwrap(), "two tries stand on it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_is_found_again_on_the_same_address() {
    let world = World::new().await;
    let log = Log::opened("v", 9, 1);
    world.open(&log).await;
    let store = &Store::connect(world.server.endpoint()).await.unwrap();
    let (v, ann) = (&log.voucher, user("ann"));
    world.server.kill();
    let began = Instant::now();
    for _ in 0..4 {
        let answer = store.reserve(v, &order(v, &ann, "1"), &ann, 1, "t").await;
        assert!(matches!(answer, Err(StoreError::Unknown(_) | StoreError::Unavailable(_))), "{answer:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(store.settle(&log.events).await.is_err());
    world.server.restart().unwrap();
    for _ in 0..4 {
        until("ping", async || store.ping().await, Result::is_ok).await.unwrap();
    }
    // It came back empty, with new connections and without the scripts.
    assert_eq!(store.voucher(v).await.unwrap(), None);
    until(
        "settle",
        async || store.settle(&log.events).await,
        |result| matches!(result, Ok(answers) if answers == &[Settle::Applied]),
    )
    .await
    .unwrap();
    assert!(store.now().await.unwrap() > Timestamp(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_cannot_serve_and_its_promotion_heals() {
    let world = World::new().await;
    let log = Log::opened("v", 9, 1);
    world.open(&log).await;
    let store = &Store::connect(world.server.endpoint()).await.unwrap();
    let (v, ann) = (&log.voucher, user("ann"));
    let before = world.dump(v).await;
    world.run(&["REPLICAOF", "127.0.0.1", "1"]).await;
    for _ in 0..10 {
        let answer = store.reserve(v, &order(v, &ann, "1"), &ann, 1, "t").await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        let answer = store.raise_fence(v, 3, "e", false).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        let answer = store.settle(&log.events).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    }
    assert_eq!(world.dump(v).await, before);
    world.run(&["CONFIG", "SET", "replica-serve-stale-data", "no"]).await;
    let answer = store.reserve(v, &order(v, &ann, "1"), &ann, 1, "t").await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    world.run(&["REPLICAOF", "NO", "ONE"]).await;
    let answer = store.reserve(v, &order(v, &ann, "1"), &ann, 1, "t").await.unwrap();
    assert!(matches!(answer, Reserve::Reserved { .. }), "{answer:?}");
}

/// A failover behind one address: the old primary keeps its connections open and answers READONLY, new connections reach the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_behind_the_same_address_heals_by_itself() {
    let (old, new) = (World::new().await, World::new().await);
    let log = Log::opened("v", 9, 1);
    new.open(&log).await;
    old.open(&log).await;
    let address = new.server.endpoint().trim_start_matches("redis://").to_owned();
    let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = proxy.local_addr().unwrap().port();
    let target = std::sync::Arc::new(std::sync::Mutex::new(old.server.endpoint().trim_start_matches("redis://").to_owned()));
    let towards = target.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = proxy.accept().await {
            let address = towards.lock().unwrap().clone();
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(address).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let store = Store::connect(&format!("redis://127.0.0.1:{port}")).await.unwrap();
    let (v, ann) = (&log.voucher, user("ann"));
    *target.lock().unwrap() = address;
    old.run(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let reserve = async || store.reserve(v, &order(v, &ann, "1"), &ann, 1, "t").await;
    until("reserve", reserve, |answer| matches!(answer, Ok(Reserve::Reserved { .. } | Reserve::Same { .. }))).await.unwrap();
    until("settle", async || store.settle(&log.events).await, Result::is_ok).await.unwrap();
    assert_eq!(new.store.voucher(v).await.unwrap().unwrap().reserved, 1);
    assert_eq!(old.store.voucher(v).await.unwrap().unwrap().reserved, 0);
}

/// Without the right to one command, whichever it is, a script fails before it has changed anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_changes_nothing() {
    let world = World::new().await;
    world.run(&["ACL", "SETUSER", "shop", "on", ">secret", "~*", "+@all"]).await;
    let address = world.server.endpoint().trim_start_matches("redis://");
    let store = redis_world::patient(&format!("redis://shop:secret@{address}")).await;
    let mut log = Log::opened("v", 9, 4);
    world.open(&log).await;
    let (v, ann) = (log.voucher.clone(), user("ann"));
    let flying = order(&v, &ann, "1");
    let Reserve::Reserved { requested_at, .. } = store.reserve(&v, &flying, &ann, 1, "t").await.unwrap() else { panic!() };
    log.request(flying, &ann, 1);
    let before = world.dump(&v).await;
    for command in ["hset", "hdel", "hget", "hmget", "hgetall", "time", "exists", "type", "unlink", "persist", "pexpire"] {
        world.run(&["ACL", "SETUSER", "shop", &format!("-{command}")]).await;
        let mut failed = 0;
        macro_rules! attempt {
            ($call:expr) => {
                if let Err(error) = $call.await {
                    failed += 1;
                    assert!(!matches!(error, StoreError::Damaged { .. }), "{command}: {error}");
                    assert_eq!(world.dump(&v).await, before, "without {command}, {} changed something", stringify!($call));
                } else {
                    world.restore(&v, &before).await;
                }
            };
        }
        attempt!(store.reserve(&v, &order(&v, &ann, "2"), &ann, 1, "t"));
        attempt!(store.release(&v, &flying, "t"));
        attempt!(store.settle(&log.events[1..]));
        attempt!(store.sweep(&v, &flying, requested_at));
        attempt!(store.raise_fence(&v, 3, "e", true));
        attempt!(store.raise_fence(&v, 3, "e", false));
        attempt!(store.freeze(&v, "e"));
        attempt!(store.archive(&v, DEADLINE));
        assert!(failed > 0 || command == "exists", "nothing needs {command}");
        world.run(&["ACL", "SETUSER", "shop", &format!("+{command}")]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_fit_is_refused_with_the_remedy() {
    let refusal = async |url: &str| Store::connect(url).await.err().map(|error| error.to_string()).unwrap_or_default();

    let evicting = redis_world::server(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let text = refusal(evicting.endpoint()).await;
    assert!(text.contains(evicting.endpoint()) && text.contains("allkeys-lru") && text.contains("noeviction"), "{text}");
    let unlimited = redis_world::server(&["--maxmemory-policy", "allkeys-lru"]).await;
    Store::connect(unlimited.endpoint()).await.unwrap();

    let guarded = World::new().await;
    guarded.run(&["ACL", "SETUSER", "bob", "on", ">hunter2", "~*", "+@all", "-info"]).await;
    let address = guarded.server.endpoint().trim_start_matches("redis://").to_owned();
    let text = refusal(&format!("redis://bob:wrong@{address}")).await;
    assert!(text.contains("password") && text.contains(&address) && !text.contains("wrong"), "{text}");
    let text = refusal(&format!("redis://bob:hunter2@{address}")).await;
    assert!(text.contains("INFO") && !text.contains("hunter2"), "{text}");

    let text = refusal("redis://:hunter2@127.0.0.1:1").await;
    assert!(text.contains("127.0.0.1:1") && text.contains("cannot connect") && !text.contains("hunter2"), "{text}");
    assert!(refusal("http://127.0.0.1:1").await.contains("redis://"));
}

/// A failure about one voucher in a pipeline names that voucher, and the others are settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_damaged_voucher_does_not_stand_in_the_way_of_others() {
    let world = World::new().await;
    let (mut bad, mut good) = (Log::opened("bad", 9, 4), Log::opened("good", 9, 4));
    world.open(&bad).await;
    world.open(&good).await;
    let ann = user("ann");
    bad.request(order(&bad.voucher, &ann, "1"), &ann, 1);
    good.request(order(&good.voucher, &ann, "1"), &ann, 1);
    world.run(&["SET", &keys(&bad.voucher)[0], "text"]).await;
    let events = [bad.events[1].clone(), good.events[1].clone()];
    let result = world.store.settle(&events).await;
    assert!(matches!(&result, Err(StoreError::Damaged { voucher, .. }) if *voucher == bad.voucher), "{result:?}");
    assert_eq!(world.store.settle(&events[1..]).await.unwrap(), [Settle::Skip { seq: 2 }]);
    let refused = world.store.reserve(&good.voucher, &order(&good.voucher, &ann, "2"), &ann, 4, "t").await.unwrap();
    assert_eq!(refused, Reserve::Refused { refusal: Refusal::LimitReached, held: 1 });
}
