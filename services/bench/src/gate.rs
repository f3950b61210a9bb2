//! What buyers meet: one purchase process, alone with Redis and Kafka. No lane runs, so that the machine does nothing else.

use std::{thread, time::Duration};

use anyhow::{Context, Result};
use domain::VoucherId;
use testkit::{Service, World};

use crate::{
    bare::{handler::Handler, kafka, redis},
    buyers,
    figure::{Figure, Goal, Rounds, in_turn},
    http,
    machine::resident,
    site::{self, Site},
};

pub(crate) const FIGURES: [&str; 4] = ["accepted", "sold_out", "overload", "memory_purchase"];

const CONNECTIONS: usize = 64;
/// More than purchase lets in at one moment (2,048), so that it has to send buyers away.
const CROWD: usize = 4_096;
/// What a buyer in overload waits for at most, for his answer to count.
const OVERLOAD_TIME: Duration = Duration::from_secs(5);
const ACCEPTED: u16 = 202;
const SOLD_OUT: u16 = 409;
/// Units enough for everybody.
const PLENTY: i64 = 100_000_000;
/// Purchases before memory is first looked at, then in all.
const MEMORY: (usize, usize) = (100_000, 1_000_000);

/// Purchase in a world of its own, with a voucher on sale and one sold out.
struct Gate {
    purchase: Service,
    world: World,
    open: VoucherId,
    empty: VoucherId,
}

impl Gate {
    fn start(site: &Site) -> Result<Self> {
        let world = site.world(1);
        let (open, empty) = (world.voucher_id(), world.voucher_id());
        site::on_sale_in_redis(&world, &open, site::terms(&world, PLENTY, 0))?;
        site::on_sale_in_redis(&world, &empty, site::terms(&world, 1, 0))?;
        let purchase = world.start_service("purchase", &[]);
        let gate = Self { purchase, world, open, empty };
        http::closed(site::address(&gate.purchase)?, buyers::calls(&gate.empty, 1), 1, ACCEPTED)?.only(ACCEPTED)?;
        Ok(gate)
    }

    fn accept(&self, count: usize) -> Result<http::Answers> {
        let calls = buyers::calls(&self.open, count);
        http::closed(site::address(&self.purchase)?, calls, CONNECTIONS, ACCEPTED)?.only(ACCEPTED)
    }

    fn turn_away(&self, calls: Vec<Vec<u8>>) -> Result<f64> {
        let answers = http::closed(site::address(&self.purchase)?, calls, CONNECTIONS, SOLD_OUT)?;
        Ok(answers.only(SOLD_OUT)?.rate(SOLD_OUT))
    }
}

/// Accepted purchases a second, for whoever needs only that: one short round after a warm-up.
pub(crate) fn accept_rate(site: &Site) -> Result<f64> {
    let gate = Gate::start(site)?;
    gate.accept(site.scale.count(100_000))?;
    Ok(gate.accept(site.scale.count(60_000))?.rate(ACCEPTED))
}

