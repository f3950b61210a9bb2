//! Given, when, then: a small language for tests of the rules, and ([`generators`]) random logs.
//!
//! ```text
//! sale(terms()).given(order("ann", 1)).when(order("ben", 2)).then(confirmed("ben", 2)).remaining(7);
//! ```
//! "Given" and "when" are requests; the given ones go through the same [`decide`] and [`State::evolve`] as the one under test, so
//! no test starts from a state that could not be. Everything has fixed values that a test may change where it matters.

pub mod generators;

use uuid::Uuid;

use crate::conservation::breaches;
use crate::{
    Event, EventBody, LoggedRequest, Money, OrderId, OrderKey, RefusalReason, Request, RequestBody, RequestKind, State, Terms,
    Timestamp, UserId, VoucherId, decide,
};

/// The partition in which the sample voucher lives.
pub const PARTITION: i32 = 3;

/// First instant of the sample sale.
pub const BEGINS: Timestamp = Timestamp(1_000_000);

/// First instant after the sample sale.
pub const ENDS: Timestamp = Timestamp(2_000_000);

/// The voucher of the sample sale.
pub fn voucher_id() -> VoucherId {
    a_voucher("summer")
}

/// A voucher of this name, which must be a valid id.
pub fn a_voucher(name: &str) -> VoucherId {
    VoucherId::parse(name).expect("tests name their vouchers validly")
}

/// A user of any name, valid or not.
pub fn user(name: &str) -> UserId {
    UserId::from_log(name.to_owned())
}

/// The id of an order: of this voucher and user, and the user's try of that name.
pub fn order_id_of(voucher: &VoucherId, name: &str, attempt: &str) -> OrderId {
    let key = OrderKey::new(&[7; OrderKey::MIN_LEN]).expect("the key is long enough");
    key.order_id(voucher, &user(name), Some(attempt))
}

/// The id of this user's first order in the sample sale.
pub fn order_id(name: &str) -> OrderId {
    order_id_of(&voucher_id(), name, "1")
}

/// Ten units, two a user, 19.99 EUR each, no time limit to pay.
pub fn terms() -> Terms {
    Terms {
        title: "Dinner for two".into(),
        total: 10,
        per_user_limit: 2,
        begins_at: BEGINS,
        ends_at: ENDS,
        price: Money::new(1_999, "EUR"),
        payment_window_ms: None,
        partition: PARTITION,
    }
}

/// The same with 60 seconds to pay.
pub fn terms_with_payment_window() -> Terms {
    Terms { payment_window_ms: Some(60_000), ..terms() }
}

/// A user's first order, reserved at [`BEGINS`].
pub fn order(name: &str, quantity: i64) -> RequestBody {
    order_at(name, quantity, BEGINS)
}

/// A user's first order, reserved at this instant.
pub fn order_at(name: &str, quantity: i64, requested_at: Timestamp) -> RequestBody {
    RequestBody::OrderRequested { order_id: order_id(name), user_id: user(name), quantity, requested_at }
}

/// A payment of the user's first order, of this many minor units of EUR.
pub fn payment(name: &str, payment_ref: &str, minor: i64) -> RequestBody {
    let amount = Money::new(minor, "EUR");
    RequestBody::PaymentReceived { order_id: order_id(name), payment_ref: payment_ref.into(), amount, paid_at: BEGINS.plus(5) }
}

/// The log before the request under test.
#[derive(Clone, Debug)]
pub struct Given {
    state: State,
    voucher: VoucherId,
    partition: i32,
    offset: i64,
    appended_at: Timestamp,
}

/// An empty log.
pub fn nothing() -> Given {
    Given { state: State::default(), voucher: voucher_id(), partition: PARTITION, offset: 0, appended_at: BEGINS.plus(1) }
}

/// A log in which the sample voucher was published under these terms, a moment before its sale begins.
pub fn sale(terms: Terms) -> Given {
    nothing().given(RequestBody::VoucherPublished(terms))
}

impl Given {
    /// This request comes first.
    pub fn given(self, body: RequestBody) -> Self {
        self.when(body).and()
    }

    /// What follows is received by the log at this instant.
    pub fn at(self, appended_at: Timestamp) -> Self {
        Self { appended_at, ..self }
    }

