//! What every call of a run was answered, and what the shop keeper did meanwhile. Written by many threads, read by the driver while the run
//! goes on and by the checker when it is over.
//!
//! A call is written down once it has ended, whatever became of it: a call without an answer is an [`Outcome::Unknown`], never left out.

use std::{
    collections::HashSet,
    fmt,
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use domain::{OrderId, OrderStatus, Timestamp, VoucherId};

/// One call of a buyer.
#[derive(Clone, Debug)]
pub struct Call {
    pub begun: Instant,
    /// When the answer was complete, or given up.
    pub ended: Instant,
    /// Index of the purchase process that was called.
    pub purchase: usize,
    pub user: String,
    pub voucher: VoucherId,
    pub what: What,
    pub outcome: Outcome,
}

/// What a call asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Purchase {
        quantity: i64,
        /// The idempotency key, where one was sent.
        key: Option<String>,
    },
    /// What became of an order.
    Status(OrderId),
    /// Something that must be refused, whatever state the shop is in; says what.
    Nonsense(&'static str),
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The order exists or will. `status`: as told; `None`: pending.
    Accepted { order_id: OrderId, status: Option<OrderStatus> },
    /// The answer was no; by its stable name (`sold_out`, `limit_reached`, `unknown_order`, ...).
    Refused { code: String },
    /// 503 or 429: nothing was promised, the same call may be made again.
    Busy,
    /// No answer that says anything: whether the call had an effect is not known.
    Unknown(String),
}

/// One thing the shop keeper did, or tried to do.
#[derive(Clone, Debug)]
pub struct Deed {
    pub begun: Instant,
    pub ended: Instant,
    pub voucher: VoucherId,
    pub change: Change,
    pub done: Done,
}

/// What the keeper asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Publish { total: i64, per_user_limit: i64 },
    Stock { delta: i64 },
    Pause,
    Resume,
    Close,
}

/// What became of a deed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    Yes,
    /// Refused, by the name of the reason; nothing was changed.
    Refused(String),
    /// Whether it was done is not known.
    Unknown(String),
}

/// A time in which something was broken, or not yet well again.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub from: Instant,
    pub to: Instant,
    /// As in `fault::Kind::uses`.
    pub with: Vec<&'static str>,
}

/// A voucher that buyers may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub voucher: VoucherId,
    pub per_user_limit: i64,
    /// Part of the calls that it gets, against the shares of the others.
    pub share: u32,
}

/// Sums over all purchases and other calls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub calls: u64,
    pub accepted: u64,
    pub refused: u64,
    pub busy: u64,
    pub unknown: u64,
    /// Different orders among the accepted ones.
    pub orders: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, accepted, refused, busy, unknown, .. } = self;
        write!(f, "{calls} calls ({accepted} accepted, {refused} refused, {busy} busy, {unknown} unknown)")
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.busy += other.busy;
        self.unknown += other.unknown;
        self.orders += other.orders;
    }
}

/// Everything written down so far, at one moment.
#[derive(Clone, Debug)]
pub struct Book {
    /// In the order in which they ended.
    pub calls: Vec<Arc<Call>>,
    pub deeds: Vec<Deed>,
    pub troubles: Vec<Trouble>,
    began: Instant,
    began_at: SystemTime,
}

impl Book {
    /// Time since the run began.
    pub fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.began)
    }

    /// The same for an instant of a server's clock, in seconds: below zero before the run. All servers share this machine's clock.
    pub fn seconds_since_start(&self, at: Timestamp) -> f64 {
        let began = self.began_at.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        at.0 as f64 / 1e3 - began
    }
}

struct Inner {
    book: Book,
    counts: Counts,
    orders: HashSet<OrderId>,
    offers: Vec<Offer>,
}

