//! One partition's events as rows, a chunk at a time: however long the log is, only the vouchers and the orders of one chunk are kept.

use std::{collections::HashSet, ops::ControlFlow};

use domain::{Event, EventBody, Order, OrderId, OrderStatus, State, UserId, VoucherId};

use crate::{
    ReplayError,
    audit::log::{in_turn, seq_before},
    verdict::Findings,
    walk::Walk,
};

/// Events between two looks at the progress.
const TELL_EVERY: i64 = 1_000;

/// What a chunk of events made of the orders.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Complete rows of orders that no chunk had before.
    pub(super) orders: Vec<Order>,
    /// Of orders of earlier chunks only what later events change: status, changed_at, voucher_seq and, where it is set, payment_ref.
    pub(super) changed: Vec<Order>,
}

/// One partition, read up to `from`.
pub(super) struct Partition {
    pub(super) events: Walk,
    /// Where reading began, and where its events ended then.
    pub(super) begin: i64,
    pub(super) end: i64,
    pub(super) from: i64,
    /// Orders of a chunk.
    chunk: usize,
    pub(super) fold: Fold,
}

impl Partition {
    /// Begins at event `begin`, which answers request `next_request`.
    pub(super) fn new(events: Walk, (begin, next_request): (i64, i64), end: i64, chunk: usize) -> Self {
        let fold = Fold { next_request, ..Fold::default() };
        Self { events, begin, end, from: begin, chunk, fold }
    }

    /// Reads on up to offset `to`, but no event that answers a request at or beyond `position`. Hands over what becomes of the orders, and
    /// tells how many offsets it has passed. Blocks.
    pub(super) fn read(
        &mut self,
        to: i64,
        position: i64,
        each: &mut dyn FnMut(Chunk) -> Result<(), ReplayError>,
        passed: &dyn Fn(i64),
    ) -> Result<(), ReplayError> {
        let Self { events, from, chunk, fold, .. } = self;
        let (mut told, begun, mut stopped) = (*from, *from, None);
        events.events(begun, to, |event, offset| {
            if event.request_offset >= position {
                // What it leaves out below the position has no answer, and will have none.
                in_turn(fold.next_request, &event, offset, &mut fold.findings);
                stopped = Some(offset);
                return Ok(ControlFlow::Break(()));
            }
            fold.take(&event, offset);
            if offset - told >= TELL_EVERY {
                passed(offset - told);
                told = offset;
            }
            if fold.state.orders.len() >= *chunk {
                each(fold.chunk())?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        *from = stopped.unwrap_or(to).max(begun);
        passed(*from - told);
        if fold.state.orders.is_empty() { Ok(()) } else { each(fold.chunk()) }
    }
}

/// What the events of a partition fold into.
#[derive(Debug, Default)]
pub(super) struct Fold {
    /// All vouchers, and the orders of the present chunk.
    pub(super) state: State,
    /// Those of `state.orders` that earlier chunks have.
    earlier: HashSet<OrderId>,
    /// Offset of the request that the next event must answer: requests have no gaps, and each has one event.
    pub(super) next_request: i64,
    pub(super) events: u64,
    pub(super) findings: Findings,
}

impl Fold {
    fn take(&mut self, event: &Event, offset: i64) {
        self.events += 1;
        self.next_request = in_turn(self.next_request, event, offset, &mut self.findings);
        let Some(voucher) = event.voucher_id.as_ref().filter(|_| event.voucher_seq > 0) else { return };
        let before = seq_before(&self.state, voucher, event, offset, &mut self.findings);
        if event.voucher_seq <= before {
            return;
        }
        let changes =
            matches!(event.body, EventBody::OrderPaid { .. } | EventBody::OrderCancelled { .. } | EventBody::OrderExpired { .. });
        if let Some(order) = event.body.order_id().filter(|order| changes && !self.state.orders.contains_key(order)) {
            self.state.orders.insert(order, unknown(event, voucher, order));
            self.earlier.insert(order);
        }
        self.state.evolve(event);
    }

    fn chunk(&mut self) -> Chunk {
        // Only decisions look at them.
        self.state.held.clear();
        self.state.payments.clear();
        let (changed, orders) = self.state.orders.drain().map(|(_, order)| order).partition(|o| self.earlier.contains(&o.id));
        self.earlier.clear();
        Chunk { orders, changed }
    }
}

/// An order of an earlier chunk, for an event to change.
fn unknown(event: &Event, voucher: &VoucherId, id: OrderId) -> Order {
    Order {
        id,
        voucher_id: voucher.clone(),
        partition: event.partition,
        user_id: UserId::from_log(String::new()),
        quantity: 0,
        status: OrderStatus::Rejected,
        reason: None,
        requested_at: event.decided_at,
        decided_at: event.decided_at,
        changed_at: event.decided_at,
        expires_at: None,
        payment_ref: None,
        voucher_seq: 0,
        request_offset: 0,
        slot: 0,
    }
}

#[cfg(test)]
mod tests {
    use domain::{
        RequestBody,
        testing::{nothing, order, order_id, payment, terms},
    };

    use super::*;

    #[test]
    fn a_chunk_takes_all_orders_along_and_later_changes_come_by_themselves() {
        let (mut given, mut events) = (nothing(), Vec::new());
        for body in [RequestBody::VoucherPublished(terms()), order("ann", 2), order("ben", 1), payment("ann", "p1", 3_998)] {
            let decided = given.when(body);
            events.push(decided.event().clone());
            given = decided.and();
        }
        let mut fold = Fold::default();
        (0..).zip(&events[..3]).for_each(|(offset, event)| fold.take(event, offset));
        let first = fold.chunk();
        assert_eq!((first.orders.len(), first.changed.len()), (2, 0));
        let kept = |fold: &Fold| fold.state.orders.len() + fold.state.held.len() + fold.state.payments.len() + fold.earlier.len();
        assert_eq!(kept(&fold), 0);
        fold.take(&events[3], 3);
        let Chunk { orders, changed } = fold.chunk();
        let told = changed.iter().map(|o| (o.id, o.status, o.payment_ref.as_deref(), o.voucher_seq));
        assert_eq!((orders, told.collect::<Vec<_>>()), (Vec::new(), vec![(order_id("ann"), OrderStatus::Paid, Some("p1"), 4)]));
        assert_eq!((kept(&fold), fold.findings.verdict()), (0, crate::Verdict::Equal));
    }
}
