//! The five scripts: their texts, what they are called with and what their answers mean. The contract of each stands at the head of
//! its file in `lua/`; this file is its other side.

use domain::{Event, EventBody, Money, OrderId, Timestamp, UserId, VoucherId, VoucherState};
use redis::{Script, ScriptInvocation};

use super::keys::Keys;
use super::{Gate, Refusal, Reservation, Reserve, Settle, VoucherInRedis};

/// The text of settle.lua: pipelines do not load it by themselves.
pub(super) const SETTLE: &str = include_str!("../../../../lua/settle.lua");

/// The texts of the scripts with their digests.
pub(super) struct Scripts {
    pub(super) reserve: Script,
    pub(super) release: Script,
    pub(super) settle: Script,
    pub(super) sweep: Script,
    pub(super) gate: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            reserve: Script::new(include_str!("../../../../lua/reserve.lua")),
            release: Script::new(include_str!("../../../../lua/release.lua")),
            settle: Script::new(SETTLE),
            sweep: Script::new(include_str!("../../../../lua/sweep.lua")),
            gate: Script::new(include_str!("../../../../lua/gate.lua")),
        }
    }
}

/// One call of a script about one voucher.
pub(super) fn call<'a>(script: &'a Script, voucher: &VoucherId, args: &[&str]) -> ScriptInvocation<'a> {
    let mut invocation = script.prepare_invoke();
    for key in Keys::of(voucher).all() {
        invocation.key(key);
    }
    for arg in args {
        invocation.arg(*arg);
    }
    invocation
}

/// The call that settles `event`, which was read at `offset` of `order-events`.
pub(super) fn settle<'a>(script: &'a Script, voucher: &VoucherId, event: &Event, offset: i64) -> ScriptInvocation<'a> {
    let mut args = vec![event.voucher_seq.to_string(), offset.to_string(), event.body.name().to_owned()];
    match &event.body {
        EventBody::VoucherOpened(terms) => args.extend([
            terms.total.to_string(),
            terms.per_user_limit.to_string(),
            terms.begins_at.0.to_string(),
            terms.ends_at.0.to_string(),
            format!("{} {}", terms.price.minor, terms.price.currency),
            terms.partition.to_string(),
            terms.title.clone(),
        ]),
        EventBody::VoucherChanged { state, total, .. } => args.extend([total.to_string(), state.as_str().to_owned()]),
        EventBody::OrderConfirmed { order_id, user_id, quantity, .. }
        | EventBody::OrderCancelled { order_id, user_id, quantity, .. }
        | EventBody::OrderExpired { order_id, user_id, quantity } => {
            args.extend([order_id.to_string(), user_id.as_str().to_owned(), quantity.to_string()]);
        }
        EventBody::OrderRejected { order_id, .. } | EventBody::RequestRepeated { order_id, .. } => {
            args.push(order_id.to_string());
        }
        EventBody::OrderPaid { .. } | EventBody::RequestRefused { .. } => {}
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    call(script, voucher, &args)
}

/// What is wrong with an answer or a stored text; becomes [`super::StoreError::Damaged`].
pub(super) type Problem = String;

/// Exactly what the scripts take for an integer: sums of a few never overflow.
fn integer(what: &str, text: &str) -> Result<i64, Problem> {
    let exact = text.parse().ok().filter(|n: &i64| n.unsigned_abs() < 1 << 53 && n.to_string() == text);
    exact.ok_or_else(|| format!("{what} is {text:?}"))
}

fn instant(what: &str, text: &str) -> Result<Timestamp, Problem> {
    integer(what, text).map(Timestamp)
}

fn partition(text: &str) -> Result<i32, Problem> {
    i32::try_from(integer("partition", text)?).map_err(|_| format!("partition is {text:?}"))
}

fn gate(word: &str) -> Result<Gate, Problem> {
    word.parse().map_err(|_| format!("gate is {word:?}"))
}

fn unexpected(answer: &[&str]) -> Problem {
    format!("a script answered {answer:?}")
}

/// Views an answer as words, so that it can be matched.
fn words(answer: &[String]) -> Vec<&str> {
    answer.iter().map(String::as_str).collect()
}

