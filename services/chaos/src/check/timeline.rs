//! What happened to one order or voucher, from all sources, in order of time.

use domain::{Event, OrderId, RequestBody, VoucherId};

use super::{
    Subject,
    answers::Asked,
    stores::{InRedis, Stores},
};
use crate::ledger::{Book, Call, Outcome, What};

/// Lines of one timeline; of a longer one the middle is left out.
const LINES: usize = 60;

/// One line and its instant in seconds since the start of the run; what stands there at the end has none.
type Line = (f64, String);

pub(super) fn of(subject: &Subject, book: &Book, asked: &Asked, stores: &Stores) -> Vec<String> {
    let mut lines = match subject {
        Subject::Order(order) => of_order(order, book, asked, stores),
        Subject::Voucher(voucher) => of_voucher(voucher, book, stores),
        Subject::Whole => Vec::new(),
    };
    lines.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut told: Vec<String> = lines
        .into_iter()
        .map(|(at, line)| if at.is_finite() { format!("{at:+9.3} s  {line}") } else { format!("   at rest   {line}") })
        .collect();
    if told.len() > LINES {
        let left_out = told.len() - LINES;
        told.splice(LINES / 2..LINES / 2 + left_out, [format!("             ... {left_out} lines ...")]);
    }
    told
}

fn of_order(order: &OrderId, book: &Book, asked: &Asked, stores: &Stores) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    lines.extend(asked.calls.get(order).into_iter().flatten().flat_map(|call| of_call(call, book)));
    for request in &stores.requests {
        if let Some(body) = request.request.as_ref().map(|r| &r.body).filter(|body| body.order_id() == Some(*order)) {
            let line = format!("request {} of partition {}: {body:?}", request.offset, request.partition);
            lines.push((book.seconds_since_start(request.appended_at), line));
        }
    }
    lines.extend(stores.events.iter().filter(|(e, _)| e.body.order_id() == Some(*order)).map(|e| of_event(e, book)));
    let voucher = stores.redis.iter().find(|(id, _)| order.belongs_to(id));
    let reservation = voucher.and_then(|(_, found)| found.reservations.iter().find(|r| r.order_id == *order));
    lines.push(at_rest("Redis", reservation.map(|reservation| format!("{reservation:?}")), "no reservation"));
    lines.push(at_rest("Postgres", stores.orders.get(order).map(|row| format!("{row:?}")), "no row"));
    lines
}

fn of_voucher(voucher: &VoucherId, book: &Book, stores: &Stores) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for deed in book.deeds.iter().filter(|deed| deed.voucher == *voucher) {
        let begun = book.since_start(deed.begun).as_secs_f64();
        let took = deed.ended.saturating_duration_since(deed.begun).as_secs_f64();
        lines.push((begun, format!("keeper: {:?}: {:?} after {took:.3} s", deed.change, deed.done)));
    }
    for request in &stores.requests {
        let Some(request_of) = request.request.as_ref().filter(|r| r.voucher_id == *voucher) else { continue };
        if !matches!(request_of.body, RequestBody::OrderRequested { .. }) {
            let line = format!("request {} of partition {}: {:?}", request.offset, request.partition, request_of.body);
            lines.push((book.seconds_since_start(request.appended_at), line));
        }
    }
    let events = stores.events.iter().filter(|(event, _)| event.voucher_id.as_ref() == Some(voucher));
    lines.extend(events.filter(|(event, _)| event.body.order_id().is_none()).map(|event| of_event(event, book)));
    let found = stores.redis.get(voucher).map(|InRedis { voucher, reservations, held }| {
        format!("{voucher:?}, {} reservations, {} holders", reservations.len(), held.len())
    });
    lines.push(at_rest("Redis", found, "nothing"));
    lines.push(at_rest("Postgres", stores.vouchers.get(voucher).map(|row| format!("{row:?}")), "no row"));
    lines
}

/// When it was asked and when it was answered.
fn of_call(call: &Call, book: &Book) -> [Line; 2] {
    let (user, purchase) = (&call.user, call.purchase);
    let what = match &call.what {
        What::Purchase { quantity, key } => {
            let key = key.as_ref().map_or_else(String::new, |key| format!(" under key {key}"));
            format!("{quantity} units of {}{key}", call.voucher)
        }
        What::Status(_) => "its status".to_owned(),
        What::Nonsense(what) => format!("nonsense ({what})"),
    };
    let answer = match &call.outcome {
        Outcome::Accepted { status: None, .. } => "accepted, pending".to_owned(),
        Outcome::Accepted { status: Some(status), .. } => format!("accepted, {}", status.as_str()),
        Outcome::Refused { code } => format!("refused, {code}"),
        Outcome::Busy => "busy".to_owned(),
        Outcome::Unknown(why) => format!("no answer, {why}"),
    };
    let at = |instant| book.since_start(instant).as_secs_f64();
    let took = at(call.ended) - at(call.begun);
    [
        (at(call.begun), format!("{user} asks purchase {purchase} for {what}")),
        (at(call.ended), format!("{user} is answered by purchase {purchase} after {took:.3} s: {answer}")),
    ]
}

fn of_event((event, offset): &(Event, i64), book: &Book) -> Line {
    let line = format!(
        "event {offset} of partition {} (seq {}, answers request {}): {:?}",
        event.partition, event.voucher_seq, event.request_offset, event.body
    );
    (book.seconds_since_start(event.decided_at), line)
}

fn at_rest(store: &str, found: Option<String>, nothing: &str) -> Line {
    (f64::INFINITY, format!("{store}: {}", found.as_deref().unwrap_or(nothing)))
}
