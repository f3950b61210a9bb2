//! `load`: lets buyers come to a running shop.

use std::time::Duration;

use domain::VoucherId;
use indicatif::ProgressBar;
use load::{Buyer, Plan, Progress, Report, Shape};

use crate::{OK, UNKNOWN, connect, output, time, token};

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
    #[arg(long = "url", required = true, value_parser = address)]
    urls: Vec<String>,
    /// Buyers, each with a name of his own
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    users: u32,
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
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    double_clicks: f64,
    /// Tries after overload, an error or no answer
    #[arg(long, default_value_t = 0)]
    retries: u32,
    /// Units each asks for; without: one
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..))]
    quantity: Option<i64>,
    /// Most connections at once
    #[arg(long, default_value_t = CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
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
pub(crate) const CONNECTIONS: u32 = 256;

/// How long a buyer's token is good: longer than any run.
const TOKEN_VALID: Duration = Duration::from_secs(6 * 3_600);

pub(crate) async fn execute(args: Args) -> anyhow::Result<u8> {
    let secret = connect::env().required("DOORBUSTER_JWT_SECRET", "the secret that purchase checks tokens with")?;
    let plan = Plan {
        urls: args.urls,
        voucher: args.voucher.to_string(),
        quantity: args.quantity,
        window: args.window,
        shape: args.shape,
        double_clicks: args.double_clicks,
        retries: args.retries,
        connections: args.connections as usize,
        timeout: args.timeout,
        seed: args.seed,
    };
    let buyers = buyers(&secret, &args.name, args.users)?;
    let report = come(&plan, buyers).await?;
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
    if report.answered.count() == 0 {
        eprintln!("doorbuster: nobody got an answer: does purchase listen at the address of --url?");
        return Ok(UNKNOWN);
    }
    Ok(OK)
}

fn address(text: &str) -> Result<String, String> {
    let is_one = ["http://", "https://"].iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|host| !host.is_empty()));
    if is_one { Ok(text.to_owned()) } else { Err("http://HOST:PORT is needed".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "a share from 0 to 1 is needed".to_owned())
}

/// Buyers `NAME-0`, `NAME-1`, ... with their tokens.
pub(crate) fn buyers(secret: &str, name: &str, count: u32) -> anyhow::Result<Vec<Buyer>> {
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
    let (cpu, wall, cores) = (report.cost.cpu.as_secs_f64(), report.cost.wall.as_secs_f64(), report.cost.cores());
    outln!("the buyers themselves cost {cpu:.1} s of processor time in {wall:.1} s ({cores:.2} cores)");
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
        let ms = |share| output::or_dash(quantiles.at(share).map(|d| format!("{:.1}", d.as_secs_f64() * 1e3)));
        outln!("  {name:<16}{:>9}{:>12}{:>12}{:>12}", quantiles.count(), ms(0.5), ms(0.99), ms(0.999));
    }
}

/// Lets them come, with a line on stderr that moves meanwhile; nothing where that is no terminal.
pub(crate) async fn come(plan: &Plan, buyers: Vec<Buyer>) -> anyhow::Result<Report> {
    let bar = ProgressBar::new(buyers.len() as u64);
    output::style(&bar, "{elapsed_precise} [{bar:40}] {pos}/{len} buyers  {msg}");
    let report = load::run(plan, buyers, |Progress { arrived, accepted, refused, failed, .. }| {
        bar.set_position(arrived as u64);
        bar.set_message(format!("{accepted} accepted, {refused} refused, {failed} failed"));
    });
    let report = report.await?;
    bar.finish_and_clear();
    Ok(report)
}
