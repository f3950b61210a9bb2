//! The rows of the tables `orders` and `vouchers`, and instants as Postgres keeps them.

use std::pin::pin;

use domain::{Money, Order, OrderId, OrderStatus, RejectReason, Terms, Timestamp, UserId, Voucher, VoucherId, VoucherState};
use tokio_postgres::{
    Client, Row,
    binary_copy::BinaryCopyInWriter,
    types::{FromSql, IsNull, ToSql, Type, accepts, private::BytesMut, to_sql_checked},
};
use uuid::Uuid;

use super::DatabaseError;

/// The columns of `orders` in the order that [`order_of`] reads them by name and the lane's upsert writes them.
pub const ORDER_COLUMNS: &str = "order_id, voucher_id, partition, user_id, quantity, status, reason, requested_at, decided_at, \
     changed_at, expires_at, payment_ref, voucher_seq, request_offset, slot";

/// The columns of `vouchers`, likewise.
pub const VOUCHER_COLUMNS: &str = "voucher_id, partition, title, total, remaining, per_user_limit, begins_at, ends_at, price_minor, \
     currency, payment_window_ms, state, terms_version, seq";

/// An instant as a `timestamptz`: whole milliseconds, so what was written comes back exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant(pub Timestamp);

/// Milliseconds from 1970 to 2000, where Postgres counts from.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

impl ToSql for Instant {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let micros = self.0.0.checked_sub(POSTGRES_EPOCH_MS).and_then(|ms| ms.checked_mul(1000));
        let micros = micros.ok_or_else(|| format!("instant {} ms is outside what Postgres can hold", self.0.0))?;
        out.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Instant {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(Timestamp(micros.div_euclid(1000).saturating_add(POSTGRES_EPOCH_MS))))
    }

    accepts!(TIMESTAMPTZ);
}

/// Reads a row that has [`ORDER_COLUMNS`].
pub fn order_of(row: &Row) -> Result<Order, DatabaseError> {
    let bad = |problem: String| DatabaseError::Row { table: "orders", problem };
    let status: &str = row.try_get("status")?;
    let reason: Option<&str> = row.try_get("reason")?;
    let reason = reason.map(|word| RejectReason::parse(word).ok_or_else(|| bad(format!("unknown reason {word:?}"))));
    Ok(Order {
        id: OrderId::from_uuid(row.try_get::<_, Uuid>("order_id")?),
        voucher_id: VoucherId::parse(row.try_get("voucher_id")?).map_err(|e| bad(e.to_string()))?,
        partition: row.try_get("partition")?,
        user_id: UserId::from_log(row.try_get("user_id")?),
        quantity: row.try_get("quantity")?,
        status: OrderStatus::parse(status).ok_or_else(|| bad(format!("unknown status {status:?}")))?,
        reason: reason.transpose()?,
        requested_at: row.try_get::<_, Instant>("requested_at")?.0,
        decided_at: row.try_get::<_, Instant>("decided_at")?.0,
        changed_at: row.try_get::<_, Instant>("changed_at")?.0,
        expires_at: row.try_get::<_, Option<Instant>>("expires_at")?.map(|i| i.0),
        payment_ref: row.try_get("payment_ref")?,
        voucher_seq: row.try_get("voucher_seq")?,
        request_offset: row.try_get("request_offset")?,
        slot: row.try_get("slot")?,
    })
}

/// Reads a row that has [`VOUCHER_COLUMNS`].
pub fn voucher_of(row: &Row) -> Result<Voucher, DatabaseError> {
    let bad = |problem: String| DatabaseError::Row { table: "vouchers", problem };
    let state: &str = row.try_get("state")?;
    Ok(Voucher {
        id: VoucherId::parse(row.try_get("voucher_id")?).map_err(|e| bad(e.to_string()))?,
        terms: Terms {
            title: row.try_get("title")?,
            total: row.try_get("total")?,
            per_user_limit: row.try_get("per_user_limit")?,
            begins_at: row.try_get::<_, Instant>("begins_at")?.0,
            ends_at: row.try_get::<_, Instant>("ends_at")?.0,
            price: Money { minor: row.try_get("price_minor")?, currency: row.try_get("currency")? },
            payment_window_ms: row.try_get("payment_window_ms")?,
            partition: row.try_get("partition")?,
        },
        remaining: row.try_get("remaining")?,
        state: VoucherState::parse(state).ok_or_else(|| bad(format!("unknown state {state:?}")))?,
        terms_version: row.try_get("terms_version")?,
        seq: row.try_get("seq")?,
    })
}

