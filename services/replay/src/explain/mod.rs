//! What the stores and the log know of one order, as one timeline.
//!
//! No topic is scanned. The row names the order's request by offset, and its last change by instant; a reservation names its instant, too. From
//! each of these places some requests are looked through for others about the same order (repeats, refusals, payments), and the events that answer
//! them are searched for. So what is read does not grow with the log.

mod look;

use domain::{ALLOWED_SKEW_MS, Event, EventBody, Order, OrderId, OrderStatus, Request, RequestBody, Timestamp, UserId, Voucher};
use events::Codec;
use infra::{
    config::Connections,
    postgres,
    redis::{Store, StoreError},
};
use serde::Serialize;

use self::look::{Partition, Place};
use crate::{
    ReplayError,
    walk::{Log, partitions, side_by_side},
};

/// How far an order is looked for.
#[derive(Clone, Debug)]
pub struct ExplainOptions {
    /// Requests looked through from each place that the row, the reservation or `since` names.
    pub look: i64,
    /// To the end of the log instead.
    pub deep: bool,
    /// Looks from this instant on, too: for an order of which neither store knows anything.
    pub since: Option<Timestamp>,
}

/// One order's story.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    pub order_id: OrderId,
    /// The voucher whose 48 bits the id carries, as Postgres has it.
    pub voucher: Option<Voucher>,
    pub row: Option<Order>,
    pub redis: Option<InRedis>,
    /// The requests found, in order, each with what was decided.
    pub steps: Vec<Step>,
    /// Where requests were looked through.
    pub looked_through: Vec<Looked>,
    /// Records of both topics that were read.
    pub records_read: u64,
    pub notes: Vec<String>,
    /// What contradicts itself.
    pub wrong: Vec<String>,
    /// What could not be found or asked.
    pub unknown: Vec<String>,
}

/// What Redis has now.
#[derive(Clone, Debug, Serialize)]
pub struct InRedis {
    /// `voucher_seq` of the last settled event; `None`: Redis does not have the voucher.
    pub voucher_seq: Option<i64>,
    pub gate: Option<&'static str>,
    pub reservation: Option<Reserved>,
}

/// The order's entry among the reservations.
#[derive(Clone, Debug, Serialize)]
pub struct Reserved {
    pub user_id: UserId,
    pub quantity: i64,
    pub requested_at: Timestamp,
}

/// One request about the order.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub partition: i32,
    pub offset: i64,
    /// By the broker's clock; also the `decided_at` of its event.
    pub appended_at: Timestamp,
    pub request: Request,
    /// `None`: the log has none yet, or has it no longer.
    pub answer: Option<Answer>,
    pub is_answer_deleted: bool,
}

/// What was decided about a request.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    pub event: Event,
    pub offset: i64,
    /// When it was published, by the broker's clock.
    pub appended_at: Timestamp,
    /// Why it was refused, in words.
    pub why: Option<String>,
    /// Whether Redis has the event; `None`: nobody settles it, or Redis does not say.
    pub settled: Option<bool>,
}

/// Requests `from..to` of a partition were looked through; it ends at `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Looked {
    pub partition: i32,
    pub from: i64,
    pub to: i64,
    pub end: i64,
}

/// Tells an order's story. Changes nothing.
///
/// Fails where Postgres or the log cannot be asked. What is not found, deleted or contradictory, or that Redis is away, is in the answer.
pub async fn explain(
    connections: &Connections,
    codec: &Codec,
    order: OrderId,
    options: &ExplainOptions,
) -> Result<Explained, ReplayError> {
    let pool = postgres::pool(connections, 1)?;
    let voucher = postgres::vouchers(&pool, None).await?.into_iter().find(|v| order.belongs_to(&v.id));
    // Redis before Postgres: the other way round, an order that is settled in between is in neither.
    let (redis, away) = match &voucher {
        Some(voucher) => match in_redis(connections, voucher, &order).await {
            Ok(redis) => (Some(redis), None),
            Err(error) => (None, Some(format!("Redis cannot be asked: {error}"))),
        },
        None => (None, None),
    };
    let row = postgres::order(&pool, &order).await?;
    let mut told = Explained {
        order_id: order,
        voucher,
        row,
        redis,
        steps: Vec::new(),
        looked_through: Vec::new(),
        records_read: 0,
        notes: Vec::new(),
        wrong: Vec::new(),
        unknown: away.into_iter().collect(),
    };
    let places = told.places(options.since);
    let home = told.row.as_ref().map(|row| row.partition).or(told.voucher.as_ref().map(|v| v.terms.partition));
    let partitions = match home {
        _ if places.is_empty() => 0..0,
        Some(home) => home..home + 1,
        None => 0..partitions(connections).await?,
    };
    let (log, depth) = (Log::of(connections, codec), (options.look, options.deep));
    let look = move |partition| Partition::open(&log, partition)?.look(order, &places, depth);
    let mut is_whole = true;
    for found in side_by_side(partitions, look).await? {
        is_whole &= found.deleted.is_empty();
        told.steps.extend(found.steps);
        told.looked_through.extend(found.looked_through);
        told.records_read += found.records_read;
        told.wrong.extend(found.wrong);
        told.unknown.extend(found.deleted);
    }
    told.judge(is_whole, options.since.is_some());
    Ok(told)
}