/// The book that all share. Clones write into the same one.
#[derive(Clone)]
pub struct Ledger(Arc<Mutex<Inner>>);

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    pub fn new() -> Self {
        Self::of(Book {
            calls: Vec::new(),
            deeds: Vec::new(),
            troubles: Vec::new(),
            began: Instant::now(),
            began_at: SystemTime::now(),
        })
    }

    /// A ledger of its own that goes on from `book`.
    pub fn of(book: Book) -> Self {
        let calls = book.calls.clone();
        let empty = Book { calls: Vec::with_capacity(calls.len()), ..book };
        let inner = Inner { book: empty, counts: Counts::default(), orders: HashSet::new(), offers: Vec::new() };
        let ledger = Self(Arc::new(Mutex::new(inner)));
        calls.into_iter().for_each(|call| ledger.add(call));
        ledger
    }

    /// Writes a call down.
    pub fn call(&self, call: Call) {
        self.add(Arc::new(call));
    }

    fn add(&self, call: Arc<Call>) {
        let mut inner = self.lock();
        let counts = &mut inner.counts;
        counts.calls += 1;
        match &call.outcome {
            Outcome::Accepted { .. } => counts.accepted += 1,
            Outcome::Refused { .. } => counts.refused += 1,
            Outcome::Busy => counts.busy += 1,
            Outcome::Unknown(_) => counts.unknown += 1,
        }
        if let (What::Purchase { .. }, Outcome::Accepted { order_id, .. }) = (&call.what, &call.outcome) {
            inner.orders.insert(*order_id);
            inner.counts.orders = inner.orders.len() as u64;
        }
        inner.book.calls.push(call);
    }

    /// Writes down what was broken and when.
    pub fn trouble(&self, trouble: Trouble) {
        self.lock().book.troubles.push(trouble);
    }

    /// Writes down what the shop keeper did.
    pub fn deed(&self, deed: Deed) {
        self.lock().book.deeds.push(deed);
    }

    /// What buyers are to ask for from now on.
    pub fn set_offers(&self, offers: Vec<Offer>) {
        self.lock().offers = offers;
    }

    pub fn offers(&self) -> Vec<Offer> {
        self.lock().offers.clone()
    }

    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// When this purchase process first accepted a purchase that was begun at or after `instant`. One begun earlier proves nothing about
    /// the time after.
    pub fn accepted_after(&self, instant: Instant, purchase: usize) -> Option<Instant> {
        let inner = self.lock();
        // Calls are in the order of writing, which is that of ending but for calls that end at the same moment on two threads.
        let later = inner.book.calls.iter().rev().take_while(|call| call.ended >= instant);
        let accepted = later.filter(|call| {
            let is_purchase = matches!(call.what, What::Purchase { .. });
            is_purchase && call.purchase == purchase && call.begun >= instant && matches!(call.outcome, Outcome::Accepted { .. })
        });
        accepted.map(|call| call.ended).min()
    }

    /// A copy of everything written down so far. Costs a pointer a call.
    pub fn book(&self) -> Book {
        self.lock().book.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that happens under the lock leaves the book half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> OrderId {
        OrderId::from_uuid(uuid::Uuid::new_v4())
    }

    fn purchase(begun: Instant, ended: Instant, purchase: usize, outcome: Outcome) -> Call {
        let voucher = VoucherId::parse("v").unwrap();
        let what = What::Purchase { quantity: 1, key: None };
        Call { begun, ended, purchase, user: "u".to_owned(), voucher, what, outcome }
    }

    fn accepted(order_id: OrderId) -> Outcome {
        Outcome::Accepted { order_id, status: None }
    }

    #[test]
    fn recovery_counts_from_the_first_purchase_begun_afterwards_at_that_process() {
        let ledger = Ledger::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        ledger.call(purchase(at(0), at(20), 0, accepted(order())));
        ledger.call(purchase(at(12), at(30), 0, Outcome::Busy));
        ledger.call(purchase(at(13), at(40), 1, accepted(order())));
        ledger.call(purchase(at(14), at(50), 0, accepted(order())));
        ledger.call(purchase(at(15), at(60), 0, accepted(order())));
        let look = Call { what: What::Status(order()), ..purchase(at(10), at(61), 2, accepted(order())) };
        ledger.call(look);
        assert_eq!(ledger.accepted_after(at(10), 0), Some(at(50)));
        assert_eq!(ledger.accepted_after(at(10), 1), Some(at(40)));
        assert_eq!(ledger.accepted_after(at(10), 2), None);
        assert_eq!(ledger.accepted_after(at(16), 0), None);
    }

    #[test]
    fn everything_is_counted_and_an_order_accepted_twice_is_one_order() {
        let ledger = Ledger::new();
        let (now, same) = (Instant::now(), order());
        for outcome in [accepted(same), accepted(same), accepted(order()), Outcome::Busy, Outcome::Unknown("reset".to_owned())] {
            ledger.call(purchase(now, now, 0, outcome));
        }
        ledger.call(purchase(now, now, 0, Outcome::Refused { code: "sold_out".to_owned() }));
        let expected = Counts { calls: 6, accepted: 3, refused: 1, busy: 1, unknown: 1, orders: 2 };
        assert_eq!(ledger.counts(), expected);
        let copy = Ledger::of(ledger.book());
        copy.call(purchase(now, now, 0, Outcome::Busy));
        assert_eq!((copy.counts().calls, ledger.counts()), (7, expected));
    }
}
