//! Publishing a voucher and changing its terms.

use crate::testing::{BEGINS, ENDS, Given, PARTITION, a_voucher, nothing, order, order_id, payment, sale, terms, voucher_id};
use crate::{CancelledBy, EventBody, MAX_TOTAL, Money, RefusalReason, RequestBody, RequestKind, Terms, Timestamp, VoucherState};

fn stock(delta: i64, expected_terms_version: i64) -> RequestBody {
    RequestBody::StockChanged { delta, expected_terms_version }
}

fn pause(expected_terms_version: i64) -> RequestBody {
    RequestBody::VoucherPaused { expected_terms_version }
}

fn resume(expected_terms_version: i64) -> RequestBody {
    RequestBody::VoucherResumed { expected_terms_version }
}

fn close(expected_terms_version: i64) -> RequestBody {
    RequestBody::VoucherClosed { expected_terms_version }
}

fn changed(state: VoucherState, total: i64, terms_version: i64) -> EventBody {
    EventBody::VoucherChanged { state, total, terms_version }
}

#[test]
fn a_published_voucher_is_opened_with_its_terms() {
    let decided = nothing().when(RequestBody::VoucherPublished(terms()));
    let decided = decided.then(EventBody::VoucherOpened(terms())).with_seq(1).leaves(10, 0);
    let voucher = &decided.state().vouchers[&voucher_id()];
    assert_eq!((voucher.state, voucher.terms_version, voucher.seq, voucher.remaining), (VoucherState::Open, 1, 1, 10));
}

#[test]
fn an_id_is_taken_for_good() {
    let again = || RequestBody::VoucherPublished(terms());
    let taken = RefusalReason::AlreadyPublished;
    sale(terms()).when(again()).then_refused(RequestKind::VoucherPublished, None, taken).with_seq(2).leaves(10, 0);
    let closed = sale(terms()).given(order("ann", 2)).given(close(1));
    closed.when(again()).then_refused(RequestKind::VoucherPublished, None, taken).with_seq(4).leaves(8, 0);
}

#[test]
fn an_id_is_taken_on_every_partition() {
    let elsewhere = RequestBody::VoucherPublished(Terms { partition: PARTITION + 1, ..terms() });
    let decided = sale(terms()).in_partition(PARTITION + 1).when(elsewhere).outside_the_sequence();
    decided.then_refused(RequestKind::VoucherPublished, None, RefusalReason::AlreadyPublished);
}

#[test]
fn terms_that_make_no_sense_are_refused() {
    let price = |minor, currency: &str| Money::new(minor, currency);
    let calendar = Timestamp::CALENDAR;
    let bad = [
        Terms { partition: PARTITION + 1, ..terms() },
        Terms { title: "x".repeat(513), ..terms() },
        Terms { title: "a\0b".into(), ..terms() },
        Terms { title: "a\nb".into(), ..terms() },
        Terms { total: 0, per_user_limit: 0, ..terms() },
        Terms { total: i64::MIN, ..terms() },
        Terms { total: MAX_TOTAL + 1, ..terms() },
        Terms { total: i64::MAX, ..terms() },
        Terms { per_user_limit: 0, ..terms() },
        Terms { per_user_limit: 11, ..terms() },
        Terms { per_user_limit: i64::MAX, ..terms() },
        Terms { ends_at: BEGINS, ..terms() },
        Terms { begins_at: ENDS.plus(1), ..terms() },
        Terms { begins_at: calendar.start().plus(-1), ..terms() },
        Terms { begins_at: Timestamp(i64::MIN), ..terms() },
        Terms { ends_at: calendar.end().plus(1), ..terms() },
        Terms { ends_at: Timestamp(i64::MAX), ..terms() },
        Terms { price: price(-1, "EUR"), ..terms() },
        Terms { price: price(i64::MIN, "EUR"), ..terms() },
        Terms { price: price(i64::MAX / MAX_TOTAL + 1, "EUR"), ..terms() },
        Terms { price: price(i64::MAX, "EUR"), ..terms() },
        Terms { price: price(1, ""), ..terms() },
        Terms { price: price(1, "eur"), ..terms() },
        Terms { price: price(1, "EURO"), ..terms() },
        Terms { price: price(1, "E\0R"), ..terms() },
        Terms { payment_window_ms: Some(0), ..terms() },
        Terms { payment_window_ms: Some(i64::MIN), ..terms() },
        Terms { payment_window_ms: Some(10 * 366 * 24 * 3_600_000 + 1), ..terms() },
        Terms { payment_window_ms: Some(i64::MAX), ..terms() },
    ];
    for terms in bad {
        let decided = nothing().when(RequestBody::VoucherPublished(terms)).outside_the_sequence();
        decided.then_refused(RequestKind::VoucherPublished, None, RefusalReason::InvalidTerms);
    }
}

