//! Conservation: no unit is lost, none is sold twice.

use std::collections::HashMap;

use crate::{State, UserId, Voucher, VoucherId};

/// A unit that is missing, doubled or held beyond the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// total = remaining + live orders does not hold.
    #[error("voucher {voucher}: total {total} is not remaining {remaining} + live {live}")]
    Total { voucher: VoucherId, total: i64, remaining: i64, live: i64 },
    /// remaining left 0..=total.
    #[error("voucher {voucher}: remaining {remaining} is outside 0..={total}")]
    Bounds { voucher: VoucherId, total: i64, remaining: i64 },
    /// A buyer holds more than one user may.
    #[error("voucher {voucher}: user {user} holds {held} units, the limit is {limit}")]
    Limit { voucher: VoucherId, user: UserId, held: i64, limit: i64 },
    /// The derived units of a buyer differ from his orders.
    #[error("voucher {voucher}: user {user} is noted with {noted} units, but has live orders of {held}")]
    Held { voucher: VoucherId, user: UserId, noted: i64, held: i64 },
}

/// Checks I1 to I3 on a whole state; the breaches come in a stable order.
pub fn breaches(state: &State) -> Vec<Breach> {
    let mut live: HashMap<&VoucherId, i64> = HashMap::new();
    let mut held: HashMap<(VoucherId, UserId), i64> = HashMap::new();
    for order in state.orders.values().filter(|o| o.status.is_live()) {
        let units = live.entry(&order.voucher_id).or_default();
        *units = units.saturating_add(order.quantity);
        let units = held.entry((order.voucher_id.clone(), order.user_id.clone())).or_default();
        *units = units.saturating_add(order.quantity);
    }
    let mut found = Vec::new();
    for voucher in state.vouchers.values() {
        of_voucher(voucher, live.get(&voucher.id).copied().unwrap_or(0), &mut found);
    }
    for ((voucher, user), units) in &held {
        let limit = state.vouchers.get(voucher).map_or(0, |v| v.terms.per_user_limit);
        if *units > limit {
            found.push(Breach::Limit { voucher: voucher.clone(), user: user.clone(), held: *units, limit });
        }
    }
    for (voucher, user) in held.keys().chain(state.held.keys()) {
        let units = held.get(&(voucher.clone(), user.clone())).copied().unwrap_or(0);
        let noted = state.held_by(voucher, user);
        let breach = Breach::Held { voucher: voucher.clone(), user: user.clone(), noted, held: units };
        if noted != units && !found.contains(&breach) {
            found.push(breach);
        }
    }
    found.sort_by_key(|breach| breach.to_string());
    found
}

fn of_voucher(voucher: &Voucher, live: i64, found: &mut Vec<Breach>) {
    let (total, remaining) = (voucher.terms.total, voucher.remaining);
    if total != remaining.saturating_add(live) {
        found.push(Breach::Total { voucher: voucher.id.clone(), total, remaining, live });
    }
    if !(0..=total).contains(&remaining) {
        found.push(Breach::Bounds { voucher: voucher.id.clone(), total, remaining });
    }
}
