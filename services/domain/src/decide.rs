//! What is decided about a request. The tables of `docs/ARCHITECTURE.md` ("What decide says"), first line that fits.

use crate::{
    CancelledBy, Event, EventBody, LoggedRequest, Money, Order, OrderId, OrderStatus, RefusalReason, RejectReason, Request,
    RequestBody, RequestKind, State, Terms, Timestamp, UserId, Voucher, VoucherState,
};

/// Version of these rules, stored in every event, so that a replay knows which rules decided.
pub const RULES_VERSION: i32 = 1;

/// Largest total of a voucher. Far below 2^53, so that Redis' Lua, whose numbers are doubles, counts exactly.
pub const MAX_TOTAL: i64 = 1_000_000_000;

/// Milliseconds by which Redis' clock may run ahead of the broker's before an order counts as requested in the future.
pub const ALLOWED_SKEW_MS: i64 = 5_000;

/// Longest title, in bytes.
const MAX_TITLE: usize = 512;

/// Longest payment reference, in bytes.
const MAX_PAYMENT_REF: usize = 256;

/// Decides one request on the facts. Every request gives exactly one event; the same facts and request always give the same.
///
/// `facts` must hold what the request names (see [`State`]): its voucher, its order, its buyer's units, its payment. The caller
/// applies the event with [`State::evolve`] before it decides the next request.
pub fn decide(facts: &State, logged: &LoggedRequest) -> Event {
    let event = |request: Option<&Request>, seq, remaining, held, body| Event {
        voucher_id: request.map(|r| r.voucher_id.clone()),
        voucher_seq: seq,
        partition: logged.partition,
        request_offset: logged.offset,
        request_id: request.map(|r| r.id).unwrap_or_default(),
        decided_at: logged.appended_at,
        rules_version: RULES_VERSION,
        remaining,
        held,
        body,
    };
    let Some(request) = &logged.request else {
        return event(None, 0, 0, 0, refused(RequestKind::Unreadable, None, RefusalReason::Unreadable));
    };
    let here = facts.vouchers.get(&request.voucher_id).filter(|v| v.terms.partition == logged.partition);
    match (here, &request.body) {
        (None, RequestBody::VoucherPublished(terms)) => {
            let kind = RequestKind::VoucherPublished;
            if facts.vouchers.contains_key(&request.voucher_id) {
                event(Some(request), 0, 0, 0, refused(kind, None, RefusalReason::AlreadyPublished))
            } else if make_sense(terms, logged.partition) {
                event(Some(request), 1, terms.total, 0, EventBody::VoucherOpened(terms.clone()))
            } else {
                event(Some(request), 0, 0, 0, refused(kind, None, RefusalReason::InvalidTerms))
            }
        }
        (None, body) => event(Some(request), 0, 0, 0, refused(body.kind(), body.order_id(), RefusalReason::UnknownVoucher)),
        (Some(voucher), body) => {
            let decided = sequenced(facts, voucher, body, logged);
            event(Some(request), voucher.seq + 1, voucher.remaining + decided.freed, decided.held, decided.body)
        }
    }
}

/// A decision with what it changes: units that come free (negative: are taken), and what the buyer holds afterwards.
struct Decided {
    body: EventBody,
    freed: i64,
    held: i64,
}

impl Decided {
    fn about_nobody(body: EventBody, freed: i64) -> Self {
        Self { body, freed, held: 0 }
    }
}

fn refused(kind: RequestKind, order_id: Option<OrderId>, reason: RefusalReason) -> EventBody {
    EventBody::RequestRefused { kind, order_id, reason, due_back: None }
}

/// Decides a request of a voucher that lives on this partition.
fn sequenced(facts: &State, voucher: &Voucher, body: &RequestBody, logged: &LoggedRequest) -> Decided {
    match body {
        RequestBody::VoucherPublished(_) => Decided::about_nobody(refused(body.kind(), None, RefusalReason::AlreadyPublished), 0),
        RequestBody::StockChanged { expected_terms_version, .. }
        | RequestBody::VoucherPaused { expected_terms_version }
        | RequestBody::VoucherResumed { expected_terms_version }
        | RequestBody::VoucherClosed { expected_terms_version } => match change(voucher, body, *expected_terms_version) {
            Ok((state, total)) => Decided::about_nobody(
                EventBody::VoucherChanged { state, total, terms_version: voucher.terms_version + 1 },
                total - voucher.terms.total,
            ),
            Err(reason) => Decided::about_nobody(refused(body.kind(), None, reason), 0),
        },
        RequestBody::OrderRequested { order_id, user_id, quantity, requested_at } => {
            order(facts, voucher, *order_id, user_id, *quantity, *requested_at, logged.appended_at)
        }
        RequestBody::CancellationRequested { order_id, by } => {
            about_order(facts, voucher, body, *order_id, |order| cancel(voucher, order, *by))
        }
        RequestBody::PaymentReceived { order_id, payment_ref, amount, paid_at } => {
            payment(facts, voucher, *order_id, payment_ref, amount, *paid_at)
        }
        RequestBody::PaymentWindowElapsed { order_id } => {
            about_order(facts, voucher, body, *order_id, |order| elapsed(order, logged.appended_at))
        }
    }
}

