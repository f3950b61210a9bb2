//! Plain counting of units: in the log event by event, in the tables row by row, in Redis. It knows what the words mean and no rule; so it
//! cannot share a mistake with the code that decides.

use std::collections::{HashMap, HashSet};

use domain::{Event, EventBody, OrderId, UserId, VoucherId};

use super::{
    Findings, Promise, Subject,
    stores::{InRedis, Stores},
};

/// Counts everywhere.
pub(super) fn count(stores: &Stores, findings: &mut Findings) {
    let sold = in_log(&stores.events, findings);
    in_tables(stores, &sold, findings);
    for (id, found) in &stores.redis {
        let sold = sold.get(id).map_or(0, Sold::units);
        in_redis(id, found, sold, findings);
    }
}

/// One voucher as far as the events have gone.
#[derive(Default)]
struct Sold {
    total: i64,
    limit: i64,
    live: HashMap<OrderId, (UserId, i64)>,
    by_user: HashMap<UserId, i64>,
    /// Confirmed or rejected once.
    decided: HashSet<OrderId>,
    last_seq: i64,
}

impl Sold {
    fn units(&self) -> i64 {
        self.by_user.values().sum()
    }
}

/// Follows every voucher through its events; names the first order with which something breaks.
fn in_log(events: &[(Event, i64)], findings: &mut Findings) -> HashMap<VoucherId, Sold> {
    let mut vouchers: HashMap<VoucherId, Sold> = HashMap::new();
    let mut answered = HashSet::new();
    for (event, offset) in events {
        let place = format!("event {offset} of partition {}", event.partition);
        if !answered.insert((event.partition, event.request_offset)) {
            let subject = event.body.order_id().map_or(Subject::Whole, Subject::Order);
            let what = format!("{place} answers request {} a second time{}", event.request_offset, about(event));
            findings.broken(Promise::Replay, subject, what);
        }
        let Some(id) = event.voucher_id.as_ref().filter(|_| event.voucher_seq > 0) else { continue };
        let sold = vouchers.entry(id.clone()).or_default();
        if event.voucher_seq != sold.last_seq + 1 {
            let what =
                format!("voucher {id}: {place} has voucher_seq {} after {}{}", event.voucher_seq, sold.last_seq, about(event));
            findings.broken(Promise::Replay, Subject::Voucher(id.clone()), what);
        }
        sold.last_seq = sold.last_seq.max(event.voucher_seq);
        follow(id, sold, event, &place, findings);
    }
    vouchers
}

fn about(event: &Event) -> String {
    event.body.order_id().map_or_else(String::new, |order| format!(" (about order {order})"))
}

fn follow(id: &VoucherId, sold: &mut Sold, event: &Event, place: &str, findings: &mut Findings) {
    match &event.body {
        EventBody::VoucherOpened(terms) => (sold.total, sold.limit) = (terms.total, terms.per_user_limit),
        EventBody::VoucherChanged { total, .. } => {
            sold.total = *total;
            if sold.units() > *total {
                let what = format!("voucher {id}: {place} leaves {total} units of which {} are sold", sold.units());
                findings.broken(Promise::Bounds, Subject::Voucher(id.clone()), what);
            }
        }
        EventBody::OrderConfirmed { order_id, user_id, quantity, .. } => {
            let order = Subject::Order(*order_id);
            if !sold.decided.insert(*order_id) {
                let what = format!("{place} decides order {order_id} of voucher {id} a second time");
                return findings.broken(Promise::NoLimbo, order, what);
            }
            sold.live.insert(*order_id, (user_id.clone(), *quantity));
            let held = sold.by_user.entry(user_id.clone()).or_default();
            *held += quantity;
            if *held > sold.limit {
                let what = format!(
                    "order {order_id} ({place}) gives user {user_id} {held} units of voucher {id}, which allows {}",
                    sold.limit
                );
                findings.broken(Promise::Limit, order.clone(), what);
            }
            if sold.units() > sold.total {
                let what = format!(
                    "order {order_id} ({place}) makes {} units sold of voucher {id}, which has {}",
                    sold.units(),
                    sold.total
                );
                findings.broken(Promise::Conservation, order, what);
            }
        }
        EventBody::OrderRejected { order_id, .. } => {
            if !sold.decided.insert(*order_id) {
                let what = format!("{place} decides order {order_id} of voucher {id} a second time");
                findings.broken(Promise::NoLimbo, Subject::Order(*order_id), what);
            }
        }
        EventBody::OrderCancelled { order_id, .. } | EventBody::OrderExpired { order_id, .. } => {
            match sold.live.remove(order_id) {
                Some((user, quantity)) => *sold.by_user.entry(user).or_default() -= quantity,
                None => {
                    let what = format!("{place} gives back the units of order {order_id}, which has none");
                    findings.broken(Promise::Conservation, Subject::Order(*order_id), what);
                }
            }
        }
        EventBody::OrderPaid { .. } | EventBody::RequestRepeated { .. } | EventBody::RequestRefused { .. } => {}
    }
}

