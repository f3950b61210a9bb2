//! Migrations: once, one at a time, and services that insist on their version.

use infra::{
    config::Connections,
    postgres::{DatabaseError, check_schema, migrate, pending_migrations, pool},
};
use testkit::World;

/// A database without tables beside the world's own; dropped with `WITH (FORCE)` by the returned statement.
async fn empty_database(world: &World) -> (Connections, String) {
    let mut connections = world.connections().clone();
    let name = format!("{}_empty", world.connections().prefix);
    world.postgres().await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    let (server, _) = connections.postgres.rsplit_once('/').unwrap();
    connections.postgres = format!("{server}/{name}");
    (connections, format!("DROP DATABASE {name} WITH (FORCE)"))
}

#[tokio::test]
async fn migrations_run_once_however_many_run_them() {
    let world = World::new();
    let (connections, drop_it) = empty_database(&world).await;
    let pending = pending_migrations(&connections).await.unwrap();
    assert!(!pending.is_empty());
    let refused = check_schema(&pool(&connections, 1).unwrap()).await;
    assert!(matches!(refused, Err(DatabaseError::SchemaVersion { found: 0, .. })), "{refused:?}");

    let (one, two) = tokio::join!(migrate(&connections), migrate(&connections));
    let mut ran = one.unwrap();
    ran.extend(two.unwrap());
    assert_eq!(ran, pending);
    check_schema(&pool(&connections, 1).unwrap()).await.unwrap();
    assert_eq!(pending_migrations(&connections).await.unwrap(), [] as [String; 0]);
    world.postgres().await.batch_execute(&drop_it).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_refused_too() {
    let world = World::new();
    let newer = "INSERT INTO refinery_schema_history VALUES (999, 'from_the_future', '', '')";
    world.postgres().await.batch_execute(newer).await.unwrap();
    let refused = check_schema(&pool(world.connections(), 1).unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("version 999") && refused.to_string().contains("doorbuster migrate"), "{refused}");
}
