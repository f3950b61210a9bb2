//! The tables built anew from the log: equal under a sale, swapped unseen, and never silent about what does not fit.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use domain::{CancelledBy, Event, LoggedRequest, Money, OrderId, RequestBody, State, Timestamp, VoucherId};
use replay::{AuditOptions, Kind, Rebuild, RebuildOptions, Swap, Swapped, Verdict};
use testkit::{World, binary, block_on, buy, doorbuster, order_request, voucher_request, wait_until, with_database};

use crate::{
    Shop,
    audit_finds::{KEEP, Plant, RESTORE, WRONG_ROWS, delete_events, kinds, on_database},
    crowd::Crowd,
    names,
};

const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks of somebody who reads all the time and leaves the processor to others.
const LOOK: Duration = Duration::from_millis(5);

/// In small chunks, so that many an order is of an earlier chunk than what changes it.
fn rebuild(world: &World, swap: Swap) -> Rebuild {
    rebuild_by(world, 3, swap)
}

fn rebuild_by(world: &World, chunk: usize, swap: Swap) -> Rebuild {
    let options = RebuildOptions { chunk, swap, patience: Duration::from_secs(5), ..RebuildOptions::default() };
    block_on(replay::rebuild(world.connections(), &world.codec(), &options, Arc::new(|_| ())))
}

/// Schemas that a rebuild makes and has not removed.
pub(crate) fn litter(world: &World) -> Vec<String> {
    let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'doorbuster%' ORDER BY 1";
    let rows = on_database(world, async |client| client.query(sql, &[]).await);
    rows.iter().map(|row| row.get(0)).collect()
}

/// Which tables the names stand for.
fn tables(world: &World) -> (u32, u32) {
    let sql = "SELECT 'orders'::regclass::oid, 'vouchers'::regclass::oid";
    let row = on_database(world, async |client| client.query_one(sql, &[]).await);
    (row.get(0), row.get(1))
}

pub(crate) fn execute(world: &World, sql: &str) {
    on_database(world, async |client| client.batch_execute(sql).await);
}

/// Looks at the tables again and again over one connection, with statements prepared once, and sees them only grow.
struct Reader {
    leaving: Arc<AtomicBool>,
    thread: thread::JoinHandle<u64>,
}

impl Reader {
    fn start(world: &World) -> Self {
        let leaving = Arc::new(AtomicBool::new(false));
        let (seen, postgres) = (leaving.clone(), world.connections().clone());
        let look = async move || {
            let client = infra::postgres::connect(&postgres).await.unwrap();
            // A rebuild that is killed in its swap holds the tables until the server has noticed.
            client.batch_execute("SET lock_timeout = 0; SET statement_timeout = 0").await.unwrap();
            let orders = client.prepare("SELECT count(*), coalesce(sum(voucher_seq), 0)::bigint FROM orders").await.unwrap();
            let vouchers = client.prepare("SELECT coalesce(sum(seq), 0)::bigint FROM vouchers").await.unwrap();
            let (mut looks, mut before) = (0, (0, 0, 0));
            while !seen.load(Relaxed) {
                let row = client.query_one(&orders, &[]).await.unwrap();
                let seq = client.query_one(&vouchers, &[]).await.unwrap();
                let now: (i64, i64, i64) = (row.get(0), row.get(1), seq.get(0));
                assert!(now.0 >= before.0 && now.1 >= before.1 && now.2 >= before.2, "{now:?} after {before:?}");
                (looks, before) = (looks + 1, now);
                tokio::time::sleep(LOOK).await;
            }
            looks
        };
        let run = move || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(look());
        Self { leaving, thread: thread::spawn(run) }
    }

    fn leave(self) -> u64 {
        self.leaving.store(true, Relaxed);
        self.thread.join().expect("the reader saw nothing wrong")
    }
}

/// Killed where it is dropped, also by a test that fails.
struct Mortal(Child);