/// Appends orders by binary COPY to `table`, which has [`ORDER_COLUMNS`].
pub async fn copy_orders(client: &Client, table: &str, orders: &[Order]) -> Result<(), DatabaseError> {
    let mut copy = pin!(copy(client, table, ORDER_COLUMNS).await?);
    for o in orders {
        let [requested_at, decided_at, changed_at] = [o.requested_at, o.decided_at, o.changed_at].map(Instant);
        let (status, reason, expires_at) = (o.status.as_str(), o.reason.map(RejectReason::as_str), o.expires_at.map(Instant));
        let row: [&(dyn ToSql + Sync); 15] = [
            &o.id.as_uuid(),
            &o.voucher_id.as_str(),
            &o.partition,
            &o.user_id.as_str(),
            &o.quantity,
            &status,
            &reason,
            &requested_at,
            &decided_at,
            &changed_at,
            &expires_at,
            &o.payment_ref,
            &o.voucher_seq,
            &o.request_offset,
            &o.slot,
        ];
        copy.as_mut().write(&row).await?;
    }
    copy.finish().await?;
    Ok(())
}

/// Appends vouchers by binary COPY to `table`, which has [`VOUCHER_COLUMNS`].
pub async fn copy_vouchers(client: &Client, table: &str, vouchers: &[Voucher]) -> Result<(), DatabaseError> {
    let mut copy = pin!(copy(client, table, VOUCHER_COLUMNS).await?);
    for v in vouchers {
        let t = &v.terms;
        let row: [&(dyn ToSql + Sync); 14] = [
            &v.id.as_str(),
            &t.partition,
            &t.title,
            &t.total,
            &v.remaining,
            &t.per_user_limit,
            &Instant(t.begins_at),
            &Instant(t.ends_at),
            &t.price.minor,
            &t.price.currency,
            &t.payment_window_ms,
            &v.state.as_str(),
            &v.terms_version,
            &v.seq,
        ];
        copy.as_mut().write(&row).await?;
    }
    copy.finish().await?;
    Ok(())
}

async fn copy(client: &Client, table: &str, columns: &str) -> Result<BinaryCopyInWriter, DatabaseError> {
    let columns_of = client.prepare(&format!("SELECT {columns} FROM {table}")).await?;
    let types: Vec<Type> = columns_of.columns().iter().map(|column| column.type_().clone()).collect();
    let sink = client.copy_in(&format!("COPY {table} ({columns}) FROM STDIN BINARY")).await?;
    Ok(BinaryCopyInWriter::new(sink, &types))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_survive_postgres_to_the_millisecond() {
        for ms in [0, 1, -1, POSTGRES_EPOCH_MS - 1, POSTGRES_EPOCH_MS, 1_790_000_000_123, 253_402_300_799_999] {
            let mut bytes = BytesMut::new();
            Instant(Timestamp(ms)).to_sql(&Type::TIMESTAMPTZ, &mut bytes).unwrap();
            assert_eq!(Instant::from_sql(&Type::TIMESTAMPTZ, &bytes).unwrap().0, Timestamp(ms));
        }
        assert!(Instant(Timestamp(i64::MAX)).to_sql(&Type::TIMESTAMPTZ, &mut BytesMut::new()).is_err());
        assert!(Instant(Timestamp(i64::MIN)).to_sql(&Type::TIMESTAMPTZ, &mut BytesMut::new()).is_err());
    }
}
