//! Headers of a redriven request: the dead letter it comes from, how often that was redriven, by whom and why. So the log itself is the
//! record of what was done; when is the record's own instant. A redriven request that ends as a dead letter again carries them along.

use crate::dead_letter::{Place, text};

/// The dead letter, as `topic/partition/offset`.
const LETTER: &str = "doorbuster.redrive.letter";
/// Times that what is in the record was redriven, this time included.
const TIMES: &str = "doorbuster.redrive.times";
/// Who did it.
const BY: &str = "doorbuster.redrive.by";
/// Why, in his words.
const REASON: &str = "doorbuster.redrive.reason";
/// The text fields that were set to something else than the dead letter has, with commas between them.
const EDITED: &str = "doorbuster.redrive.edited";

/// What the headers of a redriven request say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    pub letter: Place,
    pub times: u32,
    pub by: String,
    pub reason: Option<String>,
    pub edited: Vec<String>,
}

impl Redrive {
    pub fn headers(&self) -> Vec<(String, Vec<u8>)> {
        let edited = (!self.edited.is_empty()).then(|| self.edited.join(","));
        let headers = [
            (LETTER, Some(self.letter.to_string())),
            (TIMES, Some(self.times.to_string())),
            (BY, Some(self.by.clone())),
            (REASON, self.reason.clone()),
            (EDITED, edited),
        ];
        headers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into_bytes()))).collect()
    }
}

/// The dead letter that a request was made of; `None`: it was not redriven.
pub fn letter(headers: &[(String, Vec<u8>)]) -> Option<Place> {
    text(headers, LETTER).and_then(Place::parse)
}

/// How often what is in a record was redriven.
pub fn times(headers: &[(String, Vec<u8>)]) -> u32 {
    text(headers, TIMES).and_then(|times| times.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_headers_say_is_read_back() {
        let place = Place { topic: "order-dead-letters".into(), partition: 0, offset: 7 };
        let mut redrive = Redrive {
            letter: place.clone(),
            times: 2,
            by: "ann".into(),
            reason: None,
            edited: vec!["title".into(), "actor".into()],
        };
        let headers = redrive.headers();
        assert_eq!((letter(&headers), times(&headers)), (Some(place), 2));
        assert_eq!(
            (text(&headers, BY), text(&headers, REASON), text(&headers, EDITED)),
            (Some("ann"), None, Some("title,actor"))
        );
        (redrive.reason, redrive.edited) = (Some("why".into()), Vec::new());
        let headers = redrive.headers();
        assert_eq!((text(&headers, REASON), text(&headers, EDITED)), (Some("why"), None));
        assert_eq!((letter(&[]), times(&[])), (None, 0));
    }
}
