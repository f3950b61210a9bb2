//! A decision that Postgres rolls back after Redis holds the units for it.

use std::time::Duration;

use domain::{CancelledBy, OrderId, RequestBody};
use testkit::{block_on, buy, get, voucher_request, wait_until};

use crate::Shop;

/// What one store holds is no proof of what the other did: nothing is given back while the decision is open, it is made once, and a
/// cancellation then returns the unit once.
#[test]
fn a_decision_that_was_rolled_back_gives_nothing_back_and_is_made_once() {
    let shop = Shop::new();
    let voucher = shop.open(3);
    let sql = |statements: &str| {
        block_on(async { shop.world.postgres().await.batch_execute(statements).await }).expect("the statements are right");
    };
    // Every transaction of a lane fails at its last write; the sequence counts the tries, since a rollback does not take it back.
    sql("CREATE SEQUENCE tries;
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM nextval('tries'); RAISE EXCEPTION 'rolled back' USING ERRCODE = '40001'; END $$;
         CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON orders DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION fail()");
    let answers = ["ann", "ben"].map(|user| buy(&shop.url(), &voucher, user));
    assert!(answers.iter().all(load::Answer::is_accepted), "{answers:?}");
    let tries = || -> i64 {
        let row = block_on(async { shop.world.postgres().await.query_one("SELECT last_value FROM tries", &[]).await });
        row.expect("the sequence is there").get(0)
    };
    wait_until(Duration::from_secs(60), "the decision to be rolled back a few times", || tries() >= 4);
    let found = shop.world.in_redis(&voucher).expect("it is there");
    assert_eq!((found.stock, found.reserved, found.sold), (1, 2, 0), "no unit moved without a decision");
    let order = |at: usize| OrderId::parse(answers[at].order_id.as_deref().unwrap_or_default()).expect("an order id");
    let status = |at: usize, user: &str| {
        let (_, body) = get(&format!("{}/v1/vouchers/{voucher}/orders/{}", shop.url(), order(at)), user);
        body["status"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(status(0, "ann"), "pending");
    let events = || shop.world.events(1).len();
    assert_eq!(events(), 1, "nothing is told that may yet be rolled back");

    sql("DROP TRIGGER fail ON orders");
    let body = RequestBody::CancellationRequested { order_id: order(0), by: CancelledBy::Buyer };
    shop.world.append_request(1, &voucher_request(&voucher, body));
    shop.world.wait_settled(&[&voucher]);
    assert_eq!([status(0, "ann"), status(1, "ben")], ["cancelled", "confirmed"]);
    assert_eq!(events(), 4, "the opening, two orders and a cancellation");
    let found = shop.world.in_redis(&voucher).expect("it is there");
    assert_eq!((found.stock, found.reserved, found.sold), (2, 0, 1));
    shop.world.assert_audit();
}
