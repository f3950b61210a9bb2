//! `load`: lets buyers come to a running shop.

use std::time::Duration;

use anyhow::ensure;
use domain::VoucherId;
use indicatif::{ProgressBar, ProgressStyle};
use load::{Buyer, Plan, Progress, Report, Shape};

use crate::{OK, connect, output, time, token};

const EXAMPLES: &str = "\
Buyers come by a schedule, whether or not the shop keeps up; latencies count from the instant each meant to click.
Their tokens are signed with DOORBUSTER_JWT_SECRET.

Examples:
  doorbuster load tv --url http://127.0.0.1:8080 --users 1000 --window 10s
  doorbuster load tv --url http://127.0.0.1:8080 --users 20000 --window 10s --shape rush --double-clicks 0.1 --retries 3 --json";

/// Let buyers come, by an open-loop schedule
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[arg(value_parser = VoucherId::parse)]
    voucher: VoucherId,
    /// Where purchase listens; several times: in turn
    #[arg(long = "url", required = true)]
    urls: Vec<String>,
    /// Buyers, each with a name of his own
    #[arg(long, default_value_t = 1_000)]
    users: usize,
    /// Begins their names, so that a second run brings other people
    #[arg(long, default_value = "user")]
    name: String,
    /// All of them come within this time
    #[arg(long, default_value = "10s", value_parser = time::parse_duration)]
    window: Duration,
    /// Their rate: even all the time, ramp (grows from nothing) or rush (falls to nothing)
    #[arg(long, default_value = "even")]
    shape: Shape,
    /// Share of buyers who click twice, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    double_clicks: f64,
    /// Tries after overload, an error or no answer
    #[arg(long, default_value_t = 0)]
    retries: u32,
    /// Units each asks for; without: one
    #[arg(long)]
    quantity: Option<i64>,
    /// Most connections at once
    #[arg(long, default_value_t = CONNECTIONS)]
    connections: usize,
    /// For one answer
    #[arg(long, default_value = "15s", value_parser = time::parse_duration)]
    timeout: Duration,
    /// Decides who comes when
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long)]
    json: bool,
}

/// Enough for 2,000 answers a second of 100 ms each, few enough for the usual limit of 1,024 open files.
pub(crate) const CONNECTIONS: usize = 256;

/// How long a buyer's token is good: longer than any run.
const TOKEN_VALID: Duration = Duration::from_secs(6 * 3_600);

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    ensure!((0.0..=1.0).contains(&args.double_clicks), "--double-clicks is a share from 0 to 1");
    let secret = connect::env().required("DOORBUSTER_JWT_SECRET", "the secret that purchase checks tokens with")?;
    let plan = Plan {
        urls: args.urls,
        voucher: args.voucher.to_string(),
        quantity: args.quantity,
        window: args.window,
        shape: args.shape,
        double_clicks: args.double_clicks,
        retries: args.retries,
        connections: args.connections,
        timeout: args.timeout,
        seed: args.seed,
    };
    let buyers = buyers(&secret, &args.name, args.users)?;
    let live = Live::new(args.users);
    let report = load::run(&plan, buyers, |p| live.show(p)).await?;
    live.done();
    if args.json {
        output::json(&serde_json::json!({
            "answers": report.answers,
            "accepted_buyers": report.accepted_buyers(),
            "accept": report.accepted,
            "answer": report.answered,
            "cpu_seconds": report.cost.cpu.as_secs_f64(),
            "wall_seconds": report.cost.wall.as_secs_f64(),
        }))?;
    } else {
        print(&report);
    }
    Ok(OK)
}

/// Buyers `NAME-0`, `NAME-1`, ... with their tokens.
pub(crate) fn buyers(secret: &str, name: &str, count: usize) -> anyhow::Result<Vec<Buyer>> {
    let buyer = |i| {
        let user = format!("{name}-{i}");
        Ok(Buyer { token: token::sign(secret, &user, TOKEN_VALID)?, user })
    };
    (0..count).map(buyer).collect()
}

fn print(report: &Report) {
    let total: u64 = report.answers.values().sum();
    output::line(&output::bold(&format!("{} buyers, {total} answers", report.visits.len())));
    print_answers(&report.answers);
    print_quantiles(&[("accept", &report.accepted), ("any answer", &report.answered)]);
    outln!(
        "the buyers themselves cost {:.1} s of processor time in {:.1} s ({:.2} cores)",
        report.cost.cpu.as_secs_f64(),
        report.cost.wall.as_secs_f64(),
        report.cost.cores()
    );
}

/// Answers by kind, the most frequent first.
pub(crate) fn print_answers(answers: &std::collections::BTreeMap<String, u64>) {
    let mut kinds: Vec<_> = answers.iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    kinds.iter().for_each(|(kind, count)| outln!("  {count:>9}  {kind}"));
}

/// One line a distribution.
pub(crate) fn print_quantiles(lines: &[(&str, &load::Quantiles)]) {
    output::line(&output::bold(&format!("  {:<16}{:>9}{:>12}{:>12}{:>12}", "latency (ms)", "count", "p50", "p99", "p99.9")));
    for (name, quantiles) in lines {
        let ms = |share| quantiles.at(share).map_or("-".to_owned(), |d| format!("{:.1}", d.as_secs_f64() * 1e3));
        outln!("  {name:<16}{:>9}{:>12}{:>12}{:>12}", quantiles.count(), ms(0.5), ms(0.99), ms(0.999));
    }
}

/// The line that moves while buyers come; nothing where stderr is no terminal.
pub(crate) struct Live(ProgressBar);

impl Live {
    pub(crate) fn new(buyers: usize) -> Self {
        let bar = ProgressBar::new(buyers as u64);
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:40}] {pos}/{len} buyers  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }

    pub(crate) fn show(&self, p: Progress) {
        self.0.set_position(p.arrived as u64);
        self.0.set_message(format!("{} accepted, {} refused, {} failed", p.accepted, p.refused, p.failed));
    }

    pub(crate) fn done(&self) {
        self.0.finish_and_clear();
    }
}