/// The voucher's state and total after a change of terms.
fn change(voucher: &Voucher, body: &RequestBody, expected: i64) -> Result<(VoucherState, i64), RefusalReason> {
    if expected != voucher.terms_version {
        return Err(RefusalReason::StaleTerms);
    }
    if voucher.state == VoucherState::Closed {
        return Err(RefusalReason::Closed);
    }
    let total = voucher.terms.total;
    let (state, new_total) = match body {
        RequestBody::StockChanged { delta, .. } => {
            let new_total = total.checked_add(*delta).ok_or(RefusalReason::InvalidTerms)?;
            (voucher.state, new_total)
        }
        RequestBody::VoucherPaused { .. } => (VoucherState::Paused, total),
        RequestBody::VoucherResumed { .. } => (VoucherState::Open, total),
        _ => (VoucherState::Closed, total),
    };
    if (state, new_total) == (voucher.state, total) {
        Err(RefusalReason::NoChange)
    } else if new_total < total - voucher.remaining {
        Err(RefusalReason::BelowSold)
    } else if !(1..=MAX_TOTAL).contains(&new_total) {
        Err(RefusalReason::InvalidTerms)
    } else {
        Ok((state, new_total))
    }
}

fn order(
    facts: &State,
    voucher: &Voucher,
    order_id: OrderId,
    user_id: &UserId,
    quantity: i64,
    requested_at: Timestamp,
    appended_at: Timestamp,
) -> Decided {
    if let Some(order) = facts.order_of(&voucher.id, &order_id) {
        return repeated(facts, order);
    }
    if !order_id.belongs_to(&voucher.id) {
        let kind = RequestKind::OrderRequested;
        return Decided::about_nobody(refused(kind, Some(order_id), RefusalReason::Invalid), 0);
    }
    let held = facts.held_by(&voucher.id, user_id);
    let on_sale = voucher.terms.begins_at <= requested_at
        && requested_at < voucher.terms.ends_at
        && requested_at <= appended_at.plus(ALLOWED_SKEW_MS);
    let reason = if quantity < 1 || !user_id.is_valid() {
        Some(RejectReason::Invalid)
    } else if !on_sale {
        Some(RejectReason::NotOnSale)
    } else if voucher.state == VoucherState::Closed {
        Some(RejectReason::Closed)
    } else if quantity > voucher.terms.per_user_limit - held {
        Some(RejectReason::LimitReached)
    } else if quantity > voucher.remaining {
        Some(RejectReason::SoldOut)
    } else {
        None
    };
    match reason {
        Some(reason) => {
            // What no store could hold would stop the lane at this record for ever.
            let user_id = if user_id.is_valid() { user_id.clone() } else { user_id.stripped() };
            let requested_at = requested_at.within_calendar();
            Decided { body: EventBody::OrderRejected { order_id, user_id, quantity, requested_at, reason }, freed: 0, held }
        }
        None => {
            let expires_at = voucher.terms.payment_window_ms.map(|window| appended_at.plus(window));
            let slot = if voucher.terms.per_user_limit == 1 { 0 } else { voucher.seq + 1 };
            Decided {
                body: EventBody::OrderConfirmed { order_id, user_id: user_id.clone(), quantity, requested_at, expires_at, slot },
                freed: -quantity,
                held: held + quantity,
            }
        }
    }
}

fn repeated(facts: &State, order: &Order) -> Decided {
    let body = EventBody::RequestRepeated { order_id: order.id, user_id: order.user_id.clone(), status: order.status };
    Decided { body, freed: 0, held: facts.held_by(&order.voucher_id, &order.user_id) }
}

