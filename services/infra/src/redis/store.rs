//! The store: everything the services ask Redis, each call bounded in time and safe to repeat.
//!
//! Two connections carry the short calls in turn, a third one the long ones (settling in pipelines, reading whole hashes), so that a
//! pipeline of hundreds of events never stands before a buyer.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use domain::{Event, OrderId, Timestamp, UserId, VoucherId};
use redis::{Cmd, FromRedisValue, Pipeline, ScriptInvocation};

use super::connection::{Connection, Failure};
use super::keys::Keys;
use super::place::Place;
use super::scripts::{self, GateAnswer, Scripts};
use super::{Reservation, Reserve, Settle, StoreError, VoucherInRedis, server};

/// How long to wait for answers before the outcome counts as unknown.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For short calls. A busy Redis answers in a few milliseconds; whoever waits longer is told 503, tries again and finds his own
    /// reservation. Longer: buyers and their connections pile up while Redis is silent.
    pub short: Duration,
    /// For a pipeline, a reset, or one step through a hash: some milliseconds of work behind other work.
    pub long: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { short: Duration::from_millis(200), long: Duration::from_secs(2) }
    }
}

/// Time that a call may take beyond that, to get a new connection first: one or two tries.
const RECONNECT: Duration = Duration::from_millis(300);

/// Events in one pipeline: some 10 ms of work for Redis, during which short calls of others still pass in between.
const SETTLE_PIPELINE: usize = 500;

/// Times a pipeline is sent without any progress before a server that keeps losing its scripts counts as unavailable.
const PIPELINE_TRIES: usize = 3;

/// Entries of a hash read in one step: about a millisecond.
const SCAN_STEP: usize = 1000;

/// Connections for short calls. Two keep Redis' one core busy; more only add wake-ups.
const SHORT_CONNECTIONS: usize = 2;

/// A connection to Redis with the scripts. Cheap to clone; clones share the connections.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    scripts: Scripts,
    short: [Connection; SHORT_CONNECTIONS],
    long: Connection,
    turn: AtomicUsize,
}

