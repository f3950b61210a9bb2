//! Instants and durations as people write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::time::{OffsetDateTime, format_description::well_known::Rfc3339};
use domain::Timestamp;
use replay::Point;

/// The instant now, by this machine's clock.
pub(crate) fn now() -> Timestamp {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
    Timestamp(i64::try_from(millis).unwrap_or(i64::MAX))
}

/// `now`, `+10m` or `-1h` from now, or RFC 3339 with its offset (`2026-11-27T09:00:00+01:00`): an instant without one would be
/// somebody's local time.
pub(crate) fn parse_instant(text: &str) -> Result<Timestamp, String> {
    if text == "now" {
        return Ok(now());
    }
    for (sign, direction) in [('+', 1), ('-', -1)] {
        if let Some(distance) = text.strip_prefix(sign) {
            return Ok(now().plus(direction * parse_duration(distance)?.as_millis() as i64));
        }
    }
    let instant = OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|e| format!("{e}; write now, +10m, -1h or an instant with its offset such as 2026-11-27T09:00:00+01:00"))?;
    i64::try_from(instant.unix_timestamp_nanos().div_euclid(1_000_000)).map(Timestamp).map_err(|e| e.to_string())
}

/// An offset, or an instant as [`parse_instant`] reads it.
pub(crate) fn parse_point(text: &str) -> Result<Point, String> {
    match text.parse() {
        Ok(offset) if text.bytes().all(|b| b.is_ascii_digit()) => Ok(Point::Offset(offset)),
        _ => parse_instant(text).map(Point::Time).map_err(|e| format!("neither an offset, 0 or more, nor an instant: {e}")),
    }
}

/// `500ms`, `10s`, `15m`, `2h`, `1d`. As milliseconds it fits 63 bits.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("write a whole number with its unit: 500ms, 10s, 15m, 2h or 1d".to_owned()),
    };
    let number: i64 = text[..digits].parse().map_err(|e| format!("{e}"))?;
    let millis = number.checked_mul(unit).ok_or("too long")?;
    Ok(Duration::from_millis(millis.unsigned_abs()))
}

/// As RFC 3339 in UTC, to the millisecond.
pub(crate) fn format_instant(at: Timestamp) -> String {
    let nanos = i128::from(at.0) * 1_000_000;
    let formatted = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok().and_then(|t| t.format(&Rfc3339).ok());
    formatted.unwrap_or_else(|| format!("{} ms", at.0))
}

/// How long ago that was, in the largest unit of which there is one: `90 s` is `1 m`.
pub(crate) fn format_age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.0.saturating_sub(at.0).max(0) / 1_000;
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let (length, unit) = units.into_iter().find(|(length, _)| seconds >= *length).unwrap_or((1, "s"));
    format!("{} {unit}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_need_an_offset_and_keep_their_milliseconds() {
        assert_eq!(parse_instant("1970-01-01T01:00:00.5+01:00"), Ok(Timestamp(500)));
        assert_eq!(parse_instant("1969-12-31T23:59:59.9995Z"), Ok(Timestamp(-1)));
        assert!(parse_instant("2026-11-27T09:00:00").is_err());
        assert_eq!(format_instant(Timestamp(1_500)), "1970-01-01T00:00:01.5Z");
    }

    #[test]
    fn relative_instants_count_from_now() {
        let ahead = parse_instant("+10m").unwrap().0 - now().0;
        assert!((599_000..=600_000).contains(&ahead));
        let back = parse_instant("-1h").unwrap().0 - now().0;
        assert!((-3_600_000..-3_599_000).contains(&back));
    }

    #[test]
    fn ages_are_told_in_their_largest_unit() {
        let ages = [-5, 59, 60, 7_199, 86_400].map(|s| format_age(Timestamp(0), Timestamp(s * 1_000)));
        assert_eq!(ages, ["0 s", "59 s", "1 m", "1 h", "1 d"]);
    }

    #[test]
    fn a_point_is_an_offset_or_an_instant() {
        assert_eq!(parse_point("12"), Ok(Point::Offset(12)));
        assert_eq!(parse_point("1970-01-01T00:00:00.5Z"), Ok(Point::Time(Timestamp(500))));
        assert!(matches!(parse_point("-10m"), Ok(Point::Time(_))));
        assert!(["", "+5", "-5", "12x"].iter().all(|bad| parse_point(bad).is_err()));
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "5", "m", "1.5s", "-1s", "9223372036854775807d"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
    }
}