pub(super) fn reserve_answer(answer: &[String]) -> Result<Reserve, Problem> {
    let refused = |refusal, held| Ok(Reserve::Refused { refusal, held: integer("held", held)? });
    match words(answer)[..] {
        ["UNKNOWN"] => Ok(Reserve::UnknownVoucher),
        ["SAME", quantity, requested_at, pin] => Ok(Reserve::Same {
            quantity: integer("quantity", quantity)?,
            requested_at: instant("requested_at", requested_at)?,
            partition: partition(pin)?,
        }),
        ["OTHER", quantity] => Ok(Reserve::OtherQuantity { quantity: integer("quantity", quantity)? }),
        ["NOT_READY", word] => Ok(Reserve::NotReady { gate: gate(word)? }),
        ["PAUSED", held] => refused(Refusal::Paused, held),
        ["CLOSED", held] => refused(Refusal::Closed, held),
        ["NOT_STARTED", held, begins, now] => {
            let (begins_at, now) = (instant("begins_ms", begins)?, instant("now", now)?);
            refused(Refusal::NotStarted { begins_at, now }, held)
        }
        ["ENDED", held] => refused(Refusal::Ended, held),
        ["LIMIT", held] => refused(Refusal::LimitReached, held),
        ["SOLD_OUT", held] => refused(Refusal::SoldOut, held),
        ["RESERVED", held, requested_at, pin] => Ok(Reserve::Reserved {
            requested_at: instant("requested_at", requested_at)?,
            partition: partition(pin)?,
            held: integer("held", held)?,
        }),
        ref other => Err(unexpected(other)),
    }
}

pub(super) fn release_answer(answer: &[String]) -> Result<bool, Problem> {
    match words(answer)[..] {
        ["RELEASED"] => Ok(true),
        ["KEPT"] => Ok(false),
        ref other => Err(unexpected(other)),
    }
}

pub(super) fn settle_answer(answer: &[String]) -> Result<Settle, Problem> {
    match words(answer)[..] {
        ["APPLIED"] => Ok(Settle::Applied),
        ["SKIP", seq] => Ok(Settle::Skip { seq: integer("seq", seq)? }),
        ["GAP", seq] => Ok(Settle::Gap { seq: integer("seq", seq)? }),
        ["UNKNOWN"] => Ok(Settle::UnknownVoucher),
        ref other => Err(unexpected(other)),
    }
}

pub(super) fn sweep_answer(order: &OrderId, answer: &[String]) -> Result<Option<Reservation>, Problem> {
    match words(answer)[..] {
        ["GONE"] => Ok(None),
        ["TAKEN", requested_at, stamp, quantity, user] => Ok(Some(Reservation {
            order_id: *order,
            user_id: UserId::from_log(user.to_owned()),
            quantity: integer("quantity", quantity)?,
            requested_at: instant("requested_at", requested_at)?,
            stamp: instant("stamp_ms", stamp)?,
        })),
        ref other => Err(unexpected(other)),
    }
}

/// What gate.lua did, apart from raising.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GateAnswer {
    Done,
    /// Not opened, for this reason.
    Closed(String),
    UnknownVoucher,
}

pub(super) fn gate_answer(answer: &[String]) -> Result<GateAnswer, Problem> {
    match words(answer)[..] {
        ["OPENED" | "DONE"] => Ok(GateAnswer::Done),
        ["UNKNOWN"] => Ok(GateAnswer::UnknownVoucher),
        ["EPOCH"] => Ok(GateAnswer::Closed("somebody else raised the fence".into())),
        ["GATE", word] => Ok(GateAnswer::Closed(format!("the gate is {word}"))),
        ["BEHIND", seq] => Ok(GateAnswer::Closed(format!("Redis stands at seq {seq}"))),
        ref other => Err(unexpected(other)),
    }
}

/// The voucher after a raised fence, and how many reservations the reset had to drop.
pub(super) fn raise_answer(answer: &[String]) -> Result<(VoucherInRedis, i64), Problem> {
    match words(answer)[..] {
        ["VOUCHER", dropped, ref fields @ ..] => {
            let fields: Vec<Option<&str>> = fields.iter().map(|text| Some(*text)).collect();
            Ok((voucher(&fields)?, integer("dropped", dropped)?))
        }
        ref other => Err(unexpected(other)),
    }
}

/// Fields of the voucher's hash, in the order in which gate.lua answers them.
pub(super) const VOUCHER_FIELDS: [&str; 16] = [
    "state",
    "gate",
    "epoch",
    "rebuild",
    "title",
    "total",
    "stock",
    "reserved",
    "sold",
    "per_user_limit",
    "begins_ms",
    "ends_ms",
    "price",
    "partition",
    "seq",
    "offset",
];