/// The rows: total = remaining + live orders, within bounds and limits, and as many units as the log has sold.
fn in_tables(stores: &Stores, by_log: &HashMap<VoucherId, Sold>, findings: &mut Findings) {
    let mut live: HashMap<&VoucherId, i64> = HashMap::new();
    let mut held: HashMap<(&VoucherId, &UserId), i64> = HashMap::new();
    for order in stores.orders.values().filter(|order| order.status.is_live()) {
        *live.entry(&order.voucher_id).or_default() += order.quantity;
        *held.entry((&order.voucher_id, &order.user_id)).or_default() += order.quantity;
    }
    for (id, row) in &stores.vouchers {
        let (total, remaining) = (row.terms.total, row.remaining);
        let live = live.get(id).copied().unwrap_or(0);
        let sold = by_log.get(id).map_or(0, Sold::units);
        if total != remaining + live || live != sold {
            let what = format!(
                "voucher {id} in Postgres: {total} units in all, {remaining} left, {live} in live orders; {sold} sold by the log"
            );
            findings.broken(Promise::Conservation, Subject::Voucher(id.clone()), what);
        }
        if !(0..=total).contains(&live) {
            let what = format!("voucher {id} in Postgres: {live} units in live orders of {total} in all");
            findings.broken(Promise::Bounds, Subject::Voucher(id.clone()), what);
        }
    }
    for ((id, user), units) in held {
        let limit = stores.vouchers.get(id).map_or(0, |row| row.terms.per_user_limit);
        if units > limit {
            let what = format!("user {user} has live orders of {units} units of voucher {id} in Postgres, which allows {limit}");
            findings.broken(Promise::Limit, Subject::Voucher(id.clone()), what);
        }
    }
}

fn in_redis(id: &VoucherId, found: &InRedis, sold: i64, findings: &mut Findings) {
    let InRedis { voucher, reservations, held } = found;
    let mut broken = |promise, what| {
        findings.broken(promise, Subject::Voucher(id.clone()), format!("voucher {id} in Redis: {what}"));
    };
    let (total, stock) = (voucher.total, voucher.stock);
    if total != stock + voucher.reserved + voucher.sold || voucher.sold != sold {
        let what = format!(
            "{total} units in all, {stock} in stock, {} reserved, {} sold; {sold} sold by the log",
            voucher.reserved, voucher.sold
        );
        broken(Promise::Conservation, what);
    }
    if !(0..=total).contains(&stock) {
        broken(Promise::Bounds, format!("{stock} units in stock of {total} in all"));
    }
    let reserved: i64 = reservations.iter().map(|reservation| reservation.quantity).sum();
    if reserved != voucher.reserved {
        broken(Promise::Conservation, format!("{} units reserved, but the reservations hold {reserved}", voucher.reserved));
    }
    let all: i64 = held.iter().map(|(_, units)| units).sum();
    if all != voucher.reserved + voucher.sold {
        let what = format!("users hold {all} units, but {} are reserved and {} sold", voucher.reserved, voucher.sold);
        broken(Promise::Conservation, what);
    }
    for (user, units) in held.iter().filter(|(_, units)| *units > voucher.per_user_limit) {
        broken(Promise::Limit, format!("user {user} holds {units} units, {} are allowed", voucher.per_user_limit));
    }
}
