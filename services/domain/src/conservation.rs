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

/// Checks I1 and I3 on one voucher, of whose orders the live ones claim so many units.
pub fn of_voucher(voucher: &Voucher, live: i64, found: &mut Vec<Breach>) {
    let (total, remaining) = (voucher.terms.total, voucher.remaining);
    if total != remaining.saturating_add(live) {
        found.push(Breach::Total { voucher: voucher.id.clone(), total, remaining, live });
    }
    if !(0..=total).contains(&remaining) {
        found.push(Breach::Bounds { voucher: voucher.id.clone(), total, remaining });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{order, order_id, payment, sale, terms, user, voucher_id};
    use crate::{OrderStatus, Terms};

    /// Ten units; ann has paid two, ben holds one, cy was rejected.
    fn sound() -> State {
        let log = sale(terms()).given(order("ann", 2)).given(payment("ann", "p1", 3_998)).given(order("ben", 1));
        log.when(order("cy", 3)).state().clone()
    }

    fn plant(change: impl FnOnce(&mut State)) -> Vec<Breach> {
        let mut state = sound();
        change(&mut state);
        breaches(&state)
    }

    fn voucher(state: &mut State) -> &mut Voucher {
        state.vouchers.get_mut(&voucher_id()).unwrap()
    }

    fn total(total: i64, remaining: i64, live: i64) -> Breach {
        Breach::Total { voucher: voucher_id(), total, remaining, live }
    }

    fn held(name: &str, noted: i64, held: i64) -> Breach {
        Breach::Held { voucher: voucher_id(), user: user(name), noted, held }
    }

    fn note(state: &mut State, name: &str, units: i64) {
        state.held.insert((voucher_id(), user(name)), units);
    }

    #[test]
    fn a_sound_state_has_no_breach() {
        assert_eq!(breaches(&State::default()), []);
        assert_eq!(plant(|_| {}), []);
    }

    #[test]
    fn a_lost_unit_and_a_doubled_one_are_found() {
        assert_eq!(plant(|s| voucher(s).remaining -= 1), [total(10, 6, 3)]);
        assert_eq!(plant(|s| voucher(s).remaining += 1), [total(10, 8, 3)]);
        assert_eq!(plant(|s| voucher(s).terms.total += 1), [total(11, 7, 3)]);
    }

    #[test]
    fn a_lost_order_is_found() {
        let found = plant(|s| drop(s.orders.remove(&order_id("ben"))));
        assert_eq!(found, [total(10, 7, 2), held("ben", 1, 0)]);
    }

    #[test]
    fn an_order_that_came_to_life_again_is_found() {
        let found = plant(|s| s.orders.get_mut(&order_id("cy")).unwrap().status = OrderStatus::Confirmed);
        let limit = Breach::Limit { voucher: voucher_id(), user: user("cy"), held: 3, limit: 2 };
        assert_eq!(found, [total(10, 7, 6), limit, held("cy", 0, 3)]);
    }

    #[test]
    fn an_order_that_died_without_giving_back_is_found() {
        let found = plant(|s| s.orders.get_mut(&order_id("ann")).unwrap().status = OrderStatus::Expired);
        assert_eq!(found, [total(10, 7, 1), held("ann", 2, 0)]);
    }

    #[test]
    fn what_remains_outside_its_bounds_is_found() {
        let bounds = |remaining| Breach::Bounds { voucher: voucher_id(), total: 10, remaining };
        assert_eq!(plant(|s| voucher(s).remaining = -1), [bounds(-1), total(10, -1, 3)]);
        assert_eq!(plant(|s| voucher(s).remaining = 11), [bounds(11), total(10, 11, 3)]);
        let sold_out = sale(Terms { total: 2, ..terms() }).when(order("ann", 2));
        assert_eq!(breaches(sold_out.state()), []);
        let untouched = sale(terms());
        assert_eq!(breaches(untouched.when_unreadable().state()), []);
    }

    #[test]
    fn units_beyond_the_limit_are_found() {
        let found = plant(|s| voucher(s).terms.per_user_limit = 1);
        assert_eq!(found, [Breach::Limit { voucher: voucher_id(), user: user("ann"), held: 2, limit: 1 }]);
    }

    #[test]
    fn a_wrong_note_of_what_a_user_holds_is_found_once() {
        assert_eq!(plant(|s| note(s, "ann", 1)), [held("ann", 1, 2)]);
        assert_eq!(plant(|s| note(s, "dan", 1)), [held("dan", 1, 0)]);
        assert_eq!(plant(|s| s.held.clear()), [held("ann", 0, 2), held("ben", 0, 1)]);
    }

    #[test]
    fn orders_of_a_voucher_that_is_none_are_found() {
        let found = plant(|s| s.vouchers.clear());
        let limit = |name: &str, held| Breach::Limit { voucher: voucher_id(), user: user(name), held, limit: 0 };
        assert_eq!(found, [limit("ann", 2), limit("ben", 1)]);
    }

    #[test]
    fn absurd_numbers_are_found_and_do_not_overflow() {
        let found = plant(|s| {
            s.orders.values_mut().for_each(|order| {
                order.quantity = i64::MAX;
                order.status = OrderStatus::Paid;
            });
            voucher(s).remaining = i64::MAX;
        });
        assert!(found.contains(&total(10, i64::MAX, i64::MAX)), "{found:?}");
    }
}
