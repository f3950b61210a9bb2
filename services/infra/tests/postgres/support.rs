//! What the tests of the lane's transaction share.

use domain::{Event, EventBody, OrderId, State, Timestamp, UserId, VoucherId};
use infra::postgres::{
    self, DatabaseError,
    lane::{LaneSession, LaneTransaction, Wanted},
};
use testkit::World;

pub(crate) async fn session(world: &World, partition: i32) -> LaneSession {
    let connections = world.connections();
    LaneSession::connect(connections, &connections.topics.requests, partition).await.unwrap()
}

/// Facts about everything in the tables, with the position locked.
pub(crate) async fn read_all(world: &World, transaction: &LaneTransaction<'_>) -> (i64, State) {
    let client = world.postgres().await;
    let ids = |rows: Vec<tokio_postgres::Row>| rows.into_iter().map(|row| row.get::<_, String>(0));
    let vouchers = ids(client.query("SELECT voucher_id FROM vouchers", &[]).await.unwrap());
    let orders = ids(client.query("SELECT order_id::text FROM orders", &[]).await.unwrap());
    let refs = client.query("SELECT voucher_id, payment_ref FROM orders WHERE payment_ref IS NOT NULL", &[]).await.unwrap();
    let wanted = Wanted {
        vouchers: vouchers.map(|v| VoucherId::parse(&v).unwrap()).collect(),
        orders: orders.map(|o| OrderId::parse(&o).unwrap()).collect(),
        payments: refs.iter().map(|r| (VoucherId::parse(r.get(0)).unwrap(), r.get(1))).collect(),
        ..Wanted::default()
    };
    transaction.lock_and_read(&wanted).await.unwrap()
}

/// All that the tables hold, as a state.
pub(crate) async fn tables(world: &World) -> State {
    let mut session = session(world, 0).await;
    let transaction = session.begin().await.unwrap();
    read_all(world, &transaction).await.1
}

/// Folds `events` on what is in the tables, writes the outcome and commits.
pub(crate) async fn write(session: &mut LaneSession, events: &[Event], expected: i64, next: i64) -> Result<State, DatabaseError> {
    let transaction = session.begin().await?;
    let (_, mut state) = transaction.lock_and_read(&Wanted::by_events(events)).await?;
    events.iter().for_each(|event| state.evolve(event));
    transaction.write(&state, events, expected, next, &[]).await?;
    transaction.commit().await.unwrap();
    Ok(state)
}

/// An event of partition 0.
pub(crate) fn event(voucher: &VoucherId, seq: i64, remaining: i64, body: EventBody) -> Event {
    Event {
        voucher_id: Some(voucher.clone()),
        voucher_seq: seq,
        partition: 0,
        request_offset: seq - 1,
        request_id: Default::default(),
        decided_at: Timestamp(1_790_000_000_123 + seq),
        rules_version: 1,
        remaining,
        held: 0,
        body,
    }
}

pub(crate) fn opened(world: &World, voucher: &VoucherId, total: i64, limit: i64) -> Event {
    event(voucher, 1, total, EventBody::VoucherOpened(world.terms(total, limit, 0)))
}

pub(crate) fn confirmed(order_id: OrderId, user: &str, slot: i64) -> EventBody {
    let (user_id, requested_at) = (UserId::from_log(user.to_owned()), Timestamp(1_790_000_000_001));
    EventBody::OrderConfirmed { order_id, user_id, quantity: 1, requested_at, expires_at: None, slot }
}

pub(crate) fn cancelled(order_id: OrderId, user: &str) -> EventBody {
    let (user_id, by) = (UserId::from_log(user.to_owned()), domain::CancelledBy::Buyer);
    EventBody::OrderCancelled { order_id, user_id, quantity: 1, by, due_back: None }
}

/// Statements on the world's database.
pub(crate) async fn sql(world: &World, statements: &str) {
    world.postgres().await.batch_execute(statements).await.unwrap();
}

pub(crate) fn pool(world: &World) -> postgres::Pool {
    postgres::pool(world.connections(), 2).unwrap()
}
