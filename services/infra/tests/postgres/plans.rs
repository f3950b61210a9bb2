//! The hot statements must not grow with the table. Checked on a table of some size, with plans that do not look at the parameters.

use infra::postgres::lane::{HELD, orders_sql, payments_sql};
use testkit::World;
use tokio_postgres::{Client, SimpleQueryMessage};

/// Enough that a scan of the table costs more than any number of look-ups.
const ROWS: i64 = 200_000;

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