#[test]
fn terms_at_their_bounds_are_accepted() {
    let calendar = Timestamp::CALENDAR;
    let good = [
        Terms { title: String::new(), ..terms() },
        Terms { title: "x".repeat(512), ..terms() },
        Terms { total: 1, per_user_limit: 1, ..terms() },
        Terms { total: MAX_TOTAL, per_user_limit: MAX_TOTAL, ..terms() },
        Terms { per_user_limit: 10, ..terms() },
        Terms { begins_at: *calendar.start(), ends_at: *calendar.end(), ..terms() },
        Terms { ends_at: BEGINS.plus(1), ..terms() },
        Terms { price: Money::new(0, "JPY"), ..terms() },
        Terms { price: Money::new(i64::MAX / MAX_TOTAL, "EUR"), ..terms() },
        Terms { payment_window_ms: Some(1), ..terms() },
        Terms { payment_window_ms: Some(10 * 366 * 24 * 3_600_000), ..terms() },
    ];
    for terms in good {
        let total = terms.total;
        let decided = nothing().when(RequestBody::VoucherPublished(terms.clone()));
        decided.then(EventBody::VoucherOpened(terms)).with_seq(1).leaves(total, 0);
    }
}

#[test]
fn refused_terms_leave_the_id_free() {
    let bad = RequestBody::VoucherPublished(Terms { total: 0, ..terms() });
    nothing().given(bad).when(RequestBody::VoucherPublished(terms())).then(EventBody::VoucherOpened(terms())).with_seq(1);
}

#[test]
fn nothing_but_publishing_reaches_a_voucher_that_this_partition_does_not_have() {
    let requests = [
        stock(1, 1),
        pause(1),
        resume(1),
        close(1),
        order("ann", 1),
        RequestBody::CancellationRequested { order_id: order_id("ann"), by: CancelledBy::Seller },
        payment("ann", "p1", 1_999),
        RequestBody::PaymentWindowElapsed { order_id: order_id("ann") },
    ];
    for body in requests {
        let (kind, order_id) = (body.kind(), body.order_id());
        let sold = || sale(terms()).given(order("ann", 1));
        for log in [nothing(), sold().about("winter"), sold().in_partition(PARTITION + 1)] {
            let decided = log.when(body.clone()).outside_the_sequence();
            decided.then_refused(kind, order_id, RefusalReason::UnknownVoucher);
        }
    }
}

#[test]
fn vouchers_of_one_partition_do_not_meet() {
    let both = sale(terms()).given(order("ann", 2)).about("winter").given(RequestBody::VoucherPublished(terms()));
    let decided = both.when(pause(1)).then(changed(VoucherState::Paused, 10, 2)).with_seq(2).leaves(10, 0);
    assert_eq!(decided.state().vouchers[&voucher_id()].state, VoucherState::Open);
    assert_eq!(decided.event().voucher_id, Some(a_voucher("winter")));
}

