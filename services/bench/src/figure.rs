//! What a run says: figures beside their ceilings and goals, as a table and as `bench.json`.

use serde::Serialize;

/// What must hold of a figure's ratio to its ceiling; where it has none, of the figure itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn bound(self) -> f64 {
        match self {
            Goal::AtLeast(bound) | Goal::AtMost(bound) => bound,
        }
    }

    fn is_held(self, found: f64) -> bool {
        match self {
            Goal::AtLeast(bound) => found >= bound,
            Goal::AtMost(bound) => found <= bound,
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
    /// `None`: there is none, the goal is the figure's own.
    pub(crate) ceiling: Option<f64>,
    /// Value to ceiling.
    pub(crate) ratio: Option<f64>,
    pub(crate) goal: f64,
    pub(crate) held: bool,
    /// How the goal reads, and the rounds' spread: for the table only.
    #[serde(skip)]
    notes: String,
}

impl Figure {
    /// `notes`: whatever the reader of the table should know besides.
    pub(crate) fn new(
        name: &'static str,
        unit: &'static str,
        value: f64,
        ceiling: Option<f64>,
        goal: Goal,
        notes: impl Into<String>,
    ) -> Self {
        let ratio = ceiling.map(|ceiling| value / ceiling);
        let sign = if matches!(goal, Goal::AtLeast(_)) { ">=" } else { "<=" };
        let notes = format!("{sign} {:<6} {}", goal.bound(), notes.into());
        Self { name, unit, value, ceiling, ratio, goal: goal.bound(), held: goal.is_held(ratio.unwrap_or(value)), notes }
    }
}

/// One value a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(pub(crate) Vec<f64>);

impl Rounds {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle one, or the mean of the two in the middle. Not a number where there was no round.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// Smallest and largest.
    pub(crate) fn spread(&self) -> String {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        format!("{} rounds, {} .. {}", self.0.len(), short(least), short(most))
    }
}

/// What parts that do their work one after the other give together: the harmonic sum of their rates.
pub(crate) fn in_turn(rates: &[f64]) -> f64 {
    1.0 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>()
}

/// A number with about four digits.
pub(crate) fn short(number: f64) -> String {
    match number.abs() {
        a if a >= 100.0 => format!("{number:.0}"),
        a if a >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// All figures, a line each.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut text = format!(
        "{:<22} {:<14} {:>10} {:>10} {:>6}  {:<4}  goal and spread\n",
        "figure", "unit", "value", "ceiling", "ratio", "held"
    );
    for figure in figures {
        let or_dash = |number: Option<f64>| number.map_or("-".to_owned(), short);
        let held = if figure.held { "yes" } else { "NO" };
        let (value, ceiling, ratio) = (short(figure.value), or_dash(figure.ceiling), or_dash(figure.ratio));
        text += &format!(
            "{:<22} {:<14} {value:>10} {ceiling:>10} {ratio:>6}  {held:<4}  {}\n",
            figure.name, figure.unit, figure.notes
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(Rounds(vec![9.0, 1.0, 5.0]).median(), 5.0);
        assert_eq!(Rounds(vec![9.0, 1.0, 5.0, 7.0]).median(), 6.0);
        assert!(Rounds::default().median().is_nan());
    }

    #[test]
    fn parts_in_turn_add_their_times() {
        assert!((in_turn(&[3.0, 6.0]) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_goal_is_held_on_its_own_side() {
        let held = |value, ceiling, goal| Figure::new("f", "u", value, ceiling, goal, "").held;
        assert!(held(7.0, Some(10.0), Goal::AtLeast(0.7)) && !held(6.9, Some(10.0), Goal::AtLeast(0.7)));
        assert!(held(50.0, Some(10.0), Goal::AtMost(5.0)) && !held(51.0, Some(10.0), Goal::AtMost(5.0)));
        assert!(held(120.0, None, Goal::AtMost(120.0)) && !held(121.0, None, Goal::AtMost(120.0)));
    }

    #[test]
    fn the_file_has_the_promised_fields_and_no_others() {
        let json = serde_json::to_value(Figure::new("f", "u", 1.0, None, Goal::AtMost(2.0), "note")).unwrap();
        let fields: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["ceiling", "goal", "held", "name", "ratio", "unit", "value"]);
    }
}
