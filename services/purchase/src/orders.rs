//! What became of an order: its reservation in Redis first, then the orders table (the other way round has a gap between the two).
//!
//! "There is no such order" is said only where that is certain: the gate is ready, and the lane has decided everything that was in the log
//! when we were asked. Otherwise the answer is "ask again".

use std::time::{Duration, Instant};

use domain::{Order, OrderId, UserId, VoucherId};
use infra::redis::{Gate, Reservation};
use serde::Serialize;

use crate::{
    instants::rfc3339,
    purchase::Server,
    servers::Servers,
    vouchers::{Standing, Vouchers},
};

/// How long Postgres may take where Redis already has an answer.
const ROW_PATIENCE: Duration = Duration::from_secs(1);

/// An order as its owner sees it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OrderView {
    order_id: OrderId,
    voucher_id: VoucherId,
    /// `pending`, or the order's status.
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    quantity: i64,
    requested_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    decided_at: Option<String>,
}

/// What can be said about an order id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Order(OrderView),
    /// There is none, or it is somebody else's: the two look alike.
    None,
    /// Not certain at this moment.
    AskAgain,
    Away(Server),
}

/// Looks for the order of this user.
pub(crate) async fn find(
    servers: &impl Servers,
    vouchers: &Vouchers,
    voucher: &VoucherId,
    order: &OrderId,
    user: &UserId,
) -> Found {
    if !order.belongs_to(voucher) {
        return Found::None;
    }
    let asked = Instant::now();
    let reservation = servers.reservation(voucher, order).await;
    let belongs = |row: &Order| row.user_id == *user && row.voucher_id == *voucher;
    if let Ok(Some(reservation)) = reservation {
        if reservation.user_id != *user {
            return Found::None;
        }
        // An order that is asked for again after its decision is reserved until the repeat is settled; its fate stands all the same. Where
        // Postgres does not answer, what is reserved is called pending.
        return match tokio::time::timeout(ROW_PATIENCE, row(servers, order)).await {
            Ok(Ok(Some(row))) if belongs(&row) => Found::Order(decided(row)),
            _ => Found::Order(pending(voucher, reservation)),
        };
    }
    match row(servers, order).await {
        Ok(Some(row)) => return if belongs(&row) { Found::Order(decided(row)) } else { Found::None },
        Ok(None) => {}
        Err(away) => return away,
    }
    if reservation.is_err() {
        return Found::Away(Server::Redis);
    }
    let partition = match servers.voucher_in_redis(voucher).await {
        Ok(Some(found)) if found.gate == Gate::Ready => found.partition,
        Ok(Some(_)) => return Found::AskAgain,
        Ok(None) => match vouchers.standing(servers, voucher).await {
            // Redis forgot it on purpose: the log and the table are all there is.
            Ok(Standing::Over { partition }) => partition,
            Ok(Standing::Lost) => return Found::AskAgain,
            Ok(Standing::None) => return Found::None,
            Err(_) => return Found::Away(Server::Postgres),
        },
        Err(_) => return Found::Away(Server::Redis),
    };
    // What was acknowledged before we were asked is below this end, so it is decided once the lane is beyond it.
    let Some(end) = servers.log_end(partition, asked).await else { return Found::Away(Server::Kafka) };
    match servers.next_offset(partition).await {
        Ok(next) if next >= end => {}
        Ok(_) => return Found::AskAgain,
        Err(_) => return Found::Away(Server::Postgres),
    }
    // The row may have come between the first look and the position just read: look once more, after it.
    match row(servers, order).await {
        Ok(Some(row)) if belongs(&row) => Found::Order(decided(row)),
        Ok(_) => Found::None,
        Err(away) => away,
    }
}

async fn row(servers: &impl Servers, order: &OrderId) -> Result<Option<Order>, Found> {
    servers.order_row(order).await.map_err(|error| {
        tracing::debug!(%error, "an order could not be looked up");
        Found::Away(Server::Postgres)
    })
}

fn pending(voucher: &VoucherId, reservation: Reservation) -> OrderView {
    OrderView {
        order_id: reservation.order_id,
        voucher_id: voucher.clone(),
        status: "pending",
        reason: None,
        quantity: reservation.quantity,
        requested_at: rfc3339(reservation.requested_at),
        decided_at: None,
    }
}

fn decided(order: Order) -> OrderView {
    OrderView {
        order_id: order.id,
        voucher_id: order.voucher_id,
        status: order.status.as_str(),
        reason: order.reason.map(|r| r.as_str()),
        quantity: order.quantity,
        requested_at: rfc3339(order.requested_at),
        decided_at: Some(rfc3339(order.decided_at)),
    }
}

#[cfg(test)]
mod tests;
