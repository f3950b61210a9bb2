//! The state that events fold into. The same type carries the few facts a lane reads for one batch and the whole of a replay.

use std::collections::HashMap;

use crate::{Order, OrderId, UserId, Voucher, VoucherId};

/// Vouchers, orders and what is derived from them.
///
/// As **facts** for a batch it need hold only what the batch's requests name: their vouchers (on whatever partition), their orders,
/// the units their buyers hold and the payments they refer to. As a **fold** it holds everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub vouchers: HashMap<VoucherId, Voucher>,
    pub orders: HashMap<OrderId, Order>,
    /// Units of live orders by buyer; no entry means 0.
    pub held: HashMap<(VoucherId, UserId), i64>,
    /// Which order a payment paid, by reference within the voucher. Kept after the order is cancelled.
    pub payments: HashMap<(VoucherId, String), OrderId>,
}

impl State {
    /// The order, if it is one of this voucher.
    pub fn order_of(&self, voucher: &VoucherId, order: &OrderId) -> Option<&Order> {
        self.orders.get(order).filter(|o| o.voucher_id == *voucher)
    }

    /// Units of the voucher that `user` holds in live orders.
    pub fn held_by(&self, voucher: &VoucherId, user: &UserId) -> i64 {
        self.held.get(&(voucher.clone(), user.clone())).copied().unwrap_or(0)
    }

    pub(crate) fn hold(&mut self, voucher: &VoucherId, user: &UserId, units: i64) {
        let key = (voucher.clone(), user.clone());
        let held = self.held.entry(key.clone()).or_insert(0);
        *held = held.saturating_add(units);
        if *held == 0 {
            self.held.remove(&key);
        }
    }
}
