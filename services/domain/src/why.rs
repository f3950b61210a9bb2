//! Why a request was refused or an order rejected, in words: the one place where each reason has its sentence.

use crate::{Event, EventBody, RefusalReason, RejectReason};

impl Event {
    /// One sentence with the numbers that the decision saw; `None` where nothing was refused.
    pub fn why(&self) -> Option<String> {
        match &self.body {
            EventBody::OrderRejected { quantity, reason, .. } => Some(self.why_rejected(*reason, *quantity)),
            EventBody::RequestRefused { reason, .. } => Some(reason.sentence().to_owned()),
            _ => None,
        }
    }

    /// A rejection changes nothing: what the event says is left and held, was so before it.
    fn why_rejected(&self, reason: RejectReason, quantity: i64) -> String {
        let (remaining, held) = (self.remaining, self.held);
        match reason {
            RejectReason::Invalid => format!("it asks for {quantity} units, or by a user id that nothing can store"),
            RejectReason::NotOnSale => "it was reserved outside the sale's window, or later than the log received it".to_owned(),
            RejectReason::Closed => format!("the voucher was closed for good before, with {remaining} units left"),
            RejectReason::LimitReached => {
                format!("the buyer held {held} units, and {quantity} more are above what one user may hold")
            }
            RejectReason::SoldOut => format!("it asks for {quantity} units, and {remaining} were left"),
        }
    }
}

impl RefusalReason {
    /// What it means, for whoever asked.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Unreadable => "its bytes cannot be read as a request; they are kept as a dead letter",
            Self::UnknownVoucher => "the partition's lane does not know this voucher",
            Self::AlreadyPublished => "a voucher of this id is on sale or was; ids are never used twice",
            Self::InvalidTerms => "such a sale makes no sense: check units, limit, window and price",
            Self::StaleTerms => "its terms were changed meanwhile; look at them again with `voucher show`, then repeat",
            Self::Closed => "the voucher is closed for good",
            Self::NoChange => "it is so already",
            Self::BelowSold => "more units than that are sold already",
            Self::Invalid => "it makes no sense: an order id of another voucher, or a payment reference that nothing can store",
            Self::UnknownOrder => "the voucher had no such order",
            Self::Final => "the order had its final fate before",
            Self::WrongAmount => "the amount is not the order's price",
            Self::AlreadyPaid => "the order was paid before, by another payment",
            Self::PaymentTooLate => "the order was rejected, cancelled or expired before the payment came",
            Self::TooEarly => "the order's time to pay was not over",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{
        RequestBody, Terms,
        testing::{ENDS, order, order_at, payment, sale, terms},
    };

    #[test]
    fn a_rejection_is_told_with_the_numbers_that_the_decision_saw() {
        let two_left = || sale(Terms { total: 5, per_user_limit: 3, ..terms() }).given(order("ann", 3));
        let again = RequestBody::OrderRequested {
            order_id: crate::testing::order_id_of(&crate::testing::voucher_id(), "ann", "2"),
            user_id: crate::testing::user("ann"),
            quantity: 1,
            requested_at: crate::testing::BEGINS,
        };
        let why = |body| two_left().when(body).event().why();
        assert_eq!(why(order("ben", 3)).unwrap(), "it asks for 3 units, and 2 were left");
        assert_eq!(why(again).unwrap(), "the buyer held 3 units, and 1 more are above what one user may hold");
        assert_eq!(why(order("ben", -1)).unwrap(), "it asks for -1 units, or by a user id that nothing can store");
        let late = "it was reserved outside the sale's window, or later than the log received it";
        assert_eq!(why(order_at("ben", 1, ENDS)).unwrap(), late);
        let closed = two_left().given(RequestBody::VoucherClosed { expected_terms_version: 1 });
        let told = closed.when(order("ben", 1)).event().why();
        assert_eq!(told.unwrap(), "the voucher was closed for good before, with 2 units left");
    }

    #[test]
    fn a_refusal_has_a_sentence_of_its_own_and_what_was_done_needs_none() {
        let told: HashSet<&str> = RefusalReason::ALL.iter().map(|reason| reason.sentence()).collect();
        assert_eq!(told.len(), RefusalReason::ALL.len());
        let refused = sale(terms()).given(order("ann", 1)).when(payment("ann", "p1", 1));
        assert_eq!(refused.event().why().as_deref(), Some("the amount is not the order's price"));
        assert_eq!(sale(terms()).when(order("ann", 1)).event().why(), None);
    }
}
