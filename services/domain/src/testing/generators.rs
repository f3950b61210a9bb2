//! Random logs of requests: few vouchers, users and tries, so that they meet each other all the time; bounds and nonsense among them.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use uuid::Uuid;

use super::{a_voucher, order_id_of, user};
use crate::{CancelledBy, LoggedRequest, Money, OrderId, Request, RequestBody, Terms, Timestamp, VoucherId};

/// The vouchers that a log is about, by number; the last is never published.
const VOUCHERS: [&str; 3] = ["spring", "summer", "never"];

/// The users, by number: two that look alike, one that no store can hold.
const USERS: [&str; 4] = ["7", "007", "Zoë", "a\0b"];

/// Partitions of both topics. Voucher number n belongs into partition n.
const PARTITIONS: i32 = 2;

/// Sales begin and end within this many milliseconds.
const HORIZON: i64 = 1_000;

/// A log of up to `len` requests after the vouchers were published, in the order in which they are decided. Offsets count per
/// partition from 0, without gaps; the log's clock mostly goes forward.
pub fn logs(len: usize) -> impl Strategy<Value = Vec<LoggedRequest>> {
    let published = (terms(0), terms(1)).prop_map(|(spring, summer)| {
        [(0, spring), (1, summer)].map(|(number, terms)| {
            let body = RequestBody::VoucherPublished(terms);
            (number, 0, Some((a_voucher(VOUCHERS[number as usize]), body)))
        })
    });
    (published, vec(step(), 0..=len)).prop_map(|(published, steps)| {
        let (mut offsets, mut now) = ([0; PARTITIONS as usize], 0);
        published
            .into_iter()
            .chain(steps)
            .enumerate()
            .map(|(at, (partition, later, body))| {
                now += later;
                let offset = offsets[partition as usize];
                offsets[partition as usize] += 1;
                let id = Uuid::from_u128(1 + at as u128);
                let request = body.map(|(voucher_id, body)| Request { id, voucher_id, actor: "test".into(), reason: None, body });
                LoggedRequest { partition, offset, appended_at: Timestamp(now), request }
            })
            .collect()
    })
}

/// Where a request is found, how much later than the one before, and what it says.
type Step = (i32, i64, Option<(VoucherId, RequestBody)>);

fn step() -> impl Strategy<Value = Step> {
    let later = prop_oneof![8 => 0..30i64, 1 => -20..0i64, 1 => 30..400i64];
    // Most are where they belong; a misdirected one is found in the other partition.
    let misdirected = prop::bool::weighted(0.05);
    let voucher = prop_oneof![10 => 0..2usize, 1 => Just(2)];
    let readable = (misdirected, voucher).prop_flat_map(|(misdirected, voucher)| {
        let home = voucher as i32 % PARTITIONS;
        let partition = if misdirected { 1 - home } else { home };
        body(voucher).prop_map(move |body| (partition, Some((a_voucher(VOUCHERS[voucher]), body))))
    });
    let unreadable = (0..PARTITIONS).prop_map(|partition| (partition, None));
    (later, prop_oneof![30 => readable, 1 => unreadable]).prop_map(|(later, (partition, said))| (partition, later, said))
}

fn body(voucher: usize) -> impl Strategy<Value = RequestBody> {
    // Nothing else says what a voucher's terms_version is, so the small ones are tried.
    let version = || prop_oneof![6 => 1..4i64, 1 => any::<i64>()];
    let delta = prop_oneof![6 => -6..7i64, 1 => extremes()];
    prop_oneof![
        14 => ordered(voucher),
        4 => (order(voucher), by()).prop_map(|(order_id, by)| RequestBody::CancellationRequested { order_id, by }),
        9 => paid(voucher),
        4 => order(voucher).prop_map(|order_id| RequestBody::PaymentWindowElapsed { order_id }),
        3 => (delta, version()).prop_map(|(delta, expected_terms_version)| RequestBody::StockChanged { delta, expected_terms_version }),
        1 => version().prop_map(|expected_terms_version| RequestBody::VoucherPaused { expected_terms_version }),
        1 => version().prop_map(|expected_terms_version| RequestBody::VoucherResumed { expected_terms_version }),
        1 => prop_oneof![1 => Just(1i64), 9 => 50..60i64]
            .prop_map(|expected_terms_version| RequestBody::VoucherClosed { expected_terms_version }),
        1 => terms(voucher as i32 % PARTITIONS).prop_map(RequestBody::VoucherPublished),
    ]
}

fn extremes() -> impl Strategy<Value = i64> {
    select(vec![i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX])
}

/// An order of the voucher, or now and then of the other.
fn order(voucher: usize) -> impl Strategy<Value = OrderId> {
    (prop::bool::weighted(0.04), 0..USERS.len(), select(vec!["1", "2"])).prop_map(move |(foreign, user, attempt)| {
        let voucher = if foreign { (voucher + 1) % VOUCHERS.len() } else { voucher };
        order_id_of(&a_voucher(VOUCHERS[voucher]), USERS[user], attempt)
    })
}

fn ordered(voucher: usize) -> impl Strategy<Value = RequestBody> {
    let quantity = prop_oneof![6 => Just(1), 8 => 1..4i64, 1 => extremes()];
    let requested_at = prop_oneof![12 => 0..HORIZON, 1 => extremes(), 1 => 5_000..7_000i64];
    let user_and_try = prop_oneof![9 => 0..3usize, 1 => Just(3)];
    (order(voucher), prop::bool::weighted(0.9), user_and_try, select(vec!["1", "2"]), quantity, requested_at).prop_map(
        move |(any_order, honest, of, attempt, quantity, requested_at)| {
            let own = order_id_of(&a_voucher(VOUCHERS[voucher]), USERS[of], attempt);
            let order_id = if honest { own } else { any_order };
            RequestBody::OrderRequested { order_id, user_id: user(USERS[of]), quantity, requested_at: Timestamp(requested_at) }
        },
    )
}

fn by() -> impl Strategy<Value = CancelledBy> {
    select(vec![CancelledBy::Buyer, CancelledBy::Seller])
}

fn paid(voucher: usize) -> impl Strategy<Value = RequestBody> {
    let units = prop_oneof![6 => Just(1), 9 => 1..4i64, 1 => Just(7)];
    let currency = prop_oneof![9 => Just("EUR"), 1 => Just("euro")];
    let payment_ref = prop_oneof![20 => select(vec!["p1", "p2", "p3"]), 1 => select(vec!["", "a\0b"])];
    (order(voucher), units, currency, payment_ref, any::<i64>()).prop_map(|(order_id, units, currency, payment_ref, paid_at)| {
        let amount = Money::new(units * PRICE, currency);
        RequestBody::PaymentReceived { order_id, payment_ref: payment_ref.into(), amount, paid_at: Timestamp(paid_at) }
    })
}

/// Price of one unit, in minor units of EUR.
const PRICE: i64 = 100;

fn terms(partition: i32) -> impl Strategy<Value = Terms> {
    let sensible = (1..9i64, 1..4i64, 0..HORIZON / 4, 1..HORIZON, option::of(1..300i64)).prop_map(
        move |(total, limit, begins_at, lasts, payment_window_ms)| Terms {
            title: "Dinner for two".into(),
            total,
            per_user_limit: limit.min(total),
            begins_at: Timestamp(begins_at),
            ends_at: Timestamp(begins_at + lasts),
            price: Money::new(PRICE, "EUR"),
            payment_window_ms,
            partition,
        },
    );
    prop_oneof![30 => sensible.clone(), 1 => (sensible, extremes()).prop_map(|(terms, total)| Terms { total, ..terms })]
}