async fn in_redis(connections: &Connections, voucher: &Voucher, order: &OrderId) -> Result<InRedis, StoreError> {
    let store = Store::connect(&connections.redis).await?;
    let found = store.reservation(&voucher.id, order).await?;
    let reservation = found.map(|r| Reserved { user_id: r.user_id, quantity: r.quantity, requested_at: r.requested_at });
    let hash = store.voucher(&voucher.id).await?;
    let (voucher_seq, gate) = hash.map(|v| (v.seq, v.gate.as_str())).unzip();
    Ok(InRedis { voucher_seq, gate, reservation })
}

impl Explained {
    /// What Redis holds for it.
    pub fn reservation(&self) -> Option<&Reserved> {
        self.redis.as_ref()?.reservation.as_ref()
    }

    /// Where the log has to be looked at.
    fn places(&self, since: Option<Timestamp>) -> Vec<Place> {
        let mut places = Vec::new();
        if let Some(row) = &self.row {
            places.push(Place { offset: Some(row.request_offset), since: row.decided_at, until: Timestamp(i64::MIN) });
            if !matches!(row.status, OrderStatus::Confirmed | OrderStatus::Rejected) {
                places.push(Place { offset: None, since: row.changed_at, until: row.changed_at });
            }
        }
        // A request is appended when its reservation is made, but for the clocks.
        places.extend(self.reservation().map(|reserved| Place {
            offset: None,
            since: reserved.requested_at.plus(-ALLOWED_SKEW_MS),
            until: reserved.requested_at.plus(ALLOWED_SKEW_MS),
        }));
        places.extend(since.map(|since| Place { offset: None, since, until: since }));
        places
    }

    /// Holds what was found in the log against the stores.
    fn judge(&mut self, is_whole: bool, was_told_when: bool) {
        if let Some(in_redis) = self.redis.as_ref().and_then(|redis| redis.voucher_seq) {
            for answer in self.steps.iter_mut().filter_map(|step| step.answer.as_mut()) {
                let seq = answer.event.voucher_seq;
                answer.settled = (seq > 0).then_some(in_redis >= seq);
            }
        }
        match &self.row {
            // Deleted records explain whatever is not there.
            _ if !is_whole => {}
            Some(row) => {
                let of = |step: &&Step| step.partition == row.partition && step.offset == row.request_offset;
                let made = self.steps.iter().find(of);
                let is_order = |step: &Step| matches!(step.request.body, RequestBody::OrderRequested { .. });
                let is_last = |step: &Step| step.answer.as_ref().is_none_or(|answer| answer.event.voucher_seq == row.voucher_seq);
                let is_payment = |step: &Step| {
                    step.answer.as_ref().is_some_and(|answer| matches!(answer.event.body, EventBody::OrderPaid { .. }))
                };
                if !made.is_some_and(is_order) {
                    self.wrong.push(format!(
                        "the row names request {} of partition {}, which does not ask for this order: `doorbuster audit` looks at all rows",
                        row.request_offset, row.partition
                    ));
                } else if !self.steps.iter().any(is_last) {
                    self.wrong.push(format!(
                        "the row says that event {} of the voucher changed it at its changed_at, and the log has no such event there: `doorbuster audit`",
                        row.voucher_seq
                    ));
                } else if let Some(payment) = row.payment_ref.as_ref().filter(|_| !self.steps.iter().any(is_payment)) {
                    self.notes.push(format!("paid with reference {payment:?} in between, where nobody looked: --deep finds it"));
                }
            }
            None if !self.steps.is_empty() => {}
            None if self.reservation().is_some() => self.notes.push(
                "its request is not in the log yet: the purchase that reserved it publishes it, or, if that died, the sweeper"
                    .to_owned(),
            ),
            None => {
                let voucher = match &self.voucher {
                    Some(voucher) => format!("it would be an order of voucher {}", voucher.id),
                    None => "no voucher of Postgres has orders whose ids begin so".to_owned(),
                };
                let remedy = if was_told_when {
                    "look from an earlier instant, or further with --deep"
                } else {
                    "give --since TIME, and it is looked for from there"
                };
                self.unknown.push(format!("there is no row and no reservation, and no request was found ({voucher}): {remedy}"));
            }
        }
    }
}
