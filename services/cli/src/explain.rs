//! `explain`: one order's story, from the log, Redis and Postgres.

use domain::{Event, EventBody, Order, OrderId, RequestBody, Timestamp};
use replay::{ExplainOptions, Explained, Looked, Step};

use crate::{DIFFERENT, OK, UNKNOWN, connect, output, time};

const EXAMPLES: &str = "\
The order's requests and events are found by offset and instant; no topic is scanned. From the order's request, from its last change and from
its reservation on, --look requests are looked through for others about it: repeats, refusals, payments. What stands further behind is found
with --deep. An order of which neither Postgres nor Redis knows (refused as invalid, not arrived, forgotten) is looked for from --since on.
A request whose bytes nobody can read names no order: `doorbuster tail requests` shows it.

Exit code: 0 explained; 1 the log and the row contradict each other; 2 something was not found, was deleted, or could not be asked.

Examples:
  doorbuster explain 2f1c9ad0-63b1-8c5e-9d3a-5b2f0c6e7a41
  doorbuster explain 2f1c9ad0-63b1-8c5e-9d3a-5b2f0c6e7a41 --deep --json
  doorbuster explain 2f1c9ad0-63b1-8c5e-9d3a-5b2f0c6e7a41 --since 2026-11-27T09:00:00+01:00";

/// Requests looked through without a word about it: those of the first moments after the order's own.
const LOOK: i64 = 1_000;
/// And from an instant that somebody remembers.
const LOOK_SINCE: i64 = 100_000;

/// Tell one order's story: reservation, request, decision, and what became of it
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[arg(value_parser = OrderId::parse)]
    order: OrderId,
    /// Look for it from this instant on, too: -10m, or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = time::parse_instant)]
    since: Option<Timestamp>,
    /// Requests to look through from each place [default: 1000, with --since 100000]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(i64).range(1..))]
    look: Option<i64>,
    /// Look through all requests from the first place to the end of the log
    #[arg(long, conflicts_with = "look")]
    deep: bool,
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    let (connections, codec) = connect::log().await?;
    let look = args.look.unwrap_or(if args.since.is_some() { LOOK_SINCE } else { LOOK });
    let options = ExplainOptions { look, deep: args.deep, since: args.since };
    let told = replay::explain(&connections, &codec, args.order, &options).await?;
    output::show(args.json, &told, print)?;
    Ok(match (&told.wrong[..], &told.unknown[..]) {
        ([], []) => OK,
        ([], _) => UNKNOWN,
        _ => DIFFERENT,
    })
}

fn print(told: &Explained) {
    let voucher = told.voucher.as_ref().map_or("of no voucher that Postgres has".to_owned(), |v| {
        let (begins, ends) = (time::format_instant(v.terms.begins_at), time::format_instant(v.terms.ends_at));
        format!("voucher {}, {} a user, on sale {begins} to {ends}", v.id, v.terms.per_user_limit)
    });
    output::line(&output::bold(&format!("order {}  {voucher}", told.order_id)));
    if told.steps.is_empty()
        && let Some(at) = told.reservation().map(|r| r.requested_at).or(told.row.as_ref().map(|row| row.requested_at))
    {
        happened(at, "reserved", "by Redis' clock");
    }
    told.steps.iter().for_each(|step| print_step(step, told.row.as_ref()));
    print_now(told);
    for Looked { partition, from, to, end } in &told.looked_through {
        outln!("looked through requests {from}..{to} of partition {partition}, which ends at {end}");
    }
    outln!("{} records were read", told.records_read);
    told.notes.iter().for_each(|note| outln!("{note}"));
    told.wrong.iter().chain(&told.unknown).for_each(|problem| output::line(&output::red(problem)));
}

fn happened(at: Timestamp, what: &str, more: &str) {
    outln!("  {:<24}  {what:<12}  {more}", time::format_instant(at));
}

