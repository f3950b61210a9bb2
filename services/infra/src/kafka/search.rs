//! Finds the event that answers a request without reading what lies between.
//!
//! Events answer the requests in order, one each, so their request offsets grow by one from event to event; markers and aborted records only
//! add to the distance. An event that answers a request `n` before the wanted one is therefore at least `n` offsets before the wanted event:
//! going on by exactly so many never passes it, and mostly meets it.

/// The first offset in `low..high` from which on events answer requests at or beyond `target`; `high`: there is none. In a log that has the
/// answer to `target` twice it may be that of either.
///
/// `probe` gives the first event at or after an offset and below another one: its offset, and the request it answers. `hint`: where to look
/// first. An event that answers `target` itself ends the search.
pub(super) fn first_answer<E>(
    target: i64,
    (mut low, mut high): (i64, i64),
    hint: i64,
    mut probe: impl FnMut(i64, i64) -> Result<Option<(i64, i64)>, E>,
) -> Result<i64, E> {
    let (mut at, mut back, mut before) = (hint, 1, i64::MAX);
    // Below `low` events answer less than `target`, at or above `high` they do not.
    while low < high {
        at = at.clamp(low, high - 1);
        match probe(at, high)? {
            Some((offset, answers)) if answers == target => return Ok(offset),
            Some((offset, answers)) if answers < target => {
                low = offset + 1;
                let left = target - answers;
                // Where most records are no events, steps of that kind are too short.
                at = if left <= before / 2 { offset.saturating_add(left) } else { low.midpoint(high) };
                before = left;
            }
            too_far => {
                high = at;
                // Growing, since what is stepped over may be a long stretch without events.
                at -= back.max(too_far.map_or(0, |(_, answers)| answers - target));
                back = back.saturating_mul(2);
            }
        }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Offsets of the events that answer requests 0, 1, 2, ... where each `batch` of them is followed by so many other records.
    fn log(events: i64, batch: i64, others: i64) -> Vec<i64> {
        (0..events).map(|n| n + n / batch * others).collect()
    }

    /// Where the search ends, and how many events it looked at.
    fn found(log: &[i64], target: i64, hint: i64) -> (i64, usize) {
        let mut looks = 0;
        let end = log.last().map_or(0, |last| last + 1);
        let probe = |from: i64, to: i64| {
            looks += 1;
            let answers = log.partition_point(|offset| *offset < from);
            let event = log.get(answers).filter(|offset| **offset < to).map(|offset| (*offset, answers as i64));
            Ok::<_, Infallible>(event)
        };
        let Ok(at) = first_answer(target, (0, end), hint, probe);
        (at, looks)
    }

    #[test]
    fn the_event_is_found_from_wherever_one_begins() {
        for (batch, others) in [(1, 0), (1, 1), (100, 1), (7, 900)] {
            let log = log(2_000, batch, others);
            let end = log.last().unwrap() + 1;
            for target in [0, 1, 699, 700, 1_234, 1_999] {
                for hint in [0, log[target as usize], log[700], end - 1, end, end + 5_000] {
                    let (at, looks) = found(&log, target, hint);
                    assert_eq!(at, log[target as usize], "request {target} from {hint}, {others} after each {batch}");
                    assert!(looks <= 50, "{looks} looks for request {target} from {hint}, {others} after each {batch}");
                }
            }
            assert_eq!(found(&log, 2_000, 0).0, end, "not answered yet");
        }
        assert_eq!(found(&[], 5, 0).0, 0);
    }

    /// The time of a request leads to an event of that time, which is behind by as many as were waiting then.
    #[test]
    fn a_log_a_hundred_times_as_long_takes_no_more_looks() {
        for (batch, others) in [(100, 1), (1, 1)] {
            let looks = |events: i64| {
                let log = log(events, batch, others);
                let target = events / 2;
                found(&log, target, log[(target - 5_000) as usize]).1
            };
            let (short, long) = (looks(10_001), looks(1_000_000));
            assert!(long <= short + 1 && short <= 15, "{short} and {long} looks, {others} after each {batch}");
        }
    }

    #[test]
    fn a_log_that_lacks_the_event_or_has_it_twice_ends_the_search_too() {
        // Request 3 has no event, request 1 has two.
        let answers = [0, 1, 1, 2, 4, 5];
        let look = |target, hint| {
            let probe = |from: i64, to: i64| {
                let event = answers.get(from as usize).filter(|_| from < to).map(|answers| (from, *answers));
                Ok::<_, Infallible>(event)
            };
            let Ok(at) = first_answer(target, (0, 6), hint, probe);
            at
        };
        for hint in [-9, 0, 3, 5, 6, 99] {
            assert_eq!((look(3, hint), look(9, hint)), (4, 6), "from {hint}");
            assert!([1, 2].contains(&look(1, hint)), "from {hint}");
        }
    }
}
