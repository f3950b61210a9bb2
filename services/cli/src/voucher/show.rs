//! `voucher show|list`: where vouchers stand, in Postgres and in Redis.

use domain::{Voucher, VoucherId};
use infra::redis::{Store, VoucherInRedis};

use crate::{DIFFERENT, OK, connect, output, time};

/// Show one voucher as Postgres and Redis have it
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster voucher show tv\n  doorbuster voucher show tv --json")]
pub(crate) struct Args {
    #[arg(value_parser = VoucherId::parse)]
    voucher: VoucherId,
    #[arg(long)]
    json: bool,
}

/// List all vouchers
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster voucher list\n  doorbuster voucher list --json")]
pub(crate) struct ListArgs {
    #[arg(long)]
    json: bool,
}

pub(super) async fn execute(args: Args) -> anyhow::Result<u8> {
    let connections = connect::connections()?;
    let pool = infra::postgres::pool(&connections, 1)?;
    let row = infra::postgres::voucher(&pool, &args.voucher).await?;
    let in_redis = Store::connect(&connections.redis).await?.voucher(&args.voucher).await?;
    if args.json {
        output::json(&serde_json::json!({ "postgres": row, "redis": in_redis.as_ref().map(redis_json) }))?;
    } else {
        match &row {
            Some(voucher) => print_row(voucher),
            None => output::line(&output::red(&format!("Postgres has no voucher {}", args.voucher))),
        }
        match &in_redis {
            Some(found) => print_redis(found),
            None => output::line(&output::red("Redis does not have it")),
        }
    }
    Ok(if row.is_some() { OK } else { DIFFERENT })
}

pub(super) async fn list(args: ListArgs) -> anyhow::Result<u8> {
    let pool = infra::postgres::pool(&connect::connections()?, 1)?;
    let vouchers = infra::postgres::vouchers(&pool, None).await?;
    output::show(args.json, &vouchers, |vouchers| {
        let rows = vouchers.iter().map(|v| {
            let (t, [begins, ends]) = (&v.terms, [v.terms.begins_at, v.terms.ends_at].map(time::format_instant));
            row![v.id, v.state.as_str(), t.partition, t.total, v.remaining, v.seq, begins, ends, t.title]
        });
        output::table(["VOUCHER", "STATE", "PARTITION", "TOTAL", "LEFT", "SEQ", "BEGINS", "ENDS", "TITLE"], rows);
        if vouchers.is_empty() {
            output::line("no vouchers");
        }
    })?;
    Ok(OK)
}

pub(crate) fn print_row(v: &Voucher) {
    let t = &v.terms;
    output::line(&output::bold(&format!("{}  {}", v.id, t.title)));
    outln!("  state      {} (terms version {})", v.state.as_str(), v.terms_version);
    outln!("  sale       {} to {}", time::format_instant(t.begins_at), time::format_instant(t.ends_at));
    outln!("  units      {} in all, {} left, {} per user, {} each", t.total, v.remaining, t.per_user_limit, t.price);
    let window = t.payment_window_ms.map_or("none".to_owned(), |ms| format!("{} s", ms / 1_000));
    outln!("  payment    window {window}");
    outln!("  partition  {}, last event {}", t.partition, v.seq);
}

fn print_redis(r: &VoucherInRedis) {
    let VoucherInRedis { gate, state, total, stock, reserved, sold, seq, .. } = r;
    let (gate, state) = (gate.as_str(), state.as_str());
    let sum = format!("{total} = {stock} in stock + {reserved} reserved + {sold} sold");
    outln!("  Redis      gate {gate}, {state}: {sum}, last event {seq}");
}

fn redis_json(r: &VoucherInRedis) -> serde_json::Value {
    serde_json::json!({
        "state": r.state.as_str(), "gate": r.gate.as_str(), "total": r.total, "stock": r.stock, "reserved": r.reserved,
        "sold": r.sold, "seq": r.seq, "offset": r.offset, "partition": r.partition,
    })
}
