//! The hot statements must not grow with the table. Checked on a table of a million rows, with plans that do not look at the parameters.

use std::time::Duration;

use domain::{OrderId, UserId};
use infra::postgres::lane::{HELD, Wanted, orders_sql, payments_sql};
use testkit::{World, wait_until_async};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::session;

/// Enough that a scan of the table costs more than any number of look-ups.
const ROWS: i64 = 1_000_000;

async fn plan(client: &Client, types: &str, sql: &str, values: &str) -> String {
    client.batch_execute(&format!("PREPARE checked ({types}) AS {sql}")).await.unwrap();
    let rows = client.simple_query(&format!("EXPLAIN EXECUTE checked ({values})")).await.unwrap();
    client.batch_execute("DEALLOCATE checked").await.unwrap();
    let lines: Vec<_> = rows
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    lines.join("\n")
}

#[tokio::test]
async fn facts_are_read_by_probes_of_indexes() {
    let world = World::new();
    let client = world.postgres().await;
    let fill = format!(
        "INSERT INTO orders SELECT gen_random_uuid(), 'v-' || n % 3, 0, 'user-' || n, 1, 'paid', NULL, now(), now(), now(), \
           NULL, 'ref-' || n, n, n, n FROM generate_series(1, {ROWS}) n; ANALYZE orders; SET plan_cache_mode = force_generic_plan"
    );
    client.batch_execute(&fill).await.unwrap();
    let texts = "ARRAY['v-1', 'v-2'], ARRAY['user-1', 'user-2']";
    for (index, types, sql, values) in [
        ("orders_live", "text[], text[]", HELD.to_owned(), texts),
        ("orders_payment_ref", "text[], text[]", payments_sql(), texts),
        ("orders_pkey", "uuid[]", orders_sql(), "ARRAY[gen_random_uuid()]"),
    ] {
        let plan = plan(&client, types, &sql, values).await;
        assert!(plan.contains(index) && !plan.contains("Seq Scan on orders"), "{plan}");
    }
}

/// The server plans a statement anew for its first five executions, then keeps the plan that suited the table at that time.
#[tokio::test]
async fn a_lane_that_began_on_empty_tables_reads_none_of_them_whole_when_they_have_grown() {
    let world = World::new();
    let (client, voucher) = (world.postgres().await, world.voucher_id());
    let mut lane = session(&world, 0).await;
    let users = (0..100).map(|n| UserId::parse(&format!("user-{n}")).unwrap());
    let orders: Vec<OrderId> = (0..100).map(|n| world.order_id(&voucher, &format!("user-{n}"), None)).collect();
    let wanted = Wanted {
        vouchers: [voucher.clone()].into(),
        orders: orders.iter().copied().collect(),
        buyers: users.map(|user| (voucher.clone(), user)).collect(),
        payments: [(voucher.clone(), "reference".to_owned())].into(),
    };
    let mut read_ten_times = async || {
        for _ in 0..10 {
            let transaction = lane.begin().await.unwrap();
            transaction.lock_and_read(&wanted).await.unwrap();
            transaction.rollback().await.unwrap();
        }
    };
    read_ten_times().await;
    let fill = "INSERT INTO orders SELECT gen_random_uuid(), $1, 0, 'buyer-' || n, 1, 'paid', NULL, now(), now(), now(), NULL, \
                NULL, n, n, n FROM generate_series(1, 20000::bigint) n";
    client.execute(fill, &[&voucher.as_str()]).await.unwrap();
    read_ten_times().await;
    // What it did is counted at the latest when it ends.
    lane.close().await;
    let read = async || {
        let sql = "SELECT coalesce(seq_tup_read, 0), coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = 'orders'";
        let row = client.query_one(sql, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    wait_until_async(Duration::from_secs(30), "the lane's statistics", async || read().await.1 >= 2_000).await;
    assert_eq!(read().await.0, 0, "rows were read that nobody looked for");
}
