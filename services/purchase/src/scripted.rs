//! Servers that answer as a test tells them, and remember what they were asked.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{
    Money, Order, OrderId, OrderKey, OrderStatus, Request, RequestBody, Terms, Timestamp, UserId, Voucher, VoucherId,
    VoucherState,
};
use infra::{
    postgres::DatabaseError,
    redis::{Gate, Reservation, Reserve, StoreError, VoucherInRedis},
};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use publish::Delivery;
use tokio_util::task::TaskTracker;

use crate::{
    metrics::Metrics,
    purchase::{Purchases, Try},
    servers::{Sending, Servers},
    unacknowledged::Unacknowledged,
};

pub(crate) const AT: Timestamp = Timestamp(1_700_000_000_000);
pub(crate) const PARTITION: i32 = 1;
pub(crate) const ACK_DEADLINE: Duration = Duration::from_millis(50);

/// What the servers hold and do; each default is a fault, so that a test says what it needs.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) reserve: VecDeque<Result<Reserve, StoreError>>,
    pub(crate) released: Option<bool>,
    /// What becomes of the requests sent, in turn; when it is used up, none is ever reported.
    pub(crate) deliveries: VecDeque<Delivery>,
    pub(crate) order: Option<Option<Order>>,
    /// The row that appears after the first look.
    pub(crate) order_later: Option<Order>,
    pub(crate) voucher: Option<Option<Voucher>>,
    pub(crate) reservation: Option<Option<Reservation>>,
    pub(crate) in_redis: Option<Option<VoucherInRedis>>,
    pub(crate) next_offset: Option<i64>,
    pub(crate) ends: Vec<i64>,
    pub(crate) calls: Vec<String>,
    pub(crate) sent: Vec<(i32, Request)>,
}

#[derive(Clone, Default)]
pub(crate) struct Scripted(pub(crate) Arc<Mutex<Script>>);

fn away() -> StoreError {
    StoreError::Unknown("scripted".to_owned())
}

fn no_rows() -> DatabaseError {
    DatabaseError::Timeout(Duration::ZERO)
}

impl Servers for Scripted {
    async fn reserve(&self, _: &VoucherId, _: &OrderId, _: &UserId, _: i64, token: &str) -> Result<Reserve, StoreError> {
        let mut script = self.0.lock();
        script.calls.push(format!("reserve {token}"));
        script.reserve.pop_front().unwrap_or_else(|| Err(away()))
    }

    async fn release(&self, _: &VoucherId, _: &OrderId, token: &str) -> Result<bool, StoreError> {
        let mut script = self.0.lock();
        script.calls.push(format!("release {token}"));
        script.released.ok_or_else(away)
    }

    async fn reservation(&self, _: &VoucherId, _: &OrderId) -> Result<Option<Reservation>, StoreError> {
        self.0.lock().reservation.clone().ok_or_else(away)
    }

    async fn voucher_in_redis(&self, _: &VoucherId) -> Result<Option<VoucherInRedis>, StoreError> {
        self.0.lock().in_redis.clone().ok_or_else(away)
    }

    fn send(&self, partition: i32, request: &Request) -> Sending {
        let mut script = self.0.lock();
        script.calls.push("send".to_owned());
        script.sent.push((partition, request.clone()));
        match script.deliveries.pop_front() {
            Some(delivery) => Box::pin(async { delivery }),
            None => Box::pin(std::future::pending()),
        }
    }

    async fn order_row(&self, _: &OrderId) -> Result<Option<Order>, DatabaseError> {
        let mut script = self.0.lock();
        script.calls.push("order".to_owned());
        let now = script.order.clone().ok_or_else(no_rows)?;
        if let Some(later) = script.order_later.take() {
            script.order = Some(Some(later));
        }
        Ok(now)
    }

    async fn voucher_row(&self, _: &VoucherId) -> Result<Option<Voucher>, DatabaseError> {
        let mut script = self.0.lock();
        script.calls.push("voucher".to_owned());
        script.voucher.clone().ok_or_else(no_rows)
    }