/// Reads [`VOUCHER_FIELDS`]; only `rebuild` and `offset` may be absent (or empty).
pub(super) fn voucher(fields: &[Option<&str>]) -> Result<VoucherInRedis, Problem> {
    let optional = |name: &str| {
        let at = VOUCHER_FIELDS.iter().position(|field| *field == name);
        at.and_then(|at| fields.get(at).copied().flatten())
    };
    let text = |name: &str| optional(name).ok_or_else(|| format!("{name} is missing"));
    let number = |name: &str| integer(name, text(name)?);
    let state = text("state")?;
    let price = text("price")?;
    let (minor, currency) = price.split_once(' ').ok_or_else(|| format!("price is {price:?}"))?;
    Ok(VoucherInRedis {
        state: VoucherState::parse(state).ok_or_else(|| format!("state is {state:?}"))?,
        gate: gate(text("gate")?)?,
        epoch: text("epoch")?.to_owned(),
        rebuild: optional("rebuild").is_some_and(|mark| !mark.is_empty()),
        title: text("title")?.to_owned(),
        total: number("total")?,
        stock: number("stock")?,
        reserved: number("reserved")?,
        sold: number("sold")?,
        per_user_limit: number("per_user_limit")?,
        begins_at: Timestamp(number("begins_ms")?),
        ends_at: Timestamp(number("ends_ms")?),
        price: Money::new(integer("price", minor)?, currency),
        partition: partition(text("partition")?)?,
        seq: number("seq")?,
        offset: optional("offset").filter(|offset| !offset.is_empty()).map(|o| integer("offset", o)).transpose()?,
    })
}

/// Reads what reserve.lua stored for one order.
pub(super) fn reservation(order: &str, stored: &str) -> Result<Reservation, Problem> {
    let odd = || format!("reservation of {order:?} is {stored:?}");
    let order_id = OrderId::parse(order).map_err(|_| odd())?;
    let parts: Vec<&str> = stored.splitn(5, ' ').collect();
    let [requested_at, stamp, quantity, _token, user] = parts[..] else { return Err(odd()) };
    Ok(Reservation {
        order_id,
        user_id: UserId::from_log(user.to_owned()),
        quantity: integer("quantity", quantity)?,
        requested_at: instant("requested_at", requested_at)?,
        stamp: instant("stamp_ms", stamp)?,
    })
}

/// Reads the units one user holds.
pub(super) fn held(user: String, units: &str) -> Result<(UserId, i64), Problem> {
    let units = integer("held", units)?;
    Ok((UserId::from_log(user), units))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_reservation_keeps_any_user() {
        let id = "0198a2b4-5c6d-8e7f-8123-456789abcdef";
        for user in ["", "7", "007", "a b - 1", "Zoë"] {
            let read = reservation(id, &format!("17 18 2 - {user}")).unwrap();
            assert_eq!((read.user_id.as_str(), read.quantity), (user, 2));
            assert_eq!((read.requested_at, read.stamp), (Timestamp(17), Timestamp(18)));
        }
        for odd in ["", "17 18 2 -", "17 18 2.0 - u", "17  18 2 - u"] {
            assert!(reservation(id, odd).is_err(), "{odd:?}");
        }
        assert!(reservation("7", "17 18 2 - u").is_err());
    }

    #[test]
    fn an_integer_is_what_the_scripts_take_for_one() {
        for good in ["0", "-7", "9007199254740991", "-9007199254740991"] {
            assert_eq!(integer("n", good).map(|n| n.to_string()), Ok(good.to_owned()));
        }
        for odd in ["", "+10", "010", "-0", " 1", "1.0", "9007199254740992", "-9007199254740992", "9223372036854775807"] {
            assert!(integer("n", odd).is_err(), "{odd:?}");
        }
        assert!(partition("+3").is_err() && partition("2147483648").is_err());
    }

    #[test]
    fn an_answer_that_no_script_gives_is_a_problem() {
        for odd in [&[][..], &["WHAT"], &["RESERVED", "0", "17"], &["RESERVED", "0", "x", "3"], &["SOLD_OUT", "1.0"]] {
            assert!(reserve_answer(&texts(odd)).is_err(), "{odd:?}");
            assert!(settle_answer(&texts(odd)).is_err(), "{odd:?}");
            assert!(gate_answer(&texts(odd)).is_err(), "{odd:?}");
            assert!(raise_answer(&texts(odd)).is_err(), "{odd:?}");
        }
    }
}