    /// What follows is found in this partition.
    pub fn in_partition(self, partition: i32) -> Self {
        Self { partition, ..self }
    }

    /// What follows is about this voucher.
    pub fn about(self, voucher: &str) -> Self {
        Self { voucher: a_voucher(voucher), ..self }
    }

    /// The request under test.
    pub fn when(self, body: RequestBody) -> Decided {
        let id = Uuid::from_u128(1 + self.offset.unsigned_abs() as u128);
        let request = Request { id, voucher_id: self.voucher.clone(), actor: "test".into(), reason: None, body };
        self.decide(Some(request))
    }

    /// Bytes that are no request.
    pub fn when_unreadable(self) -> Decided {
        self.decide(None)
    }

    fn decide(mut self, request: Option<Request>) -> Decided {
        let (partition, offset, appended_at) = (self.partition, self.offset, self.appended_at);
        let logged = LoggedRequest { partition, offset, appended_at, request };
        let event = decide(&self.state, &logged);
        assert_eq!(event, decide(&self.state.facts_for(&logged), &logged), "the facts that the request names are not enough");
        let before = self.state.clone();
        self.state.evolve(&event);
        assert_eq!(breaches(&self.state), [], "after {event:?}");
        self.offset += 1;
        Decided { before, event, log: self }
    }
}

/// What was decided about the request under test.
#[derive(Clone, Debug)]
pub struct Decided {
    before: State,
    event: Event,
    log: Given,
}

impl Decided {
    /// The event says exactly this.
    #[track_caller]
    pub fn then(self, body: EventBody) -> Self {
        assert_eq!(self.event.body, body);
        self
    }

    /// The request is refused, with nothing due back.
    #[track_caller]
    pub fn then_refused(self, kind: RequestKind, order_id: Option<OrderId>, reason: RefusalReason) -> Self {
        self.then(EventBody::RequestRefused { kind, order_id, reason, due_back: None })
    }

    /// Units that no live order claims afterwards, and units that the buyer in question holds.
    #[track_caller]
    pub fn leaves(self, remaining: i64, held: i64) -> Self {
        assert_eq!((self.event.remaining, self.event.held), (remaining, held), "(remaining, held) of {:?}", self.event);
        self
    }

    /// The event is the voucher's next: its `voucher_seq` is this.
    #[track_caller]
    pub fn with_seq(self, voucher_seq: i64) -> Self {
        assert_eq!(self.event.voucher_seq, voucher_seq, "{:?}", self.event);
        self
    }

    /// The event has no `voucher_seq` and changes nothing.
    #[track_caller]
    pub fn outside_the_sequence(self) -> Self {
        assert_eq!(self.before, self.log.state, "{:?}", self.event);
        self.with_seq(0).leaves(0, 0)
    }

    /// The log goes on after it.
    pub fn and(self) -> Given {
        self.log
    }

    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The state after it.
    pub fn state(&self) -> &State {
        &self.log.state
    }
}

impl State {
    /// Only the facts that `logged` names, as a lane reads them for a batch: its voucher, the order it names, what that order's
    /// and the request's user hold, the payment it names with the order it paid.
    pub fn facts_for(&self, logged: &LoggedRequest) -> State {
        let mut facts = State::default();
        let Some(request) = &logged.request else { return facts };
        let voucher = &request.voucher_id;
        facts.vouchers.extend(self.vouchers.get_key_value(voucher).map(|(id, v)| (id.clone(), v.clone())));
        let mut orders: Vec<OrderId> = request.body.order_id().into_iter().collect();
        let mut users = Vec::new();
        match &request.body {
            RequestBody::OrderRequested { user_id, .. } => users.push(user_id.clone()),
            RequestBody::PaymentReceived { payment_ref, .. } => {
                let key = (voucher.clone(), payment_ref.clone());
                if let Some(paid) = self.payments.get(&key) {
                    orders.push(*paid);
                    facts.payments.insert(key, *paid);
                }
            }
            _ => {}
        }
        for order in orders.iter().filter_map(|id| self.orders.get(id)) {
            users.push(order.user_id.clone());
            facts.orders.insert(order.id, order.clone());
        }
        for user in users {
            let key = (voucher.clone(), user);
            facts.held.extend(self.held.get(&key).map(|held| (key, *held)));
        }
        facts
    }
}