#[test]
fn stock_grows_and_shrinks() {
    let sold = || sale(terms()).given(order("ann", 2));
    sold().when(stock(5, 1)).then(changed(VoucherState::Open, 15, 2)).with_seq(3).leaves(13, 0);
    sold().when(stock(-3, 1)).then(changed(VoucherState::Open, 7, 2)).leaves(5, 0);
    sold().when(stock(-8, 1)).then(changed(VoucherState::Open, 2, 2)).leaves(0, 0);
    sold().when(stock(MAX_TOTAL - 10, 1)).then(changed(VoucherState::Open, MAX_TOTAL, 2)).leaves(MAX_TOTAL - 2, 0);
}

#[test]
fn stock_keeps_the_state_it_finds() {
    sale(terms()).given(pause(1)).when(stock(1, 2)).then(changed(VoucherState::Paused, 11, 3));
}

#[test]
fn stock_never_falls_below_what_is_sold() {
    for delta in [-9, -10, -11, i64::MIN, i64::MIN + 1] {
        let decided = sale(terms()).given(order("ann", 2)).when(stock(delta, 1)).with_seq(3).leaves(8, 0);
        decided.then_refused(RequestKind::StockChanged, None, RefusalReason::BelowSold);
    }
}

#[test]
fn a_total_stays_within_what_terms_may_say() {
    for delta in [-10, MAX_TOTAL - 9, i64::MAX - 10, i64::MAX - 9, i64::MAX] {
        let decided = sale(terms()).when(stock(delta, 1)).with_seq(2).leaves(10, 0);
        decided.then_refused(RequestKind::StockChanged, None, RefusalReason::InvalidTerms);
    }
    sale(terms()).when(stock(-9, 1)).then(changed(VoucherState::Open, 1, 2)).leaves(1, 0);
}

#[test]
fn a_voucher_pauses_resumes_and_closes() {
    let paused = sale(terms()).when(pause(1)).then(changed(VoucherState::Paused, 10, 2)).with_seq(2).leaves(10, 0).and();
    let resumed = paused.clone().when(resume(2)).then(changed(VoucherState::Open, 10, 3)).with_seq(3).leaves(10, 0).and();
    resumed.when(close(3)).then(changed(VoucherState::Closed, 10, 4)).with_seq(4).leaves(10, 0);
    paused.when(close(2)).then(changed(VoucherState::Closed, 10, 3));
}

#[test]
fn what_is_already_so_is_no_change() {
    let no_change = |log: Given, body: RequestBody| {
        let kind = body.kind();
        log.when(body).then_refused(kind, None, RefusalReason::NoChange).leaves(10, 0);
    };
    no_change(sale(terms()), stock(0, 1));
    no_change(sale(terms()), resume(1));
    no_change(sale(terms()).given(pause(1)), pause(2));
}

#[test]
fn a_change_against_other_terms_is_refused() {
    for version in [i64::MIN, 0, 1, 3, i64::MAX] {
        for body in [stock(1, version), stock(0, version), pause(version), resume(version), close(version)] {
            let (kind, log) = (body.kind(), sale(terms()).given(stock(5, 1)));
            log.when(body).then_refused(kind, None, RefusalReason::StaleTerms).with_seq(3).leaves(15, 0);
        }
    }
}

#[test]
fn a_repeated_change_is_not_applied_twice() {
    let decided = sale(terms()).given(stock(5, 1)).when(stock(5, 1));
    decided.then_refused(RequestKind::StockChanged, None, RefusalReason::StaleTerms).leaves(15, 0);
}

#[test]
fn a_closed_voucher_never_changes_again() {
    for body in [stock(1, 2), stock(0, 2), stock(i64::MIN, 2), pause(2), resume(2), close(2)] {
        let (kind, log) = (body.kind(), sale(terms()).given(close(1)));
        log.when(body).then_refused(kind, None, RefusalReason::Closed).with_seq(3).leaves(10, 0);
    }
    let stale = sale(terms()).given(close(1)).when(stock(1, 1));
    stale.then_refused(RequestKind::StockChanged, None, RefusalReason::StaleTerms);
}
