//! `audit --watch` shows a difference for as long as it is there; the plain audit reads on and sees numbers, the deep one everything.

use std::time::Duration;

use replay::{AuditOptions, Auditor, Kind, Verdict};
use testkit::{Service, block_on, buyers, doorbuster, order_request, plan, sale, wait_until};

use crate::{
    Shop,
    audit_finds::{KEEP, RESTORE, kinds, on_database, redis},
    names,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// The difference that it makes, how, how it is undone, and the units of drift.
type Plant<'a> = (&'static str, &'a dyn Fn(), &'a dyn Fn(), f64);

/// A metric of the watch by its name and labels; `None`: it is not there.
fn metric(watch: &Service, name: &str) -> Option<f64> {
    let (_, text) = devstack::http_get(watch.admin_port()?, "/metrics").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("doorbuster_audit_{name} ")))?;
    line.parse().ok()
}

#[test]
fn a_watch_shows_a_difference_for_as_long_as_it_is_there() {
    let shop = Shop::new();
    let world = &shop.world;
    let mut auditor = Auditor::new(world.connections(), &world.codec(), AuditOptions { patience: PATIENCE, deep: false });
    let mut audit = || block_on(auditor.audit());
    let mut events = 0;
    let vouchers = [shop.open(5), shop.open(7)];
    // While the sales go on, and when all is settled: each audit reads on where the last one ended.
    for (voucher, sold) in vouchers.iter().zip([5_u64, 12]) {
        let going_on = sale(plan(shop.url(), voucher, Duration::from_secs(2)), buyers(names(10)));
        while !going_on.is_finished() {
            let audit = audit();
            assert!(!matches!(audit.verdict, Verdict::Different { .. }), "{audit:#?}");
        }
        going_on.join().unwrap();
        world.wait_settled(&[voucher]);
        let audit = audit();
        assert_eq!((&audit.verdict, audit.drift_units), (&Verdict::Equal, 0), "{audit:#?}");
        assert_eq!((audit.order_rows, audit.vouchers.iter().map(|v| v.sold).sum::<i64>()), (sold, sold.cast_signed()));
        assert!(audit.events > events && audit.events == audit.requests, "{audit:#?}");
        events = audit.events;
    }
    // Nobody is there to repair what is planted now.
    [&shop.purchase, &shop.orders, &shop.compensation].into_iter().for_each(Service::end);
    let sql = |sql: &str| on_database(world, async |client| client.batch_execute(sql).await);
    sql(KEEP);
    sql("UPDATE lane_positions SET next_offset = next_offset - 1 WHERE partition = 1");
    let behind = audit();
    assert!(kinds(&behind.verdict).contains(&(Kind::PostgresBehind, 1)), "{behind:#?}");
    sql(RESTORE);
    assert_eq!(audit().verdict, Verdict::Equal);

    // Decided in Postgres, and not published: no difference, and no verdict.
    let late = world.order_id(&vouchers[0], "late", None);
    world.append_request(1, &order_request(&vouchers[0], late, "late", 1));
    sql("UPDATE lane_positions SET next_offset = next_offset + 1 WHERE partition = 1; DELETE FROM orders");
    for deep in [false, true] {
        let audit = world.audit_with(AuditOptions { patience: Duration::from_millis(200), deep });
        assert!(matches!(audit.verdict, Verdict::CannotTell { .. }), "{audit:#?}");
    }
    sql(RESTORE);

    let watch = world.launch_service_with("audit", "watch", &[], |program| {
        let args = ["audit", "--watch", "--every", "100ms", "--patience", "500ms", "--listen", "127.0.0.1:0"];
        program.args = args.map(str::to_owned).to_vec();
    });
    watch.wait_ready();
    let shows = |verdict: f64, kind: &str, count: Option<f64>, drift: f64| {
        wait_until(PATIENCE, &format!("verdict {verdict}, {kind} {count:?}, drift {drift}"), || {
            metric(&watch, "last_verdict") == Some(verdict)
                && metric(&watch, &format!("differences{{kind=\"{kind}\"}}")) == count
                && metric(&watch, "drift_units") == Some(drift)
        });
    };
    let hash = format!("{{v:{}}}:voucher", vouchers[0]);
    // Not by RESTORE: it and an audit would wait for each other's locks.
    let quantity =
        |n: i64| sql(&format!("UPDATE orders SET quantity = {n} WHERE order_id = (SELECT min(order_id::text) FROM o)::uuid"));
    let title = |title: &str| sql(&format!("UPDATE vouchers SET title = {title} WHERE voucher_id = '{}'", vouchers[0]));
    let stock = |by: i64| redis(world, &format!("HINCRBY {hash} stock {by}"));
    let plants: [Plant<'_>; 3] = [
        ("order_rows", &|| quantity(3), &|| quantity(1), 2.0),
        ("voucher_row", &|| title("'x'"), &|| title("(SELECT min(title) FROM v)"), 0.0),
        ("redis_voucher", &|| stock(1), &|| stock(-1), 1.0),
    ];
    for (kind, plant, undo, drift) in plants {
        shows(0.0, kind, None, 0.0);
        let equal = metric(&watch, "last_equal_timestamp_seconds").unwrap();
        plant();
        shows(1.0, kind, Some(1.0), drift);
        let (round, still_equal) =
            (metric(&watch, "last_round_timestamp_seconds"), metric(&watch, "last_equal_timestamp_seconds"));
        assert!(round > still_equal && still_equal >= Some(equal), "{round:?} {still_equal:?}");
        let (code, text) = doorbuster(world, &["audit"]);
        assert!(code == 1 && text.contains(kind), "{code}: {text}");
        undo();
    }
    shows(0.0, "redis_voucher", None, 0.0);
    watch.end();
    let log = std::fs::read_to_string(watch.process.log()).unwrap();
    assert!(log.contains("Z different: 2 vouchers") && log.contains("  redis_voucher: voucher"), "{log}");

    // What only the deep audit sees.
    redis(world, &format!("HSET {{v:{}}}:held ghost 1", vouchers[0]));
    assert_eq!(doorbuster(world, &["audit"]).0, 0);
    let (code, text) = doorbuster(world, &["audit", "--deep"]);
    assert!(code == 1 && text.contains("ghost"), "{code}: {text}");
    assert_eq!(doorbuster(world, &["audit", "--every", "1s"]).0, 64, "only a watch has rounds");
    assert_eq!(doorbuster(world, &["audit", "--watch", "--every", "0s"]).0, 64);
}
