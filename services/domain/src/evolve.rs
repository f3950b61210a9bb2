//! How an event changes the state. Total on events that `decide` made; on others it changes what it can and never panics.

use crate::{Event, EventBody, Order, OrderId, OrderStatus, RejectReason, State, Timestamp, UserId, Voucher, VoucherId};

impl State {
    /// Applies one event. Events of a voucher must come in `voucher_seq` order; one that was applied before changes nothing, and
    /// so does one without a `voucher_seq`.
    pub fn evolve(&mut self, event: &Event) {
        let Some(voucher_id) = event.voucher_id.as_ref().filter(|_| event.voucher_seq > 0) else { return };
        if let EventBody::VoucherOpened(terms) = &event.body {
            self.vouchers.entry(voucher_id.clone()).or_insert_with(|| Voucher {
                id: voucher_id.clone(),
                terms: terms.clone(),
                remaining: event.remaining,
                state: crate::VoucherState::Open,
                terms_version: 1,
                seq: event.voucher_seq,
            });
            return;
        }
        let Some(voucher) = self.vouchers.get_mut(voucher_id).filter(|v| v.seq < event.voucher_seq) else { return };
        voucher.seq = event.voucher_seq;
        voucher.remaining = event.remaining;
        match &event.body {
            EventBody::VoucherChanged { state, total, terms_version } => {
                voucher.state = *state;
                voucher.terms.total = *total;
                voucher.terms_version = *terms_version;
            }
            EventBody::OrderConfirmed { order_id, user_id, quantity, requested_at, expires_at, slot } => {
                self.hold(voucher_id, user_id, *quantity);
                let order = Order {
                    status: OrderStatus::Confirmed,
                    expires_at: *expires_at,
                    slot: *slot,
                    ..new_order(event, voucher_id, *order_id, user_id, *quantity, *requested_at)
                };
                self.orders.insert(*order_id, order);
            }
            EventBody::OrderRejected { order_id, user_id, quantity, requested_at, reason } => {
                let order =
                    Order { reason: Some(*reason), ..new_order(event, voucher_id, *order_id, user_id, *quantity, *requested_at) };
                self.orders.insert(*order_id, order);
            }
            EventBody::OrderPaid { order_id, payment_ref, .. } => {
                if let Some(order) = self.change_order(event, order_id, OrderStatus::Paid) {
                    order.payment_ref = Some(payment_ref.clone());
                    self.payments.insert((voucher_id.clone(), payment_ref.clone()), *order_id);
                }
            }
            EventBody::OrderCancelled { order_id, user_id, quantity, .. } => {
                self.change_order(event, order_id, OrderStatus::Cancelled);
                self.hold(voucher_id, user_id, quantity.saturating_neg());
            }
            EventBody::OrderExpired { order_id, user_id, quantity } => {
                self.change_order(event, order_id, OrderStatus::Expired);
                self.hold(voucher_id, user_id, quantity.saturating_neg());
            }
            EventBody::VoucherOpened(_) | EventBody::RequestRepeated { .. } | EventBody::RequestRefused { .. } => {}
        }
    }

    fn change_order(&mut self, event: &Event, order_id: &OrderId, status: OrderStatus) -> Option<&mut Order> {
        let order = self.orders.get_mut(order_id)?;
        order.status = status;
        order.changed_at = event.decided_at;
        order.voucher_seq = event.voucher_seq;
        Some(order)
    }
}

