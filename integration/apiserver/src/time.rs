//! Timestamps as the Kubernetes API writes them: RFC 3339 in UTC.

use jiff::Timestamp;

/// Times that RFC 3339 can represent (years 1 to 9999), in seconds since 1970.
const YEARS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_207_200;

/// Returns the current time as a `metav1.Time`, in whole seconds.
pub(crate) fn now() -> String {
    seconds(Timestamp::now().as_second())
}

/// Formats seconds since 1970 as `metav1.Time`.
pub(crate) fn seconds(since_1970: i64) -> String {
    civil(since_1970, 0).to_string()
}

/// Formats a time as `metav1.MicroTime`, always with six decimals.
pub(crate) fn micros(since_1970: i64, nanos: i32) -> String {
    let format = "%Y-%m-%dT%H:%M:%S%.6fZ";
    civil(since_1970, nanos).strftime(format).to_string()
}

/// Parses an RFC 3339 timestamp into seconds since 1970 and nanoseconds. Returns `None` if the text
/// is not a timestamp.
pub(crate) fn parse(text: &str) -> Option<(i64, i32)> {
    let time: Timestamp = text.parse().ok()?;
    let (second, nanos) = (time.as_second(), time.subsec_nanosecond());
    Some(if nanos < 0 {
        (second - 1, nanos + 1_000_000_000)
    } else {
        (second, nanos)
    })
}

fn civil(since_1970: i64, nanos: i32) -> Timestamp {
    let second = since_1970.clamp(*YEARS.start(), *YEARS.end());
    Timestamp::new(second, nanos.clamp(0, 999_999_999)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares formatted timestamps with the output of `date -u -d @SECONDS +%FT%TZ`.
    #[test]
    fn times_are_formatted_like_the_command_date() {
        for (given, wanted) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(seconds(given), wanted);
            assert_eq!(parse(wanted), Some((given, 0)));
        }
        let micro = "2000-02-29T00:00:00.001234Z";
        assert_eq!(micros(951_782_400, 1_234_567), micro);
        assert_eq!(micros(951_782_400, 0), "2000-02-29T00:00:00.000000Z");
        assert_eq!(parse(micro), Some((951_782_400, 1_234_000)));
        assert_eq!(parse("1969-12-31T23:59:59.25Z"), Some((-1, 250_000_000)));
        assert_eq!(parse("yesterday"), None);
        assert_eq!(seconds(i64::MIN), "0001-01-01T00:00:00Z");
        assert!(seconds(i64::MAX).starts_with("9999-12-"));
    }
}