impl Drop for Mortal {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and need not be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Comes to one of the points of a rebuild with `--swap`, calls `look` while it stands there, and kills it. Tried again where it could not tell:
/// under a sale it may come too late, or meet somebody who still looks at the database as it was.
fn kill_at(world: &World, point: &str, look: impl FnOnce()) {
    let folder = world.crash_points();
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(point), "1 hang").unwrap();
    let start = || {
        let mut command = Command::new(binary());
        command.args(["rebuild", "orders", "--swap"]).envs(world.env_vars()).env("DOORBUSTER_CRASH_POINTS", &folder);
        Mortal(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let mut child = start();
    wait_until(PATIENCE, point, || {
        if let Some(status) = child.0.try_wait().unwrap() {
            assert_eq!(status.code(), Some(2), "it ended before {point}");
            child = start();
        }
        !folder.join(point).exists()
    });
    look();
    drop(child);
    fs::remove_dir(&folder).unwrap();
}

/// Has the tables swapped by the command, or else in small chunks, so that many an order is of an earlier chunk than what changes it. Tried
/// again while that is refused: until the server has noticed that a killed process is gone, its locks stay.
fn swap(world: &World, by_command: bool) {
    let before = tables(world);
    wait_until(PATIENCE, "a rebuild to go through", || {
        if by_command {
            let (code, text) = doorbuster(world, &["rebuild", "orders", "--swap"]);
            assert!(code != 1 && (code == 2 || text.contains("equal: the log and the live tables")), "{code}: {text}");
            return code == 0;
        }
        let rebuilt = rebuild_by(world, 200, Swap::WhenEqual);
        assert!(!matches!(rebuilt.verdict, Verdict::Different { .. }), "{rebuilt:#?}");
        rebuilt.swapped == Swapped::Done { kept: None }
    });
    assert_ne!(tables(world), before);
    assert_eq!(litter(world), [""; 0]);
}

/// A rebuild is killed when it has begun, half-way, with the tables exchanged and that not committed, and with it committed and nobody told;
/// and is then made again, while 200 purchases a second go on; in the end twice.
#[test]
fn under_a_sale_a_rebuild_may_die_anywhere_and_nobody_notices_the_swap() {
    let (shop, other) = (Shop::new(), World::new());
    let world = &shop.world;
    let voucher = shop.open(1_000_000);
    let (reader, crowd) = (Reader::start(world), Crowd::come(&shop, &voucher, "buyer", 200));
    let rows = |world: &World| on_database(world, async |client| client.query_one("SELECT count(*) FROM orders", &[]).await);
    wait_until(PATIENCE, "orders", || rows(world).get::<_, i64>(0) > 500);
    let begun: &[&str] = &["doorbuster_rebuild"];
    for (n, (point, left, is_swapped)) in [
        ("rebuild.begun", begun, false),
        ("rebuild.folded", begun, false),
        ("rebuild.swap", begun, false),
        ("rebuild.swapped", &[], true),
    ]
    .into_iter()
    .enumerate()
    {
        for name in names(n * 20 + 20).skip(n * 20) {
            let order_id = world.order_id(&voucher, &name, None);
            let body = RequestBody::CancellationRequested { order_id, by: CancelledBy::Buyer };
            world.append_request(1, &voucher_request(&voucher, body));
        }
        let before = tables(world);
        kill_at(world, point, || {
            assert_eq!(litter(world), left, "{point}");
            if point == "rebuild.folded" {
                // Somebody who rebuilds in another database of the same server is in nobody's way.
                let lock = format!("SELECT pg_advisory_lock({})", 0x646f_6f72_7265_6275_i64);
                let (code, text) = block_on(async {
                    let elsewhere = other.postgres().await;
                    elsewhere.batch_execute(&lock).await.unwrap();
                    doorbuster(world, &["rebuild", "orders"])
                });
                assert!(code == 2 && text.contains("a rebuild is going on"), "{code}: {text}");
            }
        });
        assert_eq!(tables(world) != before, is_swapped, "{point}");
        swap(world, n % 2 == 0);
    }
    swap(world, true);
    let bought = crowd.leave();
    bought.assert_most();
    let late = buy(&shop.url(), &voucher, "late");
    assert!(late.is_accepted(), "{late:?}");
    world.wait_settled(&[&voucher]);
    println!("{bought}; {} looks", reader.leave());
    world.assert_audit();
    let found = "SELECT count(*) FROM orders WHERE order_id::text = ANY ($1)";
    let found = on_database(world, async |client| client.query_one(found, &[&bought.orders]).await);
    assert_eq!(found.get::<_, i64>(0), bought.orders.len() as i64, "rows of orders that were promised");
    let rebuilt = rebuild_by(world, 200, Swap::Never);
    assert_eq!((&rebuilt.verdict, &rebuilt.swapped), (&Verdict::Equal, &Swapped::NotAsked), "{rebuilt:#?}");
    assert_eq!(shop.restarts(), [0; 3]);
}

/// A log that the rules made, and tables that hold what it folds into, without any service.
pub(crate) struct Written {
    pub(crate) world: World,
    pub(crate) voucher: VoucherId,
    pub(crate) events: Vec<Event>,
    state: State,
}

impl Written {
    /// Five orders, one of them cancelled and one paid, in partition 1. `order`: which of the nine events get into the log.
    pub(crate) fn new(order: &[usize]) -> Self {
        let written = Self::log(order);
        let Self { world, events, state, .. } = &written;
        let (orders, vouchers): (Vec<_>, Vec<_>) =
            (state.orders.values().cloned().collect(), state.vouchers.values().cloned().collect());
        let (topic, next) = (world.connections().topics.requests.clone(), events.len() as i64);
        on_database(world, async |client| {
            infra::postgres::rows::copy_orders(client, "orders", &orders).await.unwrap();
            infra::postgres::rows::copy_vouchers(client, "vouchers", &vouchers).await.unwrap();
            client.execute("INSERT INTO lane_positions VALUES ($1, 1, $2, '')", &[&topic, &next]).await
        });
        written
    }

    /// Only the log: the tables are empty.
    pub(crate) fn log(order: &[usize]) -> Self {
        let world = World::new();
        let voucher = world.voucher_id();
        let id = |name: &str| world.order_id(&voucher, name, None);
        let mut bodies = vec![RequestBody::VoucherPublished(world.terms(10, 1, 1))];
        bodies.extend(names(5).map(|name| order_request(&voucher, id(&name), &name, 1).body));
        bodies.push(RequestBody::CancellationRequested { order_id: id("buyer-1"), by: CancelledBy::Buyer });
        let (payment_ref, amount, paid_at) = ("p1".to_owned(), Money::new(1_000, "EUR"), Timestamp(1));
        bodies.push(RequestBody::PaymentReceived { order_id: id("buyer-2"), payment_ref, amount, paid_at });
        bodies.push(RequestBody::VoucherPaused { expected_terms_version: 1 });
        let mut written = Self { world, voucher, events: Vec::new(), state: State::default() };
        bodies.into_iter().for_each(|body| written.decide(body));
        written.append(order);
        written
    }

    /// Appends these of the events.
    pub(crate) fn append(&self, order: &[usize]) {
        order.iter().for_each(|n| {
            self.world.append_event(1, &self.events[*n]);
        });
    }

    /// Appends the request and decides it; the event is kept back.
    fn decide(&mut self, body: RequestBody) {
        let request = voucher_request(&self.voucher, body);
        let offset = self.world.append_request(1, &request);
        assert_eq!(offset, self.events.len() as i64);
        let records = self.world.records(&self.world.connections().topics.requests, 1);
        let appended_at = records.last().unwrap().timestamp;
        let event = domain::decide(&self.state, &LoggedRequest { partition: 1, offset, appended_at, request: Some(request) });
        self.state.evolve(&event);
        self.events.push(event);
    }
}

pub(crate) const WHOLE: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

#[test]
fn every_difference_is_found_and_named_and_swapped_only_when_accepted() {
    let written = Written::new(&WHOLE);
    let world = &written.world;
    let rebuilt = rebuild(world, Swap::Never);
    assert_eq!((&rebuilt.verdict, rebuilt.order_rows, rebuilt.vouchers), (&Verdict::Equal, 5, 1), "{rebuilt:#?}");

    let some: OrderId = world.order_id(&written.voucher, "buyer-2", None);
    let more: [Plant<'_>; 2] = [
        ("UPDATE orders SET payment_ref = NULL WHERE order_id = $1", "payment_ref", &[(Kind::OrderRowChanged, 1)]),
        (
            "UPDATE lane_positions SET next_offset = next_offset - 1 WHERE $1::uuid IS NOT NULL",
            "position is 8",
            &[(Kind::PostgresBehind, 1)],
        ),
    ];
    execute(world, KEEP);
    for (planted, named, expected) in WRONG_ROWS.into_iter().chain(more) {
        on_database(world, async |client| client.execute(planted, &[&some.as_uuid()]).await);
        let before = tables(world);
        let rebuilt = rebuild(world, Swap::WhenEqual);
        assert_eq!(kinds(&rebuilt.verdict), expected, "{planted}: {rebuilt:#?}");
        assert!(format!("{rebuilt:?}").contains(named), "{planted}: {rebuilt:#?}");
        assert!(matches!(rebuilt.swapped, Swapped::Refused { .. }) && tables(world) == before, "{planted}: {rebuilt:#?}");
        execute(world, RESTORE);
        assert_eq!(rebuild(world, Swap::Never).verdict, Verdict::Equal, "{planted}");
    }

    execute(world, "DELETE FROM orders; UPDATE vouchers SET title = 'x'");
    let (code, text) = doorbuster(world, &["rebuild", "orders", "--swap"]);
    assert!(code == 1 && text.contains("5 order_row_missing") && text.contains("not swapped"), "{code}: {text}");
    let (code, text) = doorbuster(world, &["rebuild", "orders", "--swap", "--accept-differences", "--json"]);
    assert!(code == 1 && text.contains("\"verdict\": \"different\"") && text.contains("\"swap\": \"done\""), "{code}: {text}");
    assert_eq!(litter(world), ["doorbuster_replaced"], "the old tables are kept");
    let (code, text) = doorbuster(world, &["rebuild", "orders"]);
    assert!(code == 0 && text.contains("equal: the log and the live tables"), "{code}: {text}");
}

#[test]
fn a_log_with_a_missing_doubled_or_reordered_event_is_found() {
    use Kind::{EventRepeated, OrderRowExtra, RequestUnanswered, VoucherRow, VoucherSeqGap};
    let broken: [(&str, &[usize], &[Kind]); 4] = [
        ("an event is missing", &[0, 1, 3, 4, 5, 6, 7, 8], &[RequestUnanswered, VoucherSeqGap, OrderRowExtra]),
        ("an event is there twice", &[0, 1, 2, 2, 3, 4, 5, 6, 7, 8], &[EventRepeated, VoucherSeqGap]),
        (
            "two events changed places",
            &[0, 1, 3, 2, 4, 5, 6, 7, 8],
            &[RequestUnanswered, EventRepeated, VoucherSeqGap, OrderRowExtra],
        ),
        ("the opening is missing", &[1, 2, 3, 4, 5, 6, 7, 8], &[RequestUnanswered, VoucherSeqGap, VoucherRow, OrderRowExtra]),
    ];
    for (what, order, expected) in broken {
        let written = Written::new(order);
        let rebuilt = rebuild(&written.world, Swap::WhenEqual);
        let found: Vec<Kind> = kinds(&rebuilt.verdict).into_iter().map(|(kind, _)| kind).collect();
        assert!(expected.iter().all(|kind| found.contains(kind)), "{what}: {rebuilt:#?}");
        assert!(matches!(rebuilt.swapped, Swapped::Refused { .. }), "{what}: {rebuilt:#?}");
        let (code, text) = doorbuster(&written.world, &["verify", "decisions"]);
        assert_eq!(code, 1, "{what}: {text}");
    }
    // The last one may still be on its way.
    let written = Written::new(&WHOLE[..8]);
    let rebuilt = rebuild(&written.world, Swap::WhenEqual);
    let Verdict::CannotTell { reasons } = &rebuilt.verdict else { panic!("{rebuilt:#?}") };
    assert!(reasons[0].contains("request 8 is decided in Postgres"), "{reasons:?}");
    let (code, text) = doorbuster(&written.world, &["verify", "decisions"]);
    assert!(code == 0 && text.contains("1 not answered yet"), "{code}: {text}");
}

#[test]
fn deleted_history_is_named_and_nothing_is_touched() {
    let written = Written::new(&WHOLE);
    let (world, before) = (&written.world, tables(&written.world));
    delete_events(world, 1, 2);
    for command in [&["rebuild", "orders", "--swap", "--accept-differences"][..], &["verify", "decisions"]] {
        let (code, text) = doorbuster(world, command);
        assert!(code == 2 && text.contains("offsets 0..2 were deleted") && text.contains("partition 1"), "{code}: {text}");
        assert_eq!((tables(world), litter(world)), (before, Vec::new()));
    }
    let (code, text) = doorbuster(world, &["tail", "events", "--partition", "1", "--offset", "0"]);
    assert!(code == 2 && text.contains("holds offsets 2..9"), "{code}: {text}");
}

/// Sessions of commands that wait for a lock.
pub(crate) fn waiting(world: &World) -> i64 {
    let sql = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
         WHERE NOT l.granted AND a.application_name = 'doorbuster' AND a.datname = current_database()";
    on_database(world, async |client| client.query_one(sql, &[]).await).get(0)
}

/// Starts a command that waits for locks as long as it takes.
pub(crate) fn start_patiently(world: &World, args: &[&str]) -> Child {
    let patient = format!("{}?options=-c%20lock_timeout%3D0", world.connections().postgres);
    let mut command = Command::new(binary());
    command.args(args).envs(world.env_vars()).env("DOORBUSTER_POSTGRES", &patient);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_swap_takes_along_what_lanes_wrote_after_the_cut() {
    let (written, code, text) = swap_beside_a_lane(&[9, 10]);
    assert_eq!(code, 0, "{text}");
    let rebuilt = rebuild(&written.world, Swap::Never);
    assert_eq!((&rebuilt.verdict, rebuilt.order_rows), (&Verdict::Equal, 6), "{rebuilt:#?}");
}

/// However often it is tried: what was found once is not forgotten.
#[test]
fn a_log_that_goes_wrong_between_the_cut_and_the_swap_is_not_swapped_in() {
    let (written, code, text) = swap_beside_a_lane(&[9, 9, 10]);
    assert!(
        code == 2 && text.contains("went wrong after the comparison") && text.contains("again, or too late"),
        "{code}: {text}"
    );
    assert_eq!(litter(&written.world), [""; 0]);
}

/// Has the tables swapped while a lane commits two decisions between the cut and the moment in which the lanes stand still. `published`: what
/// then comes into the log. Gives also how the command ended and what it said.
fn swap_beside_a_lane(published: &[usize]) -> (Written, i32, String) {
    let mut written = Written::new(&WHOLE);
    let [first, again] = [None, Some("again")].map(|key| written.world.order_id(&written.voucher, "buyer-0", key));
    written.decide(RequestBody::CancellationRequested { order_id: first, by: CancelledBy::Buyer });
    written.decide(order_request(&written.voucher, again, "buyer-0", 1).body);
    let (world, changed) = (&written.world, [first, again].map(|id| written.state.orders[&id].clone()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lane = runtime.block_on(async {
        let lane = world.postgres().await;
        let decided = "BEGIN; UPDATE lane_positions SET next_offset = next_offset + 2; UPDATE vouchers SET seq = seq + 2";
        lane.batch_execute(decided).await.unwrap();
        lane.execute("DELETE FROM orders WHERE order_id = $1", &[&first.as_uuid()]).await.unwrap();
        infra::postgres::rows::copy_orders(&lane, "orders", &changed).await.unwrap();
        lane
    });
    let mut command = Command::new(binary());
    command.args(["rebuild", "orders", "--swap"]).envs(world.env_vars()).stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_until(PATIENCE, "the swap to wait for the lane", || waiting(world) > 0);
    written.append(published);
    runtime.block_on(lane.batch_execute("COMMIT")).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(lane);
    runtime.shutdown_background();
    let text = String::from_utf8(output.stdout).unwrap();
    (written, output.status.code().unwrap(), text)
}

/// No wait would bring what an event leaves out that belongs behind the cut.
#[test]
fn what_is_missing_before_an_event_beyond_the_cut_is_found() {
    let written = Written::new(&[0, 1, 2, 3, 4, 5, 8]);
    let world = &written.world;
    execute(world, "UPDATE lane_positions SET next_offset = 8");
    let is_missed = |verdict: &Verdict| kinds(verdict).iter().any(|(kind, _)| *kind == Kind::RequestUnanswered);
    let rebuilt = rebuild(world, Swap::WhenEqual);
    assert!(is_missed(&rebuilt.verdict), "{rebuilt:#?}");
    for deep in [false, true] {
        let audit = world.audit_with(AuditOptions { patience: Duration::from_secs(5), deep });
        assert!(is_missed(&audit.verdict), "deep: {deep}: {audit:#?}");
    }
}

#[test]
fn a_swap_keeps_rights_and_refuses_where_somebody_would_lose_something() {
    let written = Written::new(&WHOLE);
    let world = &written.world;
    execute(world, "GRANT SELECT ON orders TO PUBLIC; ALTER TABLE orders SET (fillfactor = 90)");
    assert_eq!(rebuild(world, Swap::WhenEqual).swapped, Swapped::Done { kept: None });
    let kept = "SELECT relacl::text LIKE '%=r/%' AND reloptions::text LIKE '%fillfactor=90%' FROM pg_class WHERE oid = 'orders'::regclass";
    assert!(on_database(world, async |client| client.query_one(kept, &[]).await).get::<_, bool>(0));
    let same = "SELECT string_agg(indexdef, ';' ORDER BY indexname) FROM pg_indexes WHERE schemaname = 'public' AND tablename IN ('orders', 'vouchers')";
    let indexes = |world: &World| on_database(world, async |client| client.query_one(same, &[]).await).get::<_, String>(0);
    assert_eq!(indexes(world), indexes(&World::new()));

    for (make, named, undo) in [
        ("CREATE VIEW sold AS SELECT count(*) FROM orders", "view sold", "DROP VIEW sold"),
        ("CREATE INDEX mine ON orders (user_id)", "index mine", "DROP INDEX mine"),
        ("GRANT SELECT (title) ON vouchers TO PUBLIC", "column title", "REVOKE SELECT (title) ON vouchers FROM PUBLIC"),
    ] {
        execute(world, make);
        let before = tables(world);
        let rebuilt = rebuild(world, Swap::WhenEqual);
        assert_eq!((&rebuilt.verdict, tables(world)), (&Verdict::Equal, before), "{make}: {rebuilt:#?}");
        assert!(matches!(&rebuilt.swapped, Swapped::Refused { reason } if reason.contains(named)), "{make}: {rebuilt:#?}");
        execute(world, undo);
    }

    // A snapshot that is older than the new rows would see none of them.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let old = runtime.block_on(world.postgres());
    runtime.block_on(old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")).unwrap();
    let (code, text) = doorbuster(world, &["rebuild", "orders", "--swap"]);
    assert!(code == 2 && text.contains("equal") && text.contains("older snapshot"), "{code}: {text}");
    let rows: i64 = runtime.block_on(old.query_one("SELECT count(*) FROM orders", &[])).unwrap().get(0);
    assert_eq!(rows, 5);
    drop(old);
    runtime.shutdown_background();
    wait_until(PATIENCE, "a swap", || rebuild(world, Swap::WhenEqual).swapped == Swapped::Done { kept: None });
}

#[test]
fn another_database_can_be_built_and_the_log_be_read() {
    let written = Written::new(&WHOLE);
    let (world, topics) = (&written.world, &written.world.connections().topics);
    let copy = format!("doorbuster_{}_copy", world.connections().prefix);
    execute(world, &format!("CREATE DATABASE {copy}"));
    let address = with_database(&world.connections().postgres, &copy);
    let (code, text) = doorbuster(world, &["rebuild", "orders", "--into", &address, "--json"]);
    assert!(code == 0 && text.contains("\"verdict\": \"equal\""), "{code}: {text}");
    let rows = block_on(async {
        let client =
            infra::postgres::connect(&infra::config::Connections { postgres: address, ..world.connections().clone() }).await;
        client.unwrap().query_one("SELECT count(*) FROM doorbuster_rebuild.orders", &[]).await
    });
    assert_eq!((rows.unwrap().get::<_, i64>(0), litter(world)), (5, Vec::new()));
    execute(world, &format!("DROP DATABASE {copy} WITH (FORCE)"));

    let (code, text) = doorbuster(world, &["verify", "decisions"]);
    assert!(code == 0 && text.contains("9 requests, 9 events"), "{code}: {text}");
    let lines = |args: &[&str]| -> Vec<serde_json::Value> {
        let (code, text) = doorbuster(world, args);
        assert_eq!(code, 0, "{text}");
        let records = text.lines().filter(|line| !line.starts_with("partition "));
        records.map(|line| serde_json::from_str(line).expect("a JSON document")).collect()
    };
    world.append(&topics.events, 0, b"x", b"?");
    let told = lines(&["tail", "events", "--voucher", written.voucher.as_str()]);
    let events: Vec<Event> = told.iter().map(|line| serde_json::from_value(line["event"].clone()).unwrap()).collect();
    assert_eq!(events, written.events);
    world.append(&topics.requests, 0, b"x", b"?");
    let requests = lines(&["tail", "requests", "--limit", "3"]);
    assert!(
        requests[0]["unreadable"].is_string() && requests[2]["request"]["voucher_id"] == written.voucher.as_str(),
        "{requests:?}"
    );
    assert_eq!(lines(&["tail", "events", "--partition", "1", "--offset", "7"]).len(), 2);
    assert_eq!(lines(&["tail", "events", "--since", "-1h"]).len(), 10);
    assert_eq!(lines(&["tail", "events", "--since", "+1h"]).len(), 0);
    let (code, text) = doorbuster(world, &["tail", "events", "--partition", "7"]);
    assert!(code == 2 && text.contains("has 2 partitions, and none of number 7"), "{code}: {text}");
    follow(world);
}

/// The first line shows that it has come to the end; the second one is of an event that was not there then.
fn follow(world: &World) {
    let (last, offset) = world.events(1).pop().unwrap();
    let mut command = Command::new(binary());
    command.args(["tail", "events", "--partition", "1", "--follow", "--limit", "2", "--offset", &offset.to_string()]);
    let mut child = command.envs(world.env_vars()).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        line["offset"].as_i64()
    });
    assert_eq!(shown.next(), Some(Some(offset)));
    let appended = world.append_event(1, &last);
    assert_eq!(shown.next(), Some(Some(appended)));
    assert!(child.wait().unwrap().success() && shown.next().is_none());
}