/// Measures all of [`FIGURES`], and gives the accept rate, too.
pub(crate) fn measure(site: &Site) -> Result<(Vec<Figure>, f64)> {
    let gate = Gate::start(site)?;
    let handler = Handler::start(&gate.world)?;
    let connections = gate.world.connections();
    let memory = || resident(gate.purchase.process.pid().unwrap_or(0)).context("purchase is gone");

    site.say("gate: warm-up");
    gate.accept(site.scale.count(MEMORY.0))?;
    let memory_before = memory()?;
    let each_round = site.scale.count(MEMORY.1 - MEMORY.0) / site.scale.rounds;
    let (many, few) = (site.scale.count(100_000), site.scale.count(60_000));
    let turned_away = || buyers::calls(&gate.empty, many);
    let payload = gate.world.codec().encode_request(&site::request(&gate.world, &gate.open, &buyers::names(1)[0]))?;
    let mut rounds: [Rounds; 6] = Default::default();
    let [bare_http, bare_reserve, bare_sold_out, bare_produce, accepted, sold_out] = &mut rounds;
    // Round 0 warms up.
    for round in 0..=site.scale.rounds {
        let http = http::closed(handler.address, turned_away(), CONNECTIONS, ACCEPTED)?.only(ACCEPTED)?.rate(ACCEPTED);
        let tries = |voucher, count| site::order_and_user(&gate.world, voucher, count);
        // Vouchers of their own, on the same terms, so that the ceilings do not change what the services see.
        let (bare_open, bare_empty) = (gate.world.voucher_id(), gate.world.voucher_id());
        site::on_sale_in_redis(&gate.world, &bare_open, site::terms(&gate.world, PLENTY, 0))?;
        site::on_sale_in_redis(&gate.world, &bare_empty, site::terms(&gate.world, 1, 0))?;
        let reserve = redis::reserve(&connections.redis, &bare_open, tries(&bare_open, many), "RESERVED")?;
        redis::reserve(&connections.redis, &bare_empty, tries(&bare_empty, 1), "RESERVED")?;
        let refuse = redis::reserve(&connections.redis, &bare_empty, tries(&bare_empty, many), "SOLD_OUT")?;
        let topic = &connections.topics.requests;
        // The better of the two settings is the ceiling.
        let produce = |linger| kafka::produce(connections, topic, payload.clone(), few, linger);
        let (at_once, lingering) = (produce("0")?, produce("1")?);
        if round == 0 {
            continue;
        }
        let meter = site.meter(&[&gate.purchase]);
        let answers = gate.accept(each_round)?;
        let accept_cost = meter.each(answers.of(ACCEPTED));
        let calls = turned_away();
        let meter = site.meter(&[&gate.purchase]);
        let sold = gate.turn_away(calls)?;
        let sold_cost = meter.each(many as u64);
        bare_http.push(http);
        bare_reserve.push(reserve);
        bare_sold_out.push(refuse);
        bare_produce.push(at_once.max(lingering));
        accepted.push(answers.rate(ACCEPTED));
        sold_out.push(sold);
        let latency = |share| answers.latency.at(share).unwrap_or_default().as_secs_f64() * 1e3;
        site.say(&format!(
            "gate round {round}: bare handler {http:.0}/s, reserve {reserve:.0}/s, refusal {refuse:.0}/s, produce {at_once:.0}/s \
             (linger 0) {lingering:.0}/s (linger 1); accepted {:.0}/s (p50 {:.2} ms, p99 {:.2} ms), sold out {sold:.0}/s",
            answers.rate(ACCEPTED),
            latency(0.5),
            latency(0.99),
        ));
        site.say(&format!("  an accepted purchase: {accept_cost}"));
        site.say(&format!("  a sold-out answer:    {sold_cost}"));
    }
    let memory_after = memory()?;
    let accept_ceiling = in_turn(&[bare_http.median(), bare_reserve.median(), bare_produce.median()]);
    let refuse_ceiling = in_turn(&[bare_http.median(), bare_sold_out.median()]);
    let rate = accepted.median();
    let figures = vec![
        Figure::new("accepted", "purchases/s", rate, Some(accept_ceiling), Goal::AtLeast(0.7), accepted.spread()),
        Figure::new("sold_out", "answers/s", sold_out.median(), Some(refuse_ceiling), Goal::AtLeast(0.8), sold_out.spread()),
        overload(site, &gate, rate)?,
        Figure::new("memory_purchase", "bytes", memory_after, Some(memory_before), Goal::AtMost(1.1), ""),
    ];
    drop(gate);
    redis::empty(&site.stack.endpoints().redis)?;
    Ok((figures, rate))
}

/// Three times as many buyers as can be served, on far more connections than are let in.
fn overload(site: &Site, gate: &Gate, rate: f64) -> Result<Figure> {
    let address = site::address(&gate.purchase)?;
    let (mut goodput, time) = (Rounds::default(), site.scale.time(OVERLOAD_TIME));
    for round in 1..=site.scale.rounds {
        let arrivals = buyers::arrivals(3.0 * rate, time, round as u64);
        let calls = buyers::calls(&gate.open, arrivals.len());
        let meter = site.meter(&[&gate.purchase]);
        let answers = http::open(address, calls, arrivals, CROWD, ACCEPTED, time)?;
        let cost = meter.each(answers.of(ACCEPTED));
        goodput.push(answers.rate(ACCEPTED));
        let p99 = answers.latency.at(0.99).unwrap_or_default();
        site.say(&format!(
            "overload round {round}: {:?} in {time:?}, accept p99 {p99:?}; for an accepted one: {cost}",
            answers.statuses
        ));
        // What is still on its way belongs to nobody.
        while site::metric(&gate.purchase, "doorbuster_purchase_in_flight")? > 0.0 {
            thread::sleep(site::LOOK);
        }
    }
    Ok(Figure::new("overload", "purchases/s", goodput.median(), Some(rate), Goal::AtLeast(0.9), goodput.spread()))
}
