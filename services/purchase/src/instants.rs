//! Instants as people and programs read them: RFC 3339, UTC, milliseconds.

use domain::Timestamp;
use time::OffsetDateTime;

/// First and last millisecond that RFC 3339 can write: the years 1 to 9999.
const RANGE: (i64, i64) = (-62_135_596_800_000, 253_402_300_799_999);

/// `2026-01-31T10:00:00.000Z`. An instant beyond what RFC 3339 can write is written as the nearest that it can.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let nanos = i128::from(at.0.clamp(RANGE.0, RANGE.1)) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second, milli) = at.to_hms_milli();
    format!("{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z", at.year(), u8::from(at.month()), at.day())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_in_utc_with_milliseconds() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_709_210_096_789, "2024-02-29T12:34:56.789Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (i64::MIN, "0001-01-01T00:00:00.000Z"),
            (i64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(Timestamp(millis)), text);
        }
    }
}
