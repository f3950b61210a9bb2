//! The one screen at the end.

use std::path::Path;

use infra::config::Connections;

use super::{
    Args, Outcome, print_answers, print_quantiles,
    services::{Secrets, Services},
};
use crate::{audit::print_verdict, load::TOKEN_VALID_MS, output, token};

pub(super) fn print(args: &Args, outcome: &Outcome, logs: &Path) {
    let report = &outcome.report;
    let line = output::line;
    line("");
    line(&output::bold(&format!(
        "A sale of {} units to {} buyers within {} s (seed {})",
        args.units, args.users, args.seconds, args.seed
    )));
    line(&output::bold("answers"));
    print_answers(&report.answers);
    print_quantiles(&[("accept (202)", &report.accepted), ("any answer", &report.answered), ("event visible", &outcome.visible)]);
    line(&format!(
        "  all settled {:.1} s after the last answer; the buyers themselves cost {:.2} cores",
        outcome.settled_after.as_secs_f64(),
        report.cost.cores()
    ));
    line(&output::bold("orders"));
    line(&format!("  {:>9}  rows in Postgres", outcome.order_rows));
    line(&format!("  {:>9}  confirmed", outcome.fates.confirmed()));
    line(&format!("  {:>9}  rejected", outcome.fates.rejected()));
    for v in &outcome.audit.vouchers {
        let or_dash = |number: Option<i64>| number.map_or("-".to_owned(), |n| n.to_string());
        let [stock, reserved, sold] = [v.redis_stock, v.redis_reserved, v.redis_sold].map(or_dash);
        line(&output::bold("conservation"));
        line(&format!("  {:>9} = {stock} in stock + {reserved} reserved + {sold} sold, in Redis", v.total));
        line(&format!("  {:>9} = {} left + {} sold, in the log and in Postgres", v.total, v.remaining, v.sold));
    }
    print_verdict(&outcome.audit.verdict);
    for check in &outcome.checks {
        let mark = if check.holds { output::green("holds ") } else { output::red("BROKEN") };
        line(&format!("{mark}  {}", check.what));
    }
    line(&format!("logs: {}", logs.display()));
}

/// How to go on buying by hand.
pub(super) fn print_open(services: &Services, connections: &Connections, secrets: &Secrets) {
    let voucher = super::VOUCHER;
    let url = services.url();
    let token = token::sign(&secrets.jwt, "you", TOKEN_VALID_MS).unwrap_or_else(|error| format!("<{error}>"));
    let c = connections;
    let lines = [
        String::new(),
        output::bold("The shop stays open until Ctrl-C."),
        format!("  TOKEN={token}"),
        format!("  curl {url}/v1/vouchers/{voucher}"),
        format!("  curl -i -X POST -H \"Authorization: Bearer $TOKEN\" {url}/v1/vouchers/{voucher}/orders"),
        format!("  curl -H \"Authorization: Bearer $TOKEN\" {url}/v1/vouchers/{voucher}/orders/ORDER_ID"),
        "For the other verbs in another terminal:".to_owned(),
        format!("  export DOORBUSTER_KAFKA={} DOORBUSTER_REDIS={}", c.kafka, c.redis),
        format!("  export DOORBUSTER_POSTGRES={} DOORBUSTER_REGISTRY={}", c.postgres, c.registry),
        format!("  doorbuster voucher stock {voucher} --delta 10 --apply"),
    ];
    lines.iter().for_each(|line| output::line(line));
}
