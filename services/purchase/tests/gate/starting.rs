//! The start: what is wrong ends it with one clear line, what is only away is waited for.

use devstack::redis::RedisOptions;
use events::Topics;
use infra::{
    config::{Connections, Env},
    kafka,
    redis::Store,
    shutdown::CancellationToken,
};
use testkit::World;

use crate::shop::{PATIENCE, Shop, put_on_sale, redis_that_keeps_everything};

/// Starts with these variables changed and gives the line with which it ends.
async fn refusal(world: &World, vars: &[(&str, &str)]) -> String {
    let mut all = world.env_vars();
    all.extend(vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let env = Env::of(all);
    let run = tokio::time::timeout(PATIENCE, purchase::run(&env, CancellationToken::new()));
    let error = run.await.unwrap_or_else(|_| panic!("{vars:?} was not refused")).expect_err("the start is refused");
    let line = format!("{error:#}");
    assert!(!line.contains('\n'), "{line}");
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_one_line_that_names_it_and_the_remedy() {
    let world = World::new();
    let line = refusal(&world, &[("DOORBUSTER_PURCHASE_ACK_MS", "soon")]).await;
    assert!(line.contains("DOORBUSTER_PURCHASE_ACK_MS") && line.contains("soon"), "{line}");

    let line = refusal(&world, &[("DOORBUSTER_TOPIC_PREFIX", "nobody-made-")]).await;
    assert!(line.contains("nobody-made-order-requests") && line.contains("doorbuster topics apply"), "{line}");

    let (server, _) = world.connections().postgres.rsplit_once('/').unwrap();
    let line = refusal(&world, &[("DOORBUSTER_POSTGRES", &format!("{server}/postgres"))]).await;
    assert!(line.contains("doorbuster migrate"), "{line}");

    let args = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"].map(str::to_owned).to_vec();
    let evicting = RedisOptions { args, ..RedisOptions::default() };
    let evicting = devstack::redis::start(evicting).unwrap();
    let line = refusal(&world, &[("DOORBUSTER_REDIS", evicting.endpoint())]).await;
    assert!(line.contains("maxmemory-policy") && line.contains("allkeys-lru"), "{line}");

    let line = refusal(&world, &[("DOORBUSTER_PURCHASE_LISTEN", "192.0.2.1:1")]).await;
    assert!(line.contains("DOORBUSTER_PURCHASE_LISTEN"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_without_their_schemas_are_refused() {
    let world = World::new();
    let prefix = format!("{}-bare-", world.connections().prefix);
    let bare = Connections { topics: Topics::new(&prefix), ..world.connections().clone() };
    kafka::apply_topics(&bare, &kafka::plan_topics(&bare, Some(1)).unwrap()).unwrap();
    let line = refusal(&world, &[("DOORBUSTER_TOPIC_PREFIX", &prefix)]).await;
    assert!(line.contains(&format!("{prefix}order-requests-value")) && line.contains("doorbuster topics apply"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_waited_for_but_not_for_ever() {
    let redis = redis_that_keeps_everything();
    let world = World::builder().redis(redis.endpoint()).build();
    let voucher = world.voucher_id();
    let store = Store::connect(redis.endpoint()).await.unwrap();
    put_on_sale(&store, &voucher, &world.terms(10, 1, 1)).await;
    redis.kill();
    let line = refusal(&world, &[("DOORBUSTER_PURCHASE_START_MS", "100")]).await;
    assert!(line.starts_with("gave up waiting"), "{line}");
    for (name, value) in [("DOORBUSTER_REDIS", "redis://127.0.0.1:1"), ("DOORBUSTER_KAFKA", "127.0.0.1:1")] {
        let line = refusal(&world, &[("DOORBUSTER_PURCHASE_START_MS", "0"), (name, value)]).await;
        assert!(line.starts_with("gave up waiting"), "{line}");
    }

    let restarted = tokio::task::spawn_blocking(move || redis.restart().map(|()| redis));
    let shop = Shop::open(&world, &[]).await;
    let _redis = restarted.await.unwrap().unwrap();
    shop.buy(&voucher, "u", None, 1).await.order_id();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_the_sale_goes_on() {
    let world = World::new();
    let store = Store::connect(&world.connections().redis).await.unwrap();
    let voucher = world.voucher_id();
    put_on_sale(&store, &voucher, &world.terms(1, 1, 1)).await;
    let shop = Shop::open(&world, &[("DOORBUSTER_POSTGRES", "postgresql://postgres@127.0.0.1:1/none")]).await;
    let order = shop.buy(&voucher, "u", None, 1).await.order_id();
    assert_eq!(shop.order(&voucher, &order, "u").await.body["status"], "pending");
    shop.buy(&voucher, "w", None, 1).await.assert_problem(409, "sold_out");
    shop.buy(&voucher, "u", Some("another"), 1).await.assert_problem(503, "orders_away");
    shop.buy(&world.voucher_id(), "u", None, 1).await.assert_problem(503, "orders_away");
    testkit::wait_until_async(PATIENCE, "readiness", async || shop.admin("readyz").await.0 == 200).await;
}
