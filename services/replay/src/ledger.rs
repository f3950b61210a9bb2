//! A voucher's stock, change by change, with who asked for each.

use std::{ops::ControlFlow, time::Instant};

use domain::{CancelledBy, Event, EventBody, OrderId, Timestamp, UserId, VoucherId};
use events::Codec;
use infra::config::Connections;
use serde::Serialize;

use crate::{
    ReplayError,
    walk::{Log, Next, Point, Walk, blocking, home},
};

/// Entries whose requests are read in one go, and which are in memory meanwhile.
const BATCH: usize = 5_000;

/// Whose changes are told.
#[derive(Clone, Debug)]
pub struct LedgerOptions {
    pub voucher: VoucherId,
    /// Where the voucher lives; without: as its row in Postgres says, which is asked for nothing else.
    pub partition: Option<i32>,
    /// The first event that counts, which must be there if it is an offset; without: its opening.
    pub from: Option<Point>,
    /// The last event that counts; without: the last one there is.
    pub to: Option<Point>,
}

/// One change of the units that are left, or of the total.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub voucher_seq: i64,
    /// In `order-events`.
    pub offset: i64,
    /// Of the request, which has the same partition.
    pub request_offset: i64,
    pub decided_at: Timestamp,
    /// Name of the event.
    pub kind: &'static str,
    pub remaining_from: i64,
    pub remaining_to: i64,
    pub total_from: i64,
    pub total_to: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_id: Option<OrderId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// Who gave the order up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<CancelledBy>,
    /// Who asked: a service or a person.
    pub actor: String,
    /// Why, in the words of whoever asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a ledger was made of.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LedgerRead {
    pub entries: u64,
    /// Events of the partition that were read.
    pub events: u64,
    pub seconds: f64,
}

/// Calls `each` for every change between the points, in order, until it has had enough. The partition's events are read from their beginning on
/// all the same: they say from what the first of these changes went out.
pub async fn ledger(
    connections: &Connections,
    codec: &Codec,
    options: LedgerOptions,
    each: impl FnMut(Entry) -> ControlFlow<()> + Send + 'static,
) -> Result<LedgerRead, ReplayError> {
    let partition = home(connections, &options.voucher, options.partition).await?;
    let log = Log::of(connections, codec);
    blocking(move || {
        let requests = log.requests(partition)?;
        Ledger { requests, batch: Vec::new(), each, told: 0 }.read(log.events(partition)?, &options)
    })
    .await
}

struct Ledger<F> {
    requests: Walk,
    /// Entries that do not know who asked for them.
    batch: Vec<Entry>,
    each: F,
    told: u64,
}

impl<F: FnMut(Entry) -> ControlFlow<()>> Ledger<F> {
    fn read(mut self, mut events: Walk, options: &LedgerOptions) -> Result<LedgerRead, ReplayError> {
        let started = Instant::now();
        let ends = events.whole()?;
        let from = match options.from {
            None => 0,
            Some(point @ Point::Offset(_)) => events.behind(point, &ends)? - 1,
            Some(Point::Time(at)) => events.offset_at(at)?.map_or(ends.stable, |offset| offset.min(ends.stable)),
        };
        let to = options.to.map_or(Ok(ends.stable), |to| events.behind(to, &ends))?;
        // An instant may name an event that is still to come.
        if from > to || (from == to && matches!(options.from, Some(Point::Offset(_)))) {
            return Err(ReplayError::Backwards { from, to });
        }
        let mut stock = Stock::default();
        events.events(0, to, |event, offset| {
            if event.voucher_id.as_ref() == Some(&options.voucher) {
                self.batch.extend(stock.change(&event, offset).filter(|_| offset >= from));
            }
            if self.batch.len() < BATCH { Ok(ControlFlow::Continue(())) } else { self.tell() }
        })?;
        let _enough = self.tell()?;
        Ok(LedgerRead { entries: self.told, events: events.records_read, seconds: started.elapsed().as_secs_f64() })
    }

    /// Reads on in the requests, as far as the batch goes, for who asked; then hands the batch over.
    fn tell(&mut self) -> Next {
        let (Some(first), Some(last)) = (self.batch.first(), self.batch.last()) else { return Ok(ControlFlow::Continue(())) };
        let offsets = first.request_offset..last.request_offset + 1;
        let mut entries = self.batch.iter_mut().peekable();
        self.requests.each_request(offsets, |request| {
            let entry = entries.next_if(|entry| entry.request_offset == request.offset);
            if let (Some(entry), Some(request)) = (entry, request.request) {
                (entry.actor, entry.reason) = (request.actor, request.reason);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for entry in self.batch.drain(..) {
            self.told += 1;
            if (self.each)(entry).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// A voucher's units as its events go by.
#[derive(Debug, Default)]
struct Stock {
    remaining: i64,
    total: i64,
}

impl Stock {
    /// Goes on by one event of the voucher; gives an entry if that changed anything.
    fn change(&mut self, event: &Event, offset: i64) -> Option<Entry> {
        if event.voucher_seq == 0 {
            return None;
        }
        let (remaining_from, total_from) = (self.remaining, self.total);
        self.remaining = event.remaining;
        let (user_id, by) = match &event.body {
            EventBody::OrderCancelled { user_id, by, .. } => (Some(user_id), Some(*by)),
            EventBody::OrderConfirmed { user_id, .. } | EventBody::OrderExpired { user_id, .. } => (Some(user_id), None),
            EventBody::VoucherChanged { total, .. } => {
                self.total = *total;
                (None, None)
            }
            EventBody::VoucherOpened(terms) => {
                self.total = terms.total;
                (None, None)
            }
            _ => (None, None),
        };
        let (remaining_to, total_to) = (self.remaining, self.total);
        ((remaining_from, total_from) != (remaining_to, total_to)).then(|| Entry {
            voucher_seq: event.voucher_seq,
            offset,
            request_offset: event.request_offset,
            decided_at: event.decided_at,
            kind: event.body.name(),
            remaining_from,
            remaining_to,
            total_from,
            total_to,
            order_id: event.body.order_id(),
            user_id: user_id.cloned(),
            by,
            actor: String::new(),
            reason: None,
        })
    }
}
