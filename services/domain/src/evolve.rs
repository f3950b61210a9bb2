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
