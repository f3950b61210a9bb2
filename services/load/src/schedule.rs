//! When the buyers arrive and who of them clicks twice: drawn from a seed, before the first one does.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

/// How arrivals spread over the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum Shape {
    /// The same rate all the time.
    #[default]
    Even,
    /// The rate grows from nothing to twice the mean.
    Ramp,
    /// The rate falls from twice the mean to nothing: a sale that everybody waited for.
    Rush,
}

/// One buyer's arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrival {
    /// Index of the buyer.
    pub(crate) buyer: usize,
    /// After the start of the run.
    pub(crate) at: Duration,
    pub(crate) clicks_twice: bool,
}

/// All arrivals in order. The same arguments always give the same schedule.
pub(crate) fn arrivals(buyers: usize, window: Duration, shape: Shape, double_clicks: f64, seed: u64) -> Vec<Arrival> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..buyers).collect();
    order.shuffle(&mut random);
    let mut draw = |buyer| {
        let drawn: f64 = random.random();
        let place = match shape {
            Shape::Even => drawn,
            Shape::Ramp => drawn.sqrt(),
            Shape::Rush => 1.0 - drawn.sqrt(),
        };
        Arrival { buyer, at: window.mul_f64(place), clicks_twice: random.random_bool(double_clicks.clamp(0.0, 1.0)) }
    };
    let mut arrivals: Vec<Arrival> = order.into_iter().map(&mut draw).collect();
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    #[test]
    fn everybody_arrives_once_in_order_within_the_window() {
        let arrivals = arrivals(1_000, WINDOW, Shape::Even, 0.0, 1);
        assert!(arrivals.is_sorted_by_key(|a| a.at) && arrivals.iter().all(|a| a.at <= WINDOW && !a.clicks_twice));
        let mut buyers: Vec<usize> = arrivals.iter().map(|a| a.buyer).collect();
        buyers.sort_unstable();
        assert_eq!(buyers, (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule_and_another_gives_another() {
        let of = |seed| arrivals(100, WINDOW, Shape::Ramp, 0.5, seed);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn shapes_put_the_weight_where_they_say() {
        let early = |shape| arrivals(2_000, WINDOW, shape, 0.1, 3).iter().filter(|a| a.at < WINDOW / 2).count();
        assert!((900..1_100).contains(&early(Shape::Even)));
        assert!(early(Shape::Ramp) < 600 && early(Shape::Rush) > 1_400);
    }

    #[test]
    fn about_the_asked_share_clicks_twice() {
        let twice = arrivals(2_000, WINDOW, Shape::Even, 0.1, 3).iter().filter(|a| a.clicks_twice).count();
        assert!((140..260).contains(&twice), "{twice}");
    }
}