fn print_step(step: &Step, row: Option<&Order>) {
    let request = &step.request;
    if let RequestBody::OrderRequested { user_id, quantity, requested_at, .. } = &request.body {
        happened(*requested_at, "reserved", &format!("{quantity} for {user_id}, by Redis' clock"));
    }
    let asked = match &request.body {
        RequestBody::OrderRequested { .. } => "OrderRequested".to_owned(),
        RequestBody::CancellationRequested { by, .. } => format!("CancellationRequested, for the {}", by.as_str()),
        RequestBody::PaymentReceived { payment_ref, amount, paid_at, .. } => {
            format!("PaymentReceived {payment_ref:?}, {amount}, paid {}", time::format_instant(*paid_at))
        }
        other => format!("{:?}", other.kind()),
    };
    let why = request.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
    let place = format!("offset {} of order-requests[{}], by {}{why}", step.offset, step.partition, request.actor);
    happened(step.appended_at, "request", &format!("{asked}: {place}"));
    let Some(answer) = &step.answer else {
        let is_decided = row.is_some_and(|row| (row.partition, row.request_offset) == (step.partition, step.offset));
        let (what, more) = match (step.is_answer_deleted, is_decided) {
            (true, _) => ("deleted", "its event is no longer in the log"),
            (false, true) => ("decided", "its event is not in the log yet: the orders service publishes it when it runs"),
            (false, false) => ("not decided", "or not published yet: `doorbuster lag` shows how far the lanes are"),
        };
        return happened(step.appended_at, what, more);
    };
    happened(answer.event.decided_at, "decided", &decided(&answer.event));
    if let Some(why) = &answer.why {
        happened(answer.event.decided_at, "", &format!("because {why}"));
    }
    let seq = match answer.event.voucher_seq {
        0 => String::new(),
        seq => format!(", event {seq} of the voucher"),
    };
    let settled = match answer.settled {
        Some(true) => ", settled in Redis",
        Some(false) => ", not settled in Redis yet",
        None => "",
    };
    happened(answer.appended_at, "event", &format!("offset {} of order-events[{}]{seq}{settled}", answer.offset, step.partition));
}

/// The decision, with what it saw.
fn decided(event: &Event) -> String {
    let Event { body, remaining, held, rules_version, .. } = event;
    format!("{}; after it {remaining} left, the buyer holds {held}; rules {rules_version}", said(body))
}

/// An answer of the log in a few words.
pub(crate) fn said(body: &EventBody) -> String {
    match body {
        EventBody::OrderConfirmed { expires_at: Some(at), .. } => {
            format!("OrderConfirmed, to be paid by {}", time::format_instant(*at))
        }
        EventBody::OrderRejected { reason, .. } => format!("OrderRejected {}", reason.as_str()),
        EventBody::OrderCancelled { due_back: Some(due), .. } => format!("OrderCancelled, {due} due back"),
        EventBody::RequestRepeated { status, .. } => format!("RequestRepeated, the order was {}", status.as_str()),
        EventBody::RequestRefused { reason, due_back, .. } => {
            let due = due_back.as_ref().map_or(String::new(), |due| format!(", {due} due back"));
            format!("RequestRefused {}{due}", reason.as_str())
        }
        other => other.name().to_owned(),
    }
}

fn print_now(told: &Explained) {
    let redis = match &told.redis {
        None => "not asked".to_owned(),
        Some(redis) => {
            let at = match (redis.voucher_seq, redis.gate) {
                (Some(seq), Some(gate)) => format!("voucher at event {seq}, gate {gate}"),
                _ => "does not have the voucher".to_owned(),
            };
            let held = redis.reservation.as_ref().map_or("no reservation".to_owned(), |r| {
                format!("{} reserved for {} since {}", r.quantity, r.user_id, time::format_instant(r.requested_at))
            });
            format!("{at}; {held}")
        }
    };
    outln!("  now in Redis     {redis}");
    outln!("  now in Postgres  {}", told.row.as_ref().map_or("no row".to_owned(), row));
}

fn row(row: &Order) -> String {
    let reason = row.reason.map_or(String::new(), |reason| format!(" ({})", reason.as_str()));
    let paid = row.payment_ref.as_ref().map_or(String::new(), |reference| format!(", payment {reference:?}"));
    let changed = time::format_instant(row.changed_at);
    let status = row.status.as_str();
    format!(
        "{status}{reason}, {} for {}{paid}; last changed by event {} at {changed}",
        row.quantity, row.user_id, row.voucher_seq
    )
}
