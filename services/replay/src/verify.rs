//! Whether each event is the one that the rules make of its request: the log alone, no store is asked.

use std::{collections::HashMap, time::Duration};

use events::Codec;
use infra::config::Connections;
use serde::Serialize;

use crate::{
    ReplayError, Verdict,
    audit::log::{self, Cut, Told},
    verdict::Findings,
    walk::{Log, PartitionRead, open_all, partitions, side_by_side},
};

/// What was verified, and what it says.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    #[serde(flatten)]
    pub verdict: Verdict,
    pub partitions: i32,
    pub read: Vec<PartitionRead>,
    /// Answered requests, and the events that answer them.
    pub requests: u64,
    pub events: u64,
    /// Requests behind the last event: not answered yet, not wrong.
    pub unanswered: i64,
}

/// Decides every answered request again and compares with its event. Events that other rules than ours decided are counted and give
/// [`Verdict::CannotTell`], as does what cannot be read.
pub async fn verify(connections: &Connections, codec: &Codec) -> Verified {
    let (mut verified, mut findings) = (Verified::default(), Findings::default());
    if let Err(error) = look(connections, codec, &mut verified, &mut findings).await {
        findings.doubt(error.to_string());
    }
    verified.verdict = findings.verdict();
    verified
}

async fn look(
    connections: &Connections,
    codec: &Codec,
    verified: &mut Verified,
    findings: &mut Findings,
) -> Result<(), ReplayError> {
    verified.partitions = partitions(connections).await?;
    let log = Log::of(connections, codec);
    let opened = open_all(verified.partitions, move |p| log::open(&log, p)).await?;
    let parts = side_by_side(opened, |mut opened| {
        let next_offset = opened.events.last()?.map(|(event, _)| event.request_offset + 1);
        // Asked for afterwards: what was published meanwhile is part of it.
        opened.published = opened.events.whole()?.stable;
        log::told(opened, &Cut { next_offset, redis_seqs: &HashMap::new(), patience: Duration::ZERO })
    })
    .await?;
    let all = Told::join(parts, true, findings);
    (verified.requests, verified.events, verified.unanswered) = (all.requests, all.events, all.undecided);
    verified.read = all.read;
    Ok(())
}
