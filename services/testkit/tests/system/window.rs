//! Instants and ids mean the same everywhere, whatever the machine's time zone and however large an id looks as a number.

use std::time::Duration;

use domain::{Timestamp, VoucherId};
use testkit::{WorldBuilder, buy, wait_until, wrong_clock};

use crate::Shop;

/// The sale is open for this long: the polls below must hit it.
const OPEN_MS: i64 = 6_000;

fn in_time_zone(zone: &'static str) {
    let world = |builder: WorldBuilder| {
        let world = builder.build();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let database = world.connections().postgres.rsplit('/').next().unwrap().to_owned();
        let set = format!("ALTER DATABASE {database} SET timezone = '{zone}'");
        runtime.block_on(async { world.postgres().await.batch_execute(&set).await }).unwrap();
        world
    };
    opens_and_ends_on_time(&Shop::on(world, &[("TZ", zone)]));
}

fn opens_and_ends_on_time(shop: &Shop) {
    let voucher = shop.world.voucher_id();
    let mut terms = shop.world.terms(5, 1, 0);
    let now = terms.begins_at.plus(60_000);
    (terms.begins_at, terms.ends_at) = (now.plus(3_000), now.plus(3_000 + OPEN_MS));
    let (begins_at, ends_at) = (terms.begins_at, terms.ends_at);
    shop.world.open(&voucher, terms);

    let kind = |user: &str| buy(&shop.url(), &voucher, user).kind;
    assert_eq!(kind("early"), "not_started");
    wait_until(Duration::from_secs(10), "the beginning of the sale", || kind("first") == "accepted");
    assert_eq!(kind("second"), "accepted");
    // Somebody else each time: who holds a unit is shown his order, also after the end.
    let mut late = 0..;
    wait_until(Duration::from_secs(20), "the end of the sale", || kind(&format!("late-{:?}", late.next())) == "ended");
    shop.world.wait_settled(&[&voucher]);
    shop.world.assert_audit();

    // One clock judged the window, to the millisecond: that of Redis.
    let within = |at: Timestamp| begins_at <= at && at < ends_at;
    let orders = shop.world.fold().orders;
    assert!(orders.len() >= 2 && orders.values().all(|order| within(order.requested_at)), "{orders:?}");
    assert!(orders.values().all(|order| order.status.is_live()), "what the gate let through in time is confirmed: {orders:?}");
}

/// The shop is far east of Greenwich.
#[test]
fn a_sale_opens_and_ends_on_time_far_from_greenwich() {
    in_time_zone("Asia/Shanghai");
}

/// A place where clocks are changed twice a year.
#[test]
fn a_sale_opens_and_ends_on_time_where_summer_time_exists() {
    in_time_zone("America/New_York");
}

/// By less than an hour: beyond, purchase refuses the buyers' tokens, rightly.
#[test]
fn a_sale_opens_and_ends_on_time_by_services_whose_clocks_are_wrong() {
    for minutes in [50, -50] {
        let Ok(wrong) = wrong_clock(minutes * 60).inspect_err(|why| println!("left out: {why}")) else { return };
        let wrong = wrong.each_ref().map(|(name, value)| (name.as_str(), value.as_str()));
        opens_and_ends_on_time(&Shop::on(WorldBuilder::build, &wrong));
    }
}

/// Ids are text, never numbers.
#[test]
fn ids_that_look_like_large_numbers_stay_apart_and_keep_every_digit() {
    let shop = Shop::new();
    let voucher = VoucherId::parse("1234567890123456789").unwrap();
    let users = [
        "9007199254740992",
        "9007199254740993",
        "9223372036854775807",
        "18446744073709551616",
        "007",
        "7",
        "7.0",
        "1e3",
        "b3b5a9de-7f0c-4a53-9d36-0b9d4a3f8c11",
        "Zoë \"quoted\" {v}",
    ];
    shop.world.open(&voucher, shop.world.terms(users.len() as i64, 1, 0));
    for user in users {
        assert!(buy(&shop.url(), &voucher, user).is_accepted(), "{user}");
    }
    shop.world.wait_settled(&[&voucher]);
    shop.world.assert_audit();
    let mut found: Vec<String> = shop.world.fold().orders.values().map(|o| o.user_id.to_string()).collect();
    let mut wanted = users.map(str::to_owned).to_vec();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}
