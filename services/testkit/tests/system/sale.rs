//! The good path, and what a buyer sees on it.

use std::time::Duration;

use replay::Verdict;
use testkit::{buy, buyers, doorbuster, get, plan, sale, wait_until};

use crate::{Shop, names};

#[test]
fn a_sale_sells_every_unit_once_and_everybody_is_told_the_truth() {
    let shop = Shop::new();
    let voucher = shop.open(100);
    let plan = load::Plan { double_clicks: 0.2, retries: 5, ..plan(shop.url(), &voucher, Duration::from_secs(2)) };
    let report = sale(plan, buyers(names(300))).join().unwrap();
    shop.world.wait_settled(&[&voucher]);

    let audit = shop.world.assert_audit();
    let cut = &audit.vouchers[0];
    assert_eq!((cut.sold, cut.remaining, cut.redis_sold, cut.redis_stock), (100, 0, Some(100), Some(0)), "{:?}", report.answers);
    assert_eq!((audit.in_flight, audit.undecided, audit.dead_letters), (0, 0, 0));
    assert_eq!(report.accepted_buyers(), 100, "{:?}", report.answers);
    for visit in &report.visits {
        assert!(visit.orders.len() <= 1, "{visit:?}");
        let Some(order) = visit.orders.first() else {
            assert_eq!(visit.last.kind, "sold_out", "{visit:?}");
            continue;
        };
        let (status, body) = get(&format!("{}/v1/vouchers/{voucher}/orders/{order}", shop.url()), &visit.user);
        assert_eq!((status, body["status"].as_str()), (200, Some("confirmed")), "{visit:?}");
    }
    let state = shop.world.fold();
    assert_eq!(state.orders.len(), 100);
    assert_eq!(domain::conservation::breaches(&state), []);

    let (code, text) = doorbuster(&shop.world, &["audit"]);
    assert!(code == 0 && text.contains("equal"), "{code}: {text}");
    let (code, text) = doorbuster(&shop.world, &["lag"]);
    assert!(code == 0, "{code}: {text}");
}

#[test]
fn an_audit_in_the_middle_of_a_sale_blames_nothing_that_is_on_its_way() {
    let shop = Shop::new();
    let voucher = shop.open(300);
    let going_on = sale(plan(shop.url(), &voucher, Duration::from_secs(5)), buyers(names(600)));
    let mut audits = 0;
    let mut moving = false;
    while !going_on.is_finished() {
        let audit = shop.world.audit();
        assert!(!matches!(audit.verdict, Verdict::Different { .. }), "{audit:#?}");
        moving |= (1..300).contains(&audit.vouchers[0].sold);
        audits += 1;
    }
    assert!(audits > 1 && moving, "{audits} audits were made during the sale");
    going_on.join().unwrap();
    shop.world.wait_settled(&[&voucher]);
    assert_eq!(shop.world.assert_audit().vouchers[0].sold, 300);
}

#[test]
fn the_command_line_changes_terms_and_says_clearly_when_it_is_refused() {
    let shop = Shop::new();
    let id = "tv:2026";
    let publish = ["voucher", "publish", id, "--title", "TV", "--units", "3", "--price", "100", "--ends", "+1h"];
    let run = |args: &[&str]| doorbuster(&shop.world, args);
    let voucher = domain::VoucherId::parse(id).unwrap();

    let (code, text) = run(&publish);
    assert!(code == 0 && text.contains("nothing was changed"), "{code}: {text}");
    assert_eq!(run(&["voucher", "show", id]).0, 1);
    assert_eq!(run(&["voucher", "sell", id]).0, 64);
    assert_eq!(run(&["voucher", "pause", id, "--apply"]).0, 2, "Postgres has no such voucher");
    let (code, text) = run(&[&publish[..], &["--apply"]].concat());
    assert!(code == 0 && text.contains("opened") && text.contains("3 units"), "{code}: {text}");
    let (code, text) = run(&[&publish[..], &["--apply"]].concat());
    assert!(code == 1 && text.contains("already_published"), "{code}: {text}");

    let (code, text) = run(&["voucher", "stock", id, "--delta", "2", "--apply", "--json"]);
    assert!(code == 0 && text.contains("\"total\": 5"), "{code}: {text}");
    let (code, text) = run(&["voucher", "stock", id, "--delta", "2", "--expect", "1", "--apply"]);
    assert!(code == 1 && text.contains("stale_terms"), "{code}: {text}");
    assert_eq!(run(&["voucher", "pause", id, "--apply"]).0, 0);
    wait_until(Duration::from_secs(10), "the pause to reach the gate", || buy(&shop.url(), &voucher, "a").kind == "paused");
    assert_eq!(run(&["voucher", "resume", id, "--apply"]).0, 0);
    wait_until(Duration::from_secs(10), "the resumption to reach the gate", || buy(&shop.url(), &voucher, "a").is_accepted());
    assert_eq!(run(&["voucher", "close", id, "--apply"]).0, 0);
    let (code, text) = run(&["voucher", "resume", id, "--apply"]);
    assert!(code == 1 && text.contains("closed"), "{code}: {text}");
    shop.world.wait_settled(&[&voucher]);
    shop.world.assert_audit();
}

/// A buyer who asks for his order at once gets "pending", never "not found".
#[test]
fn an_order_is_pending_from_the_first_moment_on_while_the_orders_service_stands_still() {
    let shop = Shop::new();
    let voucher = shop.open(5);
    shop.orders.process.pause().unwrap();
    let answer = buy(&shop.url(), &voucher, "early");
    let order = answer.order_id.clone().unwrap_or_else(|| panic!("{answer:?}"));
    let url = format!("{}/v1/vouchers/{voucher}/orders/{order}", shop.url());
    for _ in 0..5 {
        let (status, body) = get(&url, "early");
        assert!(matches!(status, 200 | 202) && body["status"] == "pending", "{status} {body}");
    }
    assert_eq!(get(&url, "somebody else").0, 404, "another's order is not disclosed");
    shop.orders.process.resume().unwrap();
    wait_until(Duration::from_secs(60), "the order's fate", || {
        let (status, body) = get(&url, "early");
        assert_ne!(status, 404, "an accepted order is never unknown");
        body["status"] == "confirmed"
    });
    let never = shop.world.order_id(&voucher, "nobody", None);
    let never = format!("{}/v1/vouchers/{voucher}/orders/{never}", shop.url());
    wait_until(Duration::from_secs(10), "certainty about an order that was never issued", || get(&never, "nobody").0 == 404);
    shop.world.wait_settled(&[&voucher]);
    shop.world.assert_audit();
}