    async fn next_offset(&self, partition: i32) -> Result<i64, DatabaseError> {
        assert_eq!(partition, PARTITION);
        self.0.lock().next_offset.ok_or_else(no_rows)
    }

    async fn log_end(&self, partition: i32, _: Instant) -> Option<i64> {
        self.0.lock().ends.get(partition as usize).copied()
    }
}

pub(crate) fn voucher_id() -> VoucherId {
    VoucherId::parse("v").unwrap()
}

pub(crate) fn user() -> UserId {
    UserId::parse("u").unwrap()
}

pub(crate) fn order_id() -> OrderId {
    OrderKey::new(&[1; 32]).unwrap().order_id(&voucher_id(), &user(), None)
}

pub(crate) fn wanted(quantity: i64) -> Try {
    Try { voucher: voucher_id(), user: user(), order: order_id(), quantity }
}

pub(crate) fn order(quantity: i64, status: OrderStatus) -> Order {
    Order {
        id: order_id(),
        voucher_id: voucher_id(),
        partition: PARTITION,
        user_id: user(),
        quantity,
        status,
        reason: None,
        requested_at: AT,
        decided_at: AT,
        changed_at: AT,
        expires_at: None,
        payment_ref: None,
        voucher_seq: 2,
        request_offset: 1,
        slot: 0,
    }
}

/// Its window is far in the future.
pub(crate) fn voucher() -> Voucher {
    let terms = Terms {
        title: "t".to_owned(),
        total: 10,
        per_user_limit: 2,
        begins_at: AT,
        ends_at: Timestamp(i64::MAX),
        price: Money::new(100, "EUR"),
        payment_window_ms: None,
        partition: PARTITION,
    };
    Voucher { id: voucher_id(), terms, remaining: 4, state: VoucherState::Open, terms_version: 1, seq: 1 }
}

pub(crate) fn in_redis(gate: Gate) -> VoucherInRedis {
    VoucherInRedis {
        state: VoucherState::Open,
        gate,
        epoch: "e".to_owned(),
        rebuild: false,
        title: "t".to_owned(),
        total: 10,
        stock: -1,
        reserved: 1,
        sold: 10,
        per_user_limit: 2,
        begins_at: AT,
        ends_at: AT.plus(1_000),
        price: Money::new(100, "EUR"),
        partition: PARTITION,
        seq: 1,
        offset: Some(0),
    }
}

/// One whose window ended years ago.
pub(crate) fn old_voucher() -> Voucher {
    let voucher = voucher();
    Voucher { terms: Terms { ends_at: AT.plus(1), ..voucher.terms }, ..voucher }
}

/// Purchases on these servers, with short deadlines.
pub(crate) fn purchases(servers: &Scripted) -> Arc<Purchases<Scripted>> {
    let metrics = Metrics::new(&mut Registry::default());
    let unacknowledged = Unacknowledged::new(10, Duration::from_secs(60), metrics.unacknowledged.clone());
    Arc::new(Purchases::new(servers.clone(), unacknowledged, ACK_DEADLINE, TaskTracker::new(), metrics))
}

impl Script {
    /// The names of the calls made, without their arguments.
    pub(crate) fn called(&self) -> Vec<&str> {
        self.calls.iter().map(|call| call.split(' ').next().unwrap()).collect()
    }

    /// What was sent, as (order, quantity, instant); all to the voucher's partition.
    pub(crate) fn requested(&self) -> Vec<(OrderId, i64, Timestamp)> {
        let body = |(partition, request): &(i32, Request)| match &request.body {
            RequestBody::OrderRequested { order_id, user_id, quantity, requested_at } => {
                assert_eq!((*partition, &request.voucher_id, user_id), (PARTITION, &voucher_id(), &user()));
                (*order_id, *quantity, *requested_at)
            }
            other => panic!("purchase sent {other:?}"),
        };
        self.sent.iter().map(body).collect()
    }
}
