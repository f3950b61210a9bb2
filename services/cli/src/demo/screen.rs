//! The one screen at the end.

use std::path::Path;

use infra::config::Connections;

use super::{
    Args, Outcome,
    checks::Check,
    print_answers, print_quantiles,
    services::{Secrets, Services},
};
use crate::{
    audit::{COMPARED, print_verdict},
    output,
};

pub(super) fn print(args: &Args, outcome: &Outcome, logs: &Path) {
    let report = &outcome.report;
    let line = output::line;
    line("");
    let Args { units, users, seconds, seed, .. } = args;
    line(&output::bold(&format!("A sale of {units} units to {users} buyers within {seconds} s (seed {seed})")));
    line(&output::bold("answers"));
    print_answers(&report.answers);
    print_quantiles(&[("accept (202)", &report.accepted), ("any answer", &report.answered), ("event visible", &outcome.visible)]);
    outln!(
        "  all settled {:.1} s after the last answer; the buyers themselves cost {:.2} cores",
        outcome.settled_after.as_secs_f64(),
        report.cost.cores()
    );
    line(&output::bold("orders"));
    outln!("  {:>9}  rows in Postgres", outcome.order_rows);
    outln!("  {:>9}  confirmed", outcome.fates.confirmed());
    outln!("  {:>9}  rejected", outcome.fates.rejected());
    for v in &outcome.audit.vouchers {
        let [stock, reserved, sold] = [v.redis_stock, v.redis_reserved, v.redis_sold].map(output::or_dash);
        line(&output::bold("conservation"));
        outln!("  {:>9} = {stock} in stock + {reserved} reserved + {sold} sold, in Redis", v.total);
        outln!("  {:>9} = {} left + {} sold, in the log and in Postgres", v.total, v.remaining, v.sold);
    }
    print_verdict(&outcome.audit.verdict, COMPARED);
    outcome.checks.iter().for_each(print_check);
    outln!("logs: {}", logs.display());
}

/// What only the end of an open shop shows: the last check, and where the logs went.
pub(super) fn print_end(outcome: &Outcome, logs: &Path) {
    outcome.checks.last().into_iter().for_each(print_check);
    outln!("logs: {}", logs.display());
}

fn print_check(check: &Check) {
    let mark = if check.holds { output::green("holds ") } else { output::red("BROKEN") };
    outln!("{mark}  {}", check.what);
}

/// How to go on buying by hand.
pub(super) fn print_open(services: &Services, connections: &Connections, secrets: &Secrets) {
    let voucher = super::VOUCHER;
    let url = services.url();
    let c = connections;
    let doorbuster = std::env::current_exe().map_or("doorbuster".to_owned(), |path| path.display().to_string());
    let lines = [
        String::new(),
        output::bold("The shop stays open until Ctrl-C. In another terminal:"),
        format!("  export DOORBUSTER_KAFKA={} DOORBUSTER_REDIS={}", c.kafka, c.redis),
        format!("  export DOORBUSTER_POSTGRES={} DOORBUSTER_REGISTRY={}", c.postgres, c.registry),
        format!("  export DOORBUSTER_JWT_SECRET={}", secrets.jwt),
        format!("  {doorbuster} voucher stock {voucher} --delta 10 --apply    # everything was sold"),
        format!("  TOKEN=$({doorbuster} token you)"),
        format!("  curl {url}/v1/vouchers/{voucher}"),
        format!("  curl -i -X POST -H \"Authorization: Bearer $TOKEN\" {url}/v1/vouchers/{voucher}/orders"),
        "then the order, at the address that the answer names as its location:".to_owned(),
        format!("  curl -H \"Authorization: Bearer $TOKEN\" {url}/v1/vouchers/{voucher}/orders/ORDER_ID"),
    ];
    lines.iter().for_each(|line| output::line(line));
}
