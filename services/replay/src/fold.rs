//! Folds `order-events` into the state it tells of.

use domain::State;
use events::Codec;
use infra::config::Connections;
use tokio::runtime::Handle;

use crate::{
    ReplayError,
    walk::{EventWalk, on_threads},
};

/// What the events of some partitions, up to the ends they had at the start, fold into.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    pub state: State,
    /// Events folded.
    pub events: u64,
    /// Partition and the offset up to which (not including) it was read.
    pub read_to: Vec<(i32, i64)>,
}

/// Folds whole partitions, several side by side, up to the ends captured at the start. Memory is that of the state, not of the log.
///
/// Blocks; must not be called on a tokio worker. Fails, naming the offsets, where the beginning of a partition was deleted.
pub fn fold(connections: &Connections, codec: &Codec, runtime: &Handle, partitions: &[i32]) -> Result<Fold, ReplayError> {
    let folds = on_threads(partitions.to_vec(), |partition| {
        let mut walk = EventWalk::open(connections, codec, runtime, partition)?;
        let end = walk.whole()?.stable;
        let mut fold = Fold { read_to: vec![(partition, end)], ..Fold::default() };
        walk.events(0, end, |event, _| {
            fold.state.evolve(&event);
            fold.events += 1;
        })?;
        Ok(fold)
    })?;
    Ok(folds.into_iter().reduce(merge).unwrap_or_default())
}

fn merge(mut into: Fold, from: Fold) -> Fold {
    merge_states(&mut into.state, from.state);
    into.events += from.events;
    into.read_to.extend(from.read_to);
    into
}

/// Joins the states of different partitions, which share no voucher.
pub(crate) fn merge_states(into: &mut State, from: State) {
    into.vouchers.extend(from.vouchers);
    into.orders.extend(from.orders);
    into.held.extend(from.held);
    into.payments.extend(from.payments);
}
