//! What a purchase needs of Redis, Kafka and Postgres, as one interface: the rules above it are tested against servers that fail on command.

use std::{pin::Pin, time::Instant};

use domain::{Order, OrderId, Request, UserId, Voucher, VoucherId};
use infra::{
    postgres::{self, DatabaseError, Pool},
    redis::{Reservation, Reserve, Store, StoreError, VoucherInRedis},
};
use publish::{Delivery, RequestProducer};

use crate::log_ends::LogEndsReader;

/// What becomes of a request that was handed over; dropping it does not take the request back.
pub(crate) type Sending = Pin<Box<dyn Future<Output = Delivery> + Send>>;

/// The calls of this service to others. Each has a deadline of its own and can be repeated.
pub(crate) trait Servers: Send + Sync + 'static {
    fn reserve(
        &self,
        voucher: &VoucherId,
        order: &OrderId,
        user: &UserId,
        quantity: i64,
        token: &str,
    ) -> impl Future<Output = Result<Reserve, StoreError>> + Send;

    /// Gives the reservation back if nobody else stands on it.
    fn release(&self, voucher: &VoucherId, order: &OrderId, token: &str)
    -> impl Future<Output = Result<bool, StoreError>> + Send;

    fn reservation(
        &self,
        voucher: &VoucherId,
        order: &OrderId,
    ) -> impl Future<Output = Result<Option<Reservation>, StoreError>> + Send;

    fn voucher_in_redis(&self, voucher: &VoucherId) -> impl Future<Output = Result<Option<VoucherInRedis>, StoreError>> + Send;

    fn send(&self, partition: i32, request: &Request) -> Sending;

    fn order_row(&self, order: &OrderId) -> impl Future<Output = Result<Option<Order>, DatabaseError>> + Send;

    fn voucher_row(&self, voucher: &VoucherId) -> impl Future<Output = Result<Option<Voucher>, DatabaseError>> + Send;

    /// The first offset of `order-requests` that this partition's lane has not decided.
    fn next_offset(&self, partition: i32) -> impl Future<Output = Result<i64, DatabaseError>> + Send;

    /// Where a partition of `order-requests` ends, asked for at or after this instant; `None`: Kafka does not say so in time.
    fn log_end(&self, partition: i32, after: Instant) -> impl Future<Output = Option<i64>> + Send;
}

/// The real ones.
pub(crate) struct RealServers {
    pub(crate) store: Store,
    pub(crate) producer: RequestProducer,
    pub(crate) pool: Pool,
    pub(crate) log_ends: LogEndsReader,
    pub(crate) requests_topic: String,
}

impl Servers for RealServers {
    async fn reserve(
        &self,
        voucher: &VoucherId,
        order: &OrderId,
        user: &UserId,
        quantity: i64,
        token: &str,
    ) -> Result<Reserve, StoreError> {
        self.store.reserve(voucher, order, user, quantity, token).await
    }

    async fn release(&self, voucher: &VoucherId, order: &OrderId, token: &str) -> Result<bool, StoreError> {
        self.store.release(voucher, order, token).await
    }

    async fn reservation(&self, voucher: &VoucherId, order: &OrderId) -> Result<Option<Reservation>, StoreError> {
        self.store.reservation(voucher, order).await
    }

    async fn voucher_in_redis(&self, voucher: &VoucherId) -> Result<Option<VoucherInRedis>, StoreError> {
        self.store.voucher(voucher).await
    }

    fn send(&self, partition: i32, request: &Request) -> Sending {
        Box::pin(self.producer.send(partition, request))
    }

    async fn order_row(&self, order: &OrderId) -> Result<Option<Order>, DatabaseError> {
        postgres::order(&self.pool, order).await
    }

    async fn voucher_row(&self, voucher: &VoucherId) -> Result<Option<Voucher>, DatabaseError> {
        postgres::voucher(&self.pool, voucher).await
    }

    async fn next_offset(&self, partition: i32) -> Result<i64, DatabaseError> {
        Ok(postgres::next_offset(&self.pool, &self.requests_topic, partition).await?.unwrap_or(0))
    }

    async fn log_end(&self, partition: i32, after: Instant) -> Option<i64> {
        self.log_ends.end(partition, after).await
    }
}