impl Store {
    /// Connects, and checks that the server is 7.0 or newer and evicts nothing. Errors name the server (its password masked) and the
    /// remedy.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, Patience::default()).await
    }

    /// As [`Store::connect`], with another patience.
    pub async fn connect_with(url: &str, patience: Patience) -> Result<Self, StoreError> {
        let place = Place::parse(url)?;
        let open = async |response| {
            let opened = Connection::open(&place, response, response + RECONNECT).await;
            opened.map_err(|error| server::cannot_connect(url, error))
        };
        let long = open(patience.long).await?;
        server::check(url, &long).await?;
        let short = [open(patience.short).await?, open(patience.short).await?];
        let inner = Inner { scripts: Scripts::new(), short, long, turn: AtomicUsize::new(0) };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn short(&self) -> &Connection {
        let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed);
        &self.inner.short[turn % SHORT_CONNECTIONS]
    }

    async fn run<T>(
        &self,
        voucher: &VoucherId,
        invocation: ScriptInvocation<'_>,
        read: impl FnOnce(&[String]) -> Result<T, scripts::Problem>,
    ) -> Result<T, StoreError> {
        self.run_on(self.short(), voucher, invocation, read).await
    }

    async fn run_on<T>(
        &self,
        connection: &Connection,
        voucher: &VoucherId,
        invocation: ScriptInvocation<'_>,
        read: impl FnOnce(&[String]) -> Result<T, scripts::Problem>,
    ) -> Result<T, StoreError> {
        let answer = connection.invoke(&invocation).await.map_err(|failure| failure.about(Some(voucher)))?;
        read(&answer).map_err(|problem| damaged(voucher, problem))
    }

    /// Asks for a sign of life.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.short().query::<String>(&redis::cmd("PING")).await.map(|_| ()).map_err(|failure| failure.about(None))
    }

    /// Redis' clock.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        let time = self.short().query::<(i64, i64)>(&redis::cmd("TIME")).await;
        let (seconds, micros) = time.map_err(|failure| failure.about(None))?;
        Ok(Timestamp(seconds * 1000 + micros / 1000))
    }

    /// reserve.lua. `token` is this try's random release token: text without spaces, not `-`. A repeat of an order in flight is answered
    /// [`Reserve::Same`], also after an unknown outcome.
    pub async fn reserve(
        &self,
        voucher: &VoucherId,
        order: &OrderId,
        user: &UserId,
        quantity: i64,
        token: &str,
    ) -> Result<Reserve, StoreError> {
        let args = [&order.to_string(), user.as_str(), &quantity.to_string(), token];
        self.run(voucher, scripts::call(&self.inner.scripts.reserve, voucher, &args), scripts::reserve_answer).await
    }

    /// release.lua: gives the reservation back if its token is still this one. Says whether it did; a repeat says `false`.
    pub async fn release(&self, voucher: &VoucherId, order: &OrderId, token: &str) -> Result<bool, StoreError> {
        let args = [&order.to_string(), token];
        self.run(voucher, scripts::call(&self.inner.scripts.release, voucher, &args), scripts::release_answer).await
    }

    /// settle.lua for each event (with its offset in `order-events`), pipelined, answered in order. Events with seq 0 are answered
    /// `Skip` without a call. After an error, of any kind, some may be applied: call again with the same events.
    pub async fn settle(&self, events: &[(Event, i64)]) -> Result<Vec<Settle>, StoreError> {
        let mut answers = vec![Settle::Skip { seq: 0 }; events.len()];
        let calls: Vec<SettleCall> = (events.iter().enumerate())
            .filter(|(_, (event, _))| event.voucher_seq > 0)
            .filter_map(|(at, (event, offset))| {
                let voucher = event.voucher_id.as_ref()?;
                Some(SettleCall { at, voucher, event, offset: *offset })
            })
            .collect();
        for chunk in calls.chunks(SETTLE_PIPELINE) {
            for (call, answer) in chunk.iter().zip(self.settle_chunk(chunk).await?) {
                answers[call.at] = answer;
            }
        }
        Ok(answers)
    }

    async fn settle_chunk(&self, calls: &[SettleCall<'_>]) -> Result<Vec<Settle>, StoreError> {
        let mut answers = Vec::with_capacity(calls.len());
        let mut applied = vec![false; calls.len()];
        let mut tries_left = PIPELINE_TRIES;
        let mut load = false;
        loop {
            let answered = answers.len();
            let mut script_lost = false;
            for (at, result) in (answered..).zip(self.send_settle(&calls[answered..], load).await?) {
                let voucher = calls[at].voucher;
                let answer = match result {
                    Ok(answer) => scripts::settle_answer(&answer).map_err(|problem| damaged(voucher, problem))?,
                    Err(failure) if failure.is_no_script() => {
                        script_lost = true;
                        continue;
                    }
                    Err(failure) => return Err(failure.about(Some(voucher))),
                };
                // Sent twice, because the script was lost in the middle: then it was applied, not skipped.
                let repeated = applied[at] && matches!(answer, Settle::Skip { .. });
                applied[at] = repeated || answer == Settle::Applied;
                if !script_lost {
                    answers.push(if repeated { Settle::Applied } else { answer });
                }
            }
            if !script_lost {
                return Ok(answers);
            }
            // All from the first lost call on is sent again, in order: the seq skips what was applied, and no event overtakes another.
            tries_left = if answers.len() > answered { PIPELINE_TRIES } else { tries_left - 1 };
            if tries_left == 0 {
                return Err(StoreError::Unavailable("it loses its scripts faster than they are loaded".into()));
            }
            load = true;
        }
    }

    /// One pipeline; with `load`, the script goes ahead of its calls.
    async fn send_settle(&self, calls: &[SettleCall<'_>], load: bool) -> Result<Vec<Result<Vec<String>, Failure>>, StoreError> {
        let mut pipeline = Pipeline::with_capacity(calls.len() + 1);
        pipeline.ignore_errors();
        if load {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(scripts::SETTLE).ignore();
        }
        for call in calls {
            let invocation = scripts::settle(&self.inner.scripts.settle, call.voucher, call.event, call.offset);
            pipeline.invoke_script(&invocation);
        }
        self.inner.long.pipeline(&pipeline).await.map_err(|failure| failure.about(None))
    }

    /// sweep.lua: takes a reservation that nobody published, if it still has this `stamp`: renews the stamp, clears the token. `None`: it
    /// is gone or was renewed (also by this call, where its outcome was unknown: it comes up again when the new stamp is old).
    pub async fn sweep(&self, voucher: &VoucherId, order: &OrderId, stamp: Timestamp) -> Result<Option<Reservation>, StoreError> {
        let args = [&order.to_string(), &stamp.0.to_string()[..]];
        let invocation = scripts::call(&self.inner.scripts.sweep, voucher, &args);
        self.run(voucher, invocation, |answer| scripts::sweep_answer(order, answer)).await
    }

    /// gate.lua raise: gate warming with a new random epoch, creating the voucher's hash where Redis has none (a stub with seq 0 and no
    /// terms yet). With `reset` also back to seq 0 with the reservations in flight kept; that is also the cure for
    /// [`StoreError::Damaged`]. A frozen gate stays frozen unless it is reset. Gives the voucher as it then is.
    pub async fn raise_fence(
        &self,
        voucher: &VoucherId,
        partition: i32,
        epoch: &str,
        reset: bool,
    ) -> Result<VoucherInRedis, StoreError> {
        let args = ["raise", epoch, &partition.to_string(), if reset { "reset" } else { "" }];
        let invocation = scripts::call(&self.inner.scripts.gate, voucher, &args);
        let (raised, dropped) = self.run_on(&self.inner.long, voucher, invocation, scripts::raise_answer).await?;
        if dropped > 0 {
            tracing::error!(%voucher, dropped, "dropped reservations that nobody can read; their orders count as lost by Redis");
        }
        Ok(raised)
    }

    /// gate.lua open: gate ready, only if it is not frozen, the epoch is still `epoch` and Redis' seq is at least `needed_seq` (and 1: a
    /// stub is never sold). Says whether the gate is ready under this epoch; a repeat says the same.
    pub async fn open_gate(&self, voucher: &VoucherId, epoch: &str, needed_seq: i64) -> Result<bool, StoreError> {
        match self.gate(voucher, &["open", epoch, &needed_seq.to_string()]).await? {
            GateAnswer::Done => Ok(true),
            GateAnswer::UnknownVoucher => Ok(false),
            GateAnswer::Closed(reason) => {
                tracing::debug!(%voucher, reason, "the gate was not opened");
                Ok(false)
            }
        }
    }

    /// gate.lua freeze: gate frozen with a new epoch, until thawed or reset. A voucher that Redis does not have needs no freezing.
    pub async fn freeze(&self, voucher: &VoucherId, epoch: &str) -> Result<(), StoreError> {
        self.gate(voucher, &["freeze", epoch]).await.map(|_| ())
    }

    /// gate.lua rebuild: what `rebuild redis` and `voucher thaw` set: gate warming, a new epoch, the field `rebuild`. Says whether the
    /// voucher is there.
    pub async fn ask_rebuild(&self, voucher: &VoucherId, epoch: &str) -> Result<bool, StoreError> {
        Ok(self.gate(voucher, &["rebuild", epoch]).await? == GateAnswer::Done)
    }

    /// gate.lua archive: the voucher's keys expire together after `ttl`; a raised fence keeps them. Says whether the voucher is there.
    pub async fn archive(&self, voucher: &VoucherId, ttl: Duration) -> Result<bool, StoreError> {
        Ok(self.gate(voucher, &["archive", &ttl.as_millis().max(1).to_string()]).await? == GateAnswer::Done)
    }

    async fn gate(&self, voucher: &VoucherId, args: &[&str]) -> Result<GateAnswer, StoreError> {
        self.run(voucher, scripts::call(&self.inner.scripts.gate, voucher, args), scripts::gate_answer).await
    }

    /// The voucher's hash; `None`: Redis does not have it. With seq 0 it is a stub, whose terms say nothing.
    pub async fn voucher(&self, voucher: &VoucherId) -> Result<Option<VoucherInRedis>, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(Keys::of(voucher).voucher).arg(&scripts::VOUCHER_FIELDS[..]);
        let fields: Vec<Option<String>> = self.short().query(&command).await.map_err(|failure| failure.about(Some(voucher)))?;
        if fields.iter().all(Option::is_none) {
            return Ok(None);
        }
        let fields: Vec<Option<&str>> = fields.iter().map(Option::as_deref).collect();
        scripts::voucher(&fields).map(Some).map_err(|problem| damaged(voucher, problem))
    }

    /// Every voucher of which Redis has the hash, be it damaged; for an audit: looks at every key of the server, in steps.
    pub async fn voucher_ids(&self) -> Result<BTreeSet<VoucherId>, StoreError> {
        let keys: Vec<String> = self.steps(redis::cmd("SCAN"), &["MATCH", Keys::ANY_VOUCHER], None).await?;
        Ok(keys.iter().filter_map(|key| Keys::id_of(key)).collect())
    }

    /// Whether the voucher waits for `voucher thaw`; tells it also where the rest of its hash cannot be read.
    pub async fn is_frozen(&self, voucher: &VoucherId) -> Result<bool, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(Keys::of(voucher).voucher).arg(&["gate", "rebuild"]);
        let fields: Result<(Option<String>, Option<String>), _> = self.short().query(&command).await;
        match fields.map_err(|failure| failure.about(Some(voucher))) {
            Ok((gate, rebuild)) => Ok(gate.as_deref() == Some("frozen") && rebuild.is_none_or(|mark| mark.is_empty())),
            Err(StoreError::Damaged { .. }) => Ok(false),
            Err(problem) => Err(problem),
        }
    }

    /// The reservation of one order; `None`: it is not in flight.
    pub async fn reservation(&self, voucher: &VoucherId, order: &OrderId) -> Result<Option<Reservation>, StoreError> {
        let order = order.to_string();
        let mut command = redis::cmd("HGET");
        command.arg(Keys::of(voucher).reservations).arg(&order);
        let stored: Option<String> = self.short().query(&command).await.map_err(|failure| failure.about(Some(voucher)))?;
        let read = stored.map(|stored| scripts::reservation(&order, &stored)).transpose();
        read.map_err(|problem| damaged(voucher, problem))
    }

    /// All reservations in flight of one voucher, read in steps: one that comes, goes or changes meanwhile may be missed or old.
    pub async fn reservations(&self, voucher: &VoucherId) -> Result<Vec<Reservation>, StoreError> {
        let entries = self.scan(voucher, &Keys::of(voucher).reservations).await?;
        let read = entries.into_iter().map(|(order, stored)| scripts::reservation(&order, &stored));
        read.collect::<Result<_, _>>().map_err(|problem| damaged(voucher, problem))
    }

    /// Units held by each user (reserved or sold) of one voucher, read in steps: exact only while nothing changes.
    pub async fn held(&self, voucher: &VoucherId) -> Result<Vec<(UserId, i64)>, StoreError> {
        let entries = self.scan(voucher, &Keys::of(voucher).held).await?;
        let read = entries.into_iter().map(|(user, units)| scripts::held(user, &units));
        read.collect::<Result<_, _>>().map_err(|problem| damaged(voucher, problem))
    }

    /// Every entry of a hash once. HSCAN may give one twice; the later one stands.
    async fn scan(&self, voucher: &VoucherId, key: &str) -> Result<HashMap<String, String>, StoreError> {
        let entries: Vec<(String, String)> = self.steps(redis::cmd("HSCAN").arg(key).clone(), &[], Some(voucher)).await?;
        Ok(entries.into_iter().collect())
    }

    /// All that a command of the SCAN family gives; `command` is what stands before its cursor, `more` what stands behind.
    async fn steps<T: FromRedisValue>(
        &self,
        command: Cmd,
        more: &[&str],
        voucher: Option<&VoucherId>,
    ) -> Result<Vec<T>, StoreError> {
        let (mut all, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut command = command.clone();
            command.arg(&cursor).arg(more).arg("COUNT").arg(SCAN_STEP);
            let step = self.inner.long.query::<(String, Vec<T>)>(&command).await;
            let (next, found) = step.map_err(|failure: Failure| failure.about(voucher))?;
            all.extend(found);
            if next == "0" {
                return Ok(all);
            }
            cursor = next;
        }
    }
}

struct SettleCall<'a> {
    /// Place in the caller's list.
    at: usize,
    voucher: &'a VoucherId,
    event: &'a Event,
    offset: i64,
}

fn damaged(voucher: &VoucherId, problem: String) -> StoreError {
    StoreError::Damaged { voucher: voucher.clone(), problem }
}