/// Runs `rule` on the order a request names, or refuses the request because this voucher has no such order.
fn about_order(
    facts: &State,
    voucher: &Voucher,
    body: &RequestBody,
    order_id: OrderId,
    rule: impl FnOnce(&Order) -> Result<(EventBody, i64), RefusalReason>,
) -> Decided {
    let Some(order) = facts.order_of(&voucher.id, &order_id) else {
        return Decided::about_nobody(refused(body.kind(), Some(order_id), RefusalReason::UnknownOrder), 0);
    };
    let held = facts.held_by(&voucher.id, &order.user_id);
    match rule(order) {
        Ok((body, freed)) => Decided { body, freed, held: held - freed },
        Err(reason) => Decided { body: refused(body.kind(), Some(order_id), reason), freed: 0, held },
    }
}

fn cancel(voucher: &Voucher, order: &Order, by: CancelledBy) -> Result<(EventBody, i64), RefusalReason> {
    let due_back = match (order.status, by) {
        (OrderStatus::Confirmed, _) => None,
        (OrderStatus::Paid, CancelledBy::Seller) => voucher.terms.price.times(order.quantity),
        _ => return Err(RefusalReason::Final),
    };
    let (order_id, user_id, quantity) = (order.id, order.user_id.clone(), order.quantity);
    Ok((EventBody::OrderCancelled { order_id, user_id, quantity, by, due_back }, quantity))
}

fn elapsed(order: &Order, now: Timestamp) -> Result<(EventBody, i64), RefusalReason> {
    match (order.status, order.expires_at) {
        (OrderStatus::Confirmed, Some(expires_at)) if now >= expires_at => {
            let (order_id, user_id, quantity) = (order.id, order.user_id.clone(), order.quantity);
            Ok((EventBody::OrderExpired { order_id, user_id, quantity }, quantity))
        }
        (OrderStatus::Confirmed, _) => Err(RefusalReason::TooEarly),
        _ => Err(RefusalReason::Final),
    }
}

fn payment(
    facts: &State,
    voucher: &Voucher,
    order_id: OrderId,
    payment_ref: &str,
    amount: &Money,
    paid_at: Timestamp,
) -> Decided {
    let seen = facts.payments.get(&(voucher.id.clone(), payment_ref.to_owned()));
    if let Some(order) = seen.and_then(|paid| facts.order_of(&voucher.id, paid)) {
        return repeated(facts, order);
    }
    let order = facts.order_of(&voucher.id, &order_id);
    let held = order.map_or(0, |o| facts.held_by(&voucher.id, &o.user_id));
    let refuse = |reason| Decided {
        body: EventBody::RequestRefused {
            kind: RequestKind::PaymentReceived,
            order_id: Some(order_id),
            reason,
            due_back: amount.has_valid_currency().then(|| amount.clone()),
        },
        freed: 0,
        held,
    };
    if !(1..=MAX_PAYMENT_REF).contains(&payment_ref.len()) || payment_ref.chars().any(char::is_control) {
        return refuse(RefusalReason::Invalid);
    }
    let Some(order) = order else { return refuse(RefusalReason::UnknownOrder) };
    if voucher.terms.price.times(order.quantity).as_ref() != Some(amount) {
        return refuse(RefusalReason::WrongAmount);
    }
    match order.status {
        OrderStatus::Confirmed => Decided {
            body: EventBody::OrderPaid {
                order_id,
                user_id: order.user_id.clone(),
                quantity: order.quantity,
                payment_ref: payment_ref.to_owned(),
                amount: amount.clone(),
                // The provider's clock decides nothing here, so an absurd one is no reason to refuse money.
                paid_at: paid_at.within_calendar(),
            },
            freed: 0,
            held,
        },
        OrderStatus::Paid => refuse(RefusalReason::AlreadyPaid),
        _ => refuse(RefusalReason::PaymentTooLate),
    }
}

/// Whether a voucher can be sold under these terms on this partition, and none of its sums can overflow.
fn make_sense(terms: &Terms, partition: i32) -> bool {
    terms.partition == partition
        && terms.title.len() <= MAX_TITLE
        && !terms.title.chars().any(char::is_control)
        && (1..=MAX_TOTAL).contains(&terms.total)
        && (1..=terms.total).contains(&terms.per_user_limit)
        && terms.begins_at < terms.ends_at
        && Timestamp::CALENDAR.contains(&terms.begins_at)
        && Timestamp::CALENDAR.contains(&terms.ends_at)
        && terms.price.minor >= 0
        && terms.price.has_valid_currency()
        && terms.price.times(MAX_TOTAL).is_some()
        && terms.payment_window_ms.is_none_or(|window| (1..=MAX_PAYMENT_WINDOW_MS).contains(&window))
}

/// Ten years: longer than any sale, short enough that no sum of instants leaves the calendar.
const MAX_PAYMENT_WINDOW_MS: i64 = 10 * 366 * 24 * 3_600_000;

#[cfg(test)]
mod tests;
