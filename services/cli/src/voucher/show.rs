//! `voucher show|list`: where vouchers stand, in Postgres and in Redis.

use anyhow::Context;
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
    let store = Store::connect(&connections.redis).await.context("cannot connect to Redis")?;
    let in_redis = store.voucher(&args.voucher).await?;
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
    if args.json {
        output::json(&vouchers)?;
        return Ok(OK);
    }
    let rows = vouchers.iter().map(|v| {
        [
            v.id.to_string(),
            v.state.as_str().to_owned(),
            v.terms.partition.to_string(),
            v.terms.total.to_string(),
            v.remaining.to_string(),
            v.seq.to_string(),
            time::format_instant(v.terms.begins_at),
            time::format_instant(v.terms.ends_at),
            v.terms.title.clone(),
        ]
    });
    output::table(["VOUCHER", "STATE", "PARTITION", "TOTAL", "LEFT", "SEQ", "BEGINS", "ENDS", "TITLE"], rows);
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
    outln!(
        "  Redis      gate {}, {}: {} = {} in stock + {} reserved + {} sold, last event {}",
        r.gate.as_str(),
        r.state.as_str(),
        r.total,
        r.stock,
        r.reserved,
        r.sold,
        r.seq
    );
}

fn redis_json(r: &VoucherInRedis) -> serde_json::Value {
    serde_json::json!({
        "state": r.state.as_str(), "gate": r.gate.as_str(), "total": r.total, "stock": r.stock, "reserved": r.reserved,
        "sold": r.sold, "seq": r.seq, "offset": r.offset, "partition": r.partition,
    })
}
