//! Judges one dead letter: what request it becomes, where that goes, and what stands in its way now.
//!
//! An order takes its units at the gate as a purchase does, by the same script, before anything is sent: what the gate refuses never reaches
//! the log. Everything else is the log's to decide, at the offset at which it arrives: nothing that came before is overtaken.

use domain::{LoggedRequest, Order, Request, RequestBody, State, Timestamp, Voucher, decide};
use infra::{
    config::Connections,
    postgres::{self, Pool},
    redis::{Gate, Refusal, Reserve, Store, StoreError},
};
use replay::{KnownSchemas, Letter, request_of};
use serde::Serialize;
use uuid::Uuid;

use super::redrive::Args;
use crate::{DIFFERENT, OK, UNKNOWN, explain::said, time};

/// What became, or would become, of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    WouldRedrive,
    Redriven,
    NothingToDo,
    Refused,
    CouldNotTell,
}

impl Outcome {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::WouldRedrive | Self::Redriven | Self::NothingToDo => OK,
            Self::Refused => DIFFERENT,
            Self::CouldNotTell => UNKNOWN,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::WouldRedrive => "would be redriven",
            Self::Redriven => "redriven",
            Self::NothingToDo => "left alone",
            Self::Refused => "refused",
            Self::CouldNotTell => "not told",
        }
    }
}

/// Why nothing is sent.
pub(super) type Stop = (Outcome, String);

pub(super) fn refused<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err((Outcome::Refused, why.into()))
}

pub(super) fn cannot_tell(error: impl ToString) -> Stop {
    (Outcome::CouldNotTell, error.to_string())
}

/// A request that may be sent.
pub(super) struct Ready {
    pub(super) request: Request,
    pub(super) partition: i32,
    /// How the bytes were read.
    pub(super) way: String,
    /// What it is about, as Postgres has it.
    voucher: Option<Voucher>,
    order: Option<Order>,
}

pub(super) struct Desk {
    schemas: KnownSchemas,
    pool: Pool,
    redis: String,
    /// Connected for the first order.
    store: Option<Store>,
    partitions: i32,
}

impl Desk {
    pub(super) fn new(connections: &Connections, schemas: KnownSchemas, partitions: i32) -> anyhow::Result<Self> {
        let pool = postgres::pool(connections, 1)?;
        Ok(Self { schemas, pool, redis: connections.redis.clone(), store: None, partitions })
    }

    /// Reads the letter, finds its place and what it is about. Changes nothing.
    pub(super) async fn read(&self, letter: &Letter, args: &Args) -> Result<Ready, Stop> {
        let attempts = self.schemas.attempts(&letter.payload).await.map_err(cannot_tell)?;
        let (way, request) = request_of(&attempts, args.as_schema, &args.set).or_else(refused)?;
        let id = &request.voucher_id;
        let voucher = postgres::voucher(&self.pool, id).await.map_err(cannot_tell)?;
        let partition = match (&request.body, &voucher) {
            (RequestBody::VoucherPublished(terms), _) => terms.partition,
            (_, Some(voucher)) => voucher.terms.partition,
            (_, None) => return refused(format!("Postgres has no voucher {id}: what publishes it comes first")),
        };
        if !(0..self.partitions).contains(&partition) {
            return refused(format!("it is for partition {partition}, which the topics do not have"));
        }
        let order = match request.body.order_id() {
            Some(order) => postgres::order(&self.pool, &order).await.map_err(cannot_tell)?,
            None => None,
        };
        Ok(Ready { request, partition, way, voucher, order })
    }

    /// Whether what the request asks for can still be asked for.
    pub(super) fn standing(&self, ready: &Ready) -> Result<(), Stop> {
        let id = &ready.request.voucher_id;
        match (&ready.request.body, &ready.voucher, &ready.order) {
            (RequestBody::VoucherPublished(_), Some(_), _) => refused(format!("voucher {id} was published already")),
            (RequestBody::OrderRequested { .. }, _, Some(order)) => {
                Err((Outcome::NothingToDo, format!("order {} was decided: it is {}", order.id, order.status.as_str())))
            }
            (RequestBody::OrderRequested { order_id, user_id, quantity, .. }, ..)
                if !order_id.belongs_to(id) || !user_id.is_valid() || *quantity < 1 =>
            {
                refused("its order id, user or quantity is none that an order can have")
            }
            _ => Ok(()),
        }
    }