/// The order as a rejection leaves it; a confirmation changes status, expiry and slot.
fn new_order(
    event: &Event,
    voucher_id: &VoucherId,
    id: OrderId,
    user_id: &UserId,
    quantity: i64,
    requested_at: Timestamp,
) -> Order {
    Order {
        id,
        voucher_id: voucher_id.clone(),
        partition: event.partition,
        user_id: user_id.clone(),
        quantity,
        status: OrderStatus::Rejected,
        reason: None::<RejectReason>,
        requested_at,
        decided_at: event.decided_at,
        changed_at: event.decided_at,
        expires_at: None,
        payment_ref: None,
        voucher_seq: event.voucher_seq,
        request_offset: event.request_offset,
        slot: event.voucher_seq,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BEGINS, Given, order, order_id, payment, sale, terms, terms_with_payment_window, user, voucher_id};
    use crate::{CancelledBy, Money, RequestBody};

    /// An event of the sample voucher, as no decision would make it.
    fn event(voucher_seq: i64, body: EventBody) -> Event {
        let decided = sale(terms()).when_unreadable();
        Event { voucher_id: Some(voucher_id()), voucher_seq, body, ..decided.event().clone() }
    }

    fn expired(name: &str, quantity: i64) -> EventBody {
        EventBody::OrderExpired { order_id: order_id(name), user_id: user(name), quantity }
    }

    fn sold() -> Given {
        sale(terms_with_payment_window()).given(order("ann", 2))
    }

    #[test]
    fn a_row_carries_everything_the_events_said() {
        let paid = sold().given(order("ben", 3)).when(payment("ann", "p1", 3_998));
        let ann = Order {
            id: order_id("ann"),
            voucher_id: voucher_id(),
            partition: crate::testing::PARTITION,
            user_id: user("ann"),
            quantity: 2,
            status: OrderStatus::Paid,
            reason: None,
            requested_at: BEGINS,
            decided_at: BEGINS.plus(1),
            changed_at: BEGINS.plus(1),
            expires_at: Some(BEGINS.plus(60_001)),
            payment_ref: Some("p1".into()),
            voucher_seq: 4,
            request_offset: 1,
            slot: 2,
        };
        let ben = Order {
            id: order_id("ben"),
            user_id: user("ben"),
            quantity: 3,
            status: OrderStatus::Rejected,
            reason: Some(RejectReason::LimitReached),
            expires_at: None,
            payment_ref: None,
            voucher_seq: 3,
            request_offset: 2,
            slot: 3,
            ..ann.clone()
        };
        let orders = &paid.state().orders;
        assert_eq!((&orders[&order_id("ann")], &orders[&order_id("ben")]), (&ann, &ben));
    }

    #[test]
    fn the_payment_stays_with_a_cancelled_order() {
        let by = RequestBody::CancellationRequested { order_id: order_id("ann"), by: CancelledBy::Seller };
        let cancelled = sold().given(payment("ann", "p1", 3_998)).when(by);
        assert_eq!(cancelled.state().orders[&order_id("ann")].payment_ref.as_deref(), Some("p1"));
        assert_eq!(cancelled.state().held_by(&voucher_id(), &user("ann")), 0);
        assert!(cancelled.state().held.is_empty(), "nobody is noted with 0 units");
    }

    #[test]
    fn what_is_older_or_has_no_place_changes_nothing() {
        let state = sold().when(order("ben", 1)).state().clone();
        for seq in [i64::MIN, -1, 0, 1, 2, 3] {
            for body in [expired("ann", 2), EventBody::VoucherOpened(crate::Terms { total: 5, ..terms() })] {
                let mut again = state.clone();
                again.evolve(&event(seq, body));
                assert_eq!(again, state, "{seq}");
            }
        }
        let mut again = state.clone();
        again.evolve(&Event { voucher_id: None, ..event(4, expired("ann", 2)) });
        again.evolve(&Event { voucher_id: Some(crate::testing::a_voucher("winter")), ..event(4, expired("ann", 2)) });
        assert_eq!(again, state);
        let mut empty = State::default();
        empty.evolve(&event(0, EventBody::VoucherOpened(terms())));
        assert_eq!(empty, State::default());
    }

    #[test]
    fn events_that_no_decision_makes_never_panic() {
        let amount = Money::new(i64::MIN, "");
        let absurd = |name: &str, quantity| {
            let (order_id, user_id, payment_ref, paid_at) = (order_id(name), user(name), String::new(), BEGINS);
            [
                EventBody::OrderCancelled {
                    order_id,
                    user_id: user_id.clone(),
                    quantity,
                    by: CancelledBy::Buyer,
                    due_back: None,
                },
                EventBody::OrderConfirmed {
                    order_id,
                    user_id: user_id.clone(),
                    quantity,
                    requested_at: BEGINS,
                    expires_at: None,
                    slot: i64::MIN,
                },
                EventBody::OrderPaid { order_id, user_id, quantity, payment_ref, amount: amount.clone(), paid_at },
                expired(name, quantity),
            ]
        };
        let mut state = sold().when_unreadable().state().clone();
        let mut seq = 1;
        for quantity in [i64::MIN, i64::MAX, i64::MAX, -1, i64::MIN, i64::MIN] {
            for body in absurd("ann", quantity).into_iter().chain(absurd("nobody", quantity)) {
                seq += 1;
                state.evolve(&Event { remaining: i64::MIN, held: i64::MAX, ..event(seq, body) });
                let _ = crate::conservation::breaches(&state);
            }
        }
    }
}
