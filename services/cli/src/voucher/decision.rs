//! Appends one request and waits for the event that answers it.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, bail};
use domain::{Event, EventBody, Request, RequestBody, VoucherId};
use events::Codec;
use infra::config::Connections;
use publish::{Delivery, RequestProducer};
use replay::Answers;
use uuid::Uuid;

use super::Act;
use crate::{DIFFERENT, OK, UNKNOWN, connect, output};

/// Prints the plan; with `--apply` appends the request to `partition` and prints what was decided.
pub(super) async fn ask(act: &Act, voucher: VoucherId, partition: i32, body: RequestBody, plan: &str) -> anyhow::Result<u8> {
    if !act.apply {
        output::steps(false, &[plan.to_owned()], "");
        return Ok(OK);
    }
    let (connections, codec) = connect::log().await?;
    let request = Request { id: Uuid::new_v4(), voucher_id: voucher, actor: act.actor.clone(), reason: act.reason.clone(), body };
    match decide(&connections, &codec, partition, &request, act.wait).await? {
        Some(event) => report(act, &event),
        None => {
            output::line(&undecided(&format!("the request {} is in the log, but it", request.id), act.wait));
            Ok(UNKNOWN)
        }
    }
}

/// What to say of a request in the log that no lane has decided in time.
pub(crate) fn undecided(request: &str, waited: Duration) -> String {
    format!("{request} was not decided within {} s: is `doorbuster run orders` running?", waited.as_secs())
}

/// Appends the request and gives the event that answers it; `None` if none came within `wait`. An error says that the request is
/// certainly not in the log.
pub(crate) async fn decide(
    connections: &Connections,
    codec: &Codec,
    partition: i32,
    request: &Request,
    wait: Duration,
) -> anyhow::Result<Option<Event>> {
    let answers = Answers::watch(connections, codec, BTreeSet::from([partition])).await?;
    let producer = RequestProducer::new(connections, codec.clone()).context("cannot make a producer")?;
    match producer.send(partition, request).await {
        Delivery::Persisted { .. } => (),
        Delivery::NotPersisted { reason } => bail!("the request did not get into the log: {reason}"),
        Delivery::Unknown { reason } => {
            tracing::warn!(reason, "the request may or may not be in the log; waiting for its answer")
        }
    }
    let mut answered = answers.wait(BTreeSet::from([request.id]), |event| event.request_id, wait).await?;
    Ok(answered.remove(&request.id))
}

fn report(act: &Act, event: &Event) -> anyhow::Result<u8> {
    let refusal = match &event.body {
        EventBody::RequestRefused { reason, .. } => Some(*reason),
        _ => None,
    };
    if act.json {
        output::json(event)?;
    } else if let Some(reason) = refusal {
        output::line(&output::red(&format!("refused: {} ({})", reason.as_str(), reason.sentence())));
    } else {
        output::line(&output::green(&describe(event)));
    }
    Ok(if refusal.is_some() { DIFFERENT } else { OK })
}

fn describe(event: &Event) -> String {
    let name = event.voucher_id.as_ref().map_or("?", VoucherId::as_str);
    let what = match &event.body {
        EventBody::VoucherOpened(terms) => {
            format!("opened on partition {} with {} units, terms version 1", terms.partition, terms.total)
        }
        EventBody::VoucherChanged { state, total, terms_version } => {
            format!("is {}, {total} units in all, {} left, terms version {terms_version}", state.as_str(), event.remaining)
        }
        other => other.name().to_owned(),
    };
    format!("voucher {name} {what} (event {} of this voucher)", event.voucher_seq)
}