    /// What a ready request would be answered, were it sent now. Changes nothing.
    pub(super) async fn foresee(&mut self, ready: &Ready) -> Result<String, Stop> {
        if let RequestBody::OrderRequested { order_id, quantity, .. } = &ready.request.body {
            let (id, store) = (&ready.request.voucher_id, self.store().await.map_err(cannot_tell)?);
            let found = match store.voucher(id).await.map_err(cannot_tell)? {
                Some(found) => found,
                None => return reserved(Reserve::UnknownVoucher).map(|_| String::new()),
            };
            let refuse = |refusal| reserved(Reserve::Refused { refusal, held: 0 });
            match store.reservation(id, order_id).await.map_err(cannot_tell)? {
                Some(there) if there.quantity == *quantity => return Ok("its units are reserved".to_owned()),
                Some(other) => reserved(Reserve::OtherQuantity { quantity: other.quantity })?,
                None if found.gate != Gate::Ready => reserved(Reserve::NotReady { gate: found.gate })?,
                None if time::now() >= found.ends_at => refuse(Refusal::Ended)?,
                None if found.stock < *quantity => refuse(Refusal::SoldOut)?,
                None => None,
            };
            return Ok(format!("takes its units at the gate first ({} left, {})", found.stock, found.state.as_str()));
        }
        let order = ready.order.clone();
        let payment = order.as_ref().and_then(|order| Some(((order.voucher_id.clone(), order.payment_ref.clone()?), order.id)));
        let facts = State {
            vouchers: ready.voucher.iter().map(|voucher| (voucher.id.clone(), voucher.clone())).collect(),
            orders: order.into_iter().map(|order| (order.id, order)).collect(),
            payments: payment.into_iter().collect(),
            ..State::default()
        };
        let (partition, appended_at, request) = (ready.partition, time::now(), Some(ready.request.clone()));
        let event = decide(&facts, &LoggedRequest { partition, offset: 0, appended_at, request });
        Ok(format!("now the answer would be {}", said(&event.body)))
    }

    /// Takes the units of an order, with this release token. Gives the request as it is to be sent: one whose reservation is there carries
    /// that one's instant, as every repeat of it does.
    pub(super) async fn reserve(&mut self, mut request: Request, token: &str) -> Result<Request, Stop> {
        let RequestBody::OrderRequested { order_id, user_id, quantity, requested_at } = &mut request.body else {
            return Ok(request);
        };
        let store = self.store().await.map_err(cannot_tell)?;
        let answer = store.reserve(&request.voucher_id, order_id, user_id, *quantity, token).await.map_err(cannot_tell)?;
        if let Some(instant) = reserved(answer)? {
            *requested_at = instant;
        }
        Ok(request)
    }

    /// Gives units back that were taken with this token, for a request that is certainly not in the log. Where that fails, the sweeper of
    /// compensation publishes the order.
    pub(super) async fn release(&mut self, request: &Request, token: &str) {
        let RequestBody::OrderRequested { order_id, .. } = &request.body else { return };
        let released = match self.store().await {
            Ok(store) => store.release(&request.voucher_id, order_id, token).await,
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            tracing::warn!(order = %order_id, %error, "a reservation could not be given back");
        }
    }

    async fn store(&mut self) -> Result<&Store, StoreError> {
        if self.store.is_none() {
            self.store = Some(Store::connect(&self.redis).await?);
        }
        self.store.as_ref().ok_or_else(|| StoreError::Unavailable("not connected".to_owned()))
    }
}

/// A token of this try alone.
pub(super) fn token() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Whether the gate lets the order go; the instant of a reservation that was there before.
fn reserved(answer: Reserve) -> Result<Option<Timestamp>, Stop> {
    match answer {
        Reserve::Reserved { .. } => Ok(None),
        Reserve::Same { requested_at, .. } => Ok(Some(requested_at)),
        Reserve::OtherQuantity { quantity } => refused(format!("the order is on its way with {quantity} units")),
        Reserve::UnknownVoucher => Err(cannot_tell("Redis does not have the voucher: compensation has to build it first")),
        Reserve::NotReady { gate } => Err(cannot_tell(format!("the voucher's gate is {}: try again later", gate.as_str()))),
        Reserve::Refused { refusal, .. } => refused(match refusal {
            Refusal::NotStarted { begins_at, .. } => format!("the sale begins at {}", time::format_instant(begins_at)),
            Refusal::Ended => "the sale is over, and nothing is reserved for the order".to_owned(),
            Refusal::Paused => "the voucher is paused, and nothing is reserved for the order".to_owned(),
            Refusal::Closed => "the voucher is closed, and nothing is reserved for the order".to_owned(),
            Refusal::LimitReached => "the buyer holds all units that one may".to_owned(),
            Refusal::SoldOut => "sold out: no units are reserved for the order, and none are left".to_owned(),
        }),
    }
}
