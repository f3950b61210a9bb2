//! The hot statements must not grow with the table. Checked on a table of some size, with plans that do not look at the parameters.

use infra::postgres::lane::HELD;
use testkit::World;

/// Enough that a scan of the table costs more than any number of look-ups.
const ROWS: i64 = 200_000;

#[tokio::test]
async fn units_held_are_read_by_one_probe_of_the_index_a_buyer() {
    let world = World::new();
    let client = world.postgres().await;
    let fill = format!(
        "INSERT INTO orders SELECT gen_random_uuid(), 'v-' || n % 3, 0, 'user-' || n, 1, 'confirmed', NULL, now(), now(), now(), \
           NULL, NULL, n, n, n FROM generate_series(1, {ROWS}) n; ANALYZE orders; SET plan_cache_mode = force_generic_plan"
    );
    client.batch_execute(&fill).await.unwrap();
    client.batch_execute(&format!("PREPARE held (text[], text[]) AS {HELD}")).await.unwrap();
    let explain = "EXPLAIN EXECUTE held (ARRAY['v-1', 'v-2'], ARRAY['user-1', 'user-2'])";
    let rows = client.simple_query(explain).await.unwrap();
    let plan: Vec<_> = rows
        .iter()
        .filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    let plan = plan.join("\n");
    assert!(plan.contains("orders_live") && !plan.contains("Seq Scan on orders"), "{plan}");
}
