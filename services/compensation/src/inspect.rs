//! What is wrong with one voucher: a pure function of its row in Postgres and its hash in Redis.

use domain::Voucher;
use infra::redis::{Gate, VoucherInRedis};

use crate::partition::Reason;

/// What the warden thinks of one voucher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Sound,
    Repair(Reason),
    /// A key cannot be read.
    Damaged(String),
    /// Conservation does not hold.
    Breach(String),
    /// Waits for `doorbuster voucher thaw`.
    Frozen,
}

/// Judges a voucher whose keys are readable. `owed`: the seq to which Redis must have come, as it was seen there before or as Postgres
/// said at a moment up to which everything is settled; 0: none.
pub(crate) fn inspect(row: &Voucher, found: Option<&VoucherInRedis>, owed: i64) -> Finding {
    let Some(found) = found else {
        // One that was only just published is on its way.
        return if owed > 0 { Finding::Repair(Reason::Missing) } else { Finding::Sound };
    };
    if found.rebuild {
        return Finding::Repair(Reason::Asked);
    }
    if found.gate == Gate::Frozen {
        return Finding::Frozen;
    }
    if let Some(problem) = breach(row, found) {
        return Finding::Breach(problem);
    }
    if found.seq < owed {
        return Finding::Repair(Reason::Behind);
    }
    if found.gate == Gate::Warming {
        return Finding::Repair(Reason::Warming);
    }
    Finding::Sound
}

fn breach(row: &Voucher, found: &VoucherInRedis) -> Option<String> {
    if !is_balanced(found) {
        let VoucherInRedis { total, stock, reserved, sold, .. } = found;
        return Some(format!("total {total} is not stock {stock} + reserved {reserved} + sold {sold}"));
    }
    if units_unlike(row, found) != 0 {
        let (seq, sold, total) = (row.seq, row.terms.total - row.remaining, row.terms.total);
        return Some(format!("at seq {seq} Redis has sold {} of {}, Postgres {sold} of {total}", found.sold, found.total));
    }
    (row.seq == found.seq && row.state != found.state).then(|| {
        let (in_redis, in_postgres) = (found.state.as_str(), row.state.as_str());
        format!("at seq {} the voucher is {in_redis} in Redis and {in_postgres} in Postgres", row.seq)
    })
}

/// Whether a voucher's own counters add up.
pub(crate) fn is_balanced(found: &VoucherInRedis) -> bool {
    found.total == found.stock + found.reserved + found.sold
}

/// Units that Redis and Postgres count differently at the same seq; 0 at different ones.
pub(crate) fn units_unlike(row: &Voucher, found: &VoucherInRedis) -> i64 {
    if row.seq != found.seq {
        return 0;
    }
    (found.total - row.terms.total).abs() + (found.sold - (row.terms.total - row.remaining)).abs()
}

/// The sum of what Redis holds, which may be anything.
pub(crate) fn sum(units: impl IntoIterator<Item = i64>) -> i64 {
    units.into_iter().fold(0, i64::saturating_add)
}

/// What is wrong with the sums of a voucher's reservations and of the units its buyers hold.
pub(crate) fn miscount(found: &VoucherInRedis, reserved: i64, held: &[i64]) -> Option<String> {
    if reserved != found.reserved {
        return Some(format!("reserved is {}, but the reservations are of {reserved} units", found.reserved));
    }
    let (sum, claimed) = (sum(held.iter().copied()), found.reserved + found.sold);
    if sum != claimed {
        return Some(format!("buyers hold {sum} units, but {claimed} are reserved or sold"));
    }
    held.iter().find(|units| **units < 0).map(|units| format!("a buyer holds {units} units"))
}

#[cfg(test)]
mod tests {
    use domain::{Money, Terms, Timestamp, VoucherId, VoucherState};

    use super::*;

    fn row() -> Voucher {
        let terms = Terms {
            title: "A voucher".to_owned(),
            total: 10,
            per_user_limit: 2,
            begins_at: Timestamp(0),
            ends_at: Timestamp(1),
            price: Money::new(1, "EUR"),
            payment_window_ms: None,
            partition: 0,
        };
        let id = VoucherId::parse("v").unwrap();
        Voucher { id, terms, remaining: 7, state: VoucherState::Open, terms_version: 1, seq: 4 }
    }

    fn found() -> VoucherInRedis {
        VoucherInRedis {
            state: VoucherState::Open,
            gate: Gate::Ready,
            epoch: "e".to_owned(),
            rebuild: false,
            title: "A voucher".to_owned(),
            total: 10,
            stock: 5,
            reserved: 2,
            sold: 3,
            per_user_limit: 2,
            begins_at: Timestamp(0),
            ends_at: Timestamp(1),
            price: Money::new(1, "EUR"),
            partition: 0,
            seq: 4,
            offset: Some(9),
        }
    }

    #[test]
    fn a_voucher_that_agrees_with_postgres_is_sound() {
        assert_eq!(inspect(&row(), Some(&found()), 4), Finding::Sound);
        // Behind Postgres, but not behind what must have been settled: lag is no fault.
        assert_eq!(inspect(&Voucher { seq: 9, remaining: 2, ..row() }, Some(&found()), 4), Finding::Sound);
    }

    #[test]
    fn what_is_missing_behind_or_warming_is_repaired() {
        assert_eq!(inspect(&row(), None, 0), Finding::Sound);
        assert_eq!(inspect(&row(), None, 1), Finding::Repair(Reason::Missing));
        assert_eq!(inspect(&row(), Some(&found()), 5), Finding::Repair(Reason::Behind));
        let warming = VoucherInRedis { gate: Gate::Warming, ..found() };
        assert_eq!(inspect(&row(), Some(&warming), 4), Finding::Repair(Reason::Warming));
    }

    #[test]
    fn every_kind_of_wrong_unit_is_a_breach() {
        let wrong = [
            VoucherInRedis { stock: 6, ..found() },
            VoucherInRedis { stock: 6, sold: 2, ..found() },
            VoucherInRedis { total: 11, stock: 6, ..found() },
            VoucherInRedis { state: VoucherState::Paused, ..found() },
        ];
        for found in wrong {
            assert!(matches!(inspect(&row(), Some(&found), 4), Finding::Breach(_)), "{found:?}");
        }
        // At another seq only Redis' own counters can be judged.
        assert_eq!(inspect(&row(), Some(&VoucherInRedis { seq: 5, stock: 6, sold: 2, ..found() }), 4), Finding::Sound);
    }

    #[test]
    fn a_wish_for_a_rebuild_comes_first_and_frozen_stays_frozen() {
        let broken = VoucherInRedis { stock: 6, ..found() };
        let asked = VoucherInRedis { rebuild: true, gate: Gate::Warming, ..broken.clone() };
        assert_eq!(inspect(&row(), Some(&asked), 4), Finding::Repair(Reason::Asked));
        assert_eq!(inspect(&row(), Some(&VoucherInRedis { gate: Gate::Frozen, ..broken }), 9), Finding::Frozen);
    }

    #[test]
    fn counts_of_reservations_and_buyers_must_match_the_sums() {
        assert_eq!(miscount(&found(), 2, &[2, 3]), None);
        assert!(miscount(&found(), 1, &[2, 3]).is_some());
        assert!(miscount(&found(), 2, &[2, 2]).is_some());
        assert!(miscount(&found(), 2, &[6, -1]).is_some());
        assert!(miscount(&found(), 2, &[]).is_some());
        assert!(miscount(&found(), 2, &[i64::MAX, 1]).is_some());
    }
}
