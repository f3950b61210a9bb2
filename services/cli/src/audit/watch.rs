//! `audit --watch`: one round after the other, each told in a line and in the metrics.

use std::sync::Arc;

use anyhow::Context;
use infra::{shutdown, telemetry};
use replay::{Audit, Auditor, Verdict};
use tokio::{
    select,
    time::{MissedTickBehavior, interval},
};

use super::{Args, COMPARED, code_of, metrics::Metrics, on_its_way, print_verdict};
use crate::{UNKNOWN, connect, output, time};

/// Until SIGTERM or SIGINT, which cut a round short. Gives the exit code of the last round.
pub(super) async fn watch(args: &Args, mut auditor: Auditor) -> anyhow::Result<u8> {
    telemetry::init_logs();
    let stop = shutdown::on_signals()?;
    let (metrics, registry) = Metrics::new();
    if let Some(listen) = args.listen {
        let address = telemetry::serve_admin(listen, Arc::new(registry), Arc::new(|| Ok(())), stop.clone()).await;
        let address = address.with_context(|| format!("cannot listen on --listen {listen}"))?;
        telemetry::announce(&connect::env(), &[("admin", address)])?;
    }
    let mut rounds = interval(args.every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut code, mut before) = (UNKNOWN, Verdict::Equal);
    loop {
        let round = async {
            rounds.tick().await;
            auditor.audit().await
        };
        let audit = select! {
            biased;
            () = stop.cancelled() => return Ok(code),
            audit = round => audit,
        };
        metrics.told(&audit, time::now());
        code = code_of(&audit.verdict);
        if args.json {
            output::line(&serde_json::to_string(&audit)?);
        } else {
            tell(&audit, &before);
        }
        before = audit.verdict;
    }
}

/// A line, and what is different where that is news.
fn tell(audit: &Audit, before: &Verdict) {
    let word = match audit.verdict {
        Verdict::Equal => output::green("equal"),
        Verdict::Different { .. } => output::red("different"),
        Verdict::CannotTell { .. } => output::red("could not tell"),
    };
    let (now, vouchers, on_its_way) = (time::format_instant(time::now()), audit.vouchers.len(), on_its_way(audit));
    let Audit { events, drift_units, seconds, .. } = audit;
    outln!("{now} {word}: {vouchers} vouchers, {events} events; {on_its_way}; drift {drift_units} units; {seconds:.1} s");
    if audit.verdict != Verdict::Equal && audit.verdict != *before {
        print_verdict(&audit.verdict, COMPARED);
    }
}
