//! Timestamps as the API writes them: RFC 3339, UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in whole seconds.
pub(crate) fn now() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    seconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// `metav1.Time`: seconds since 1970.
pub(crate) fn seconds(since_1970: i64) -> String {
    format!("{}Z", civil(since_1970))
}

/// `metav1.MicroTime`: always six digits.
pub(crate) fn micros(since_1970: i64, nanos: i32) -> String {
    format!(
        "{}.{:06}Z",
        civil(since_1970),
        nanos.clamp(0, 999_999_999) / 1000
    )
}

/// The proleptic Gregorian date, by the days of 400-year cycles that start on 1 March.
fn civil(since_1970: i64) -> String {
    // Beyond these years RFC 3339 has no form.
    let since_1970 = since_1970.clamp(-62_135_596_800, 253_402_300_799);
    let (days, second) = (
        since_1970.div_euclid(86_400) + 719_468,
        since_1970.rem_euclid(86_400),
    );
    let (cycle, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (
        day - (153 * month + 2) / 5 + 1,
        if month < 10 { month + 3 } else { month - 9 },
    );
    let year = year + cycle * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `date -u -d @N +%FT%TZ`
    #[test]
    fn as_date_prints_them() {
        for (given, wanted) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(seconds(given), wanted);
        }
        assert_eq!(
            micros(951_782_400, 1_234_567),
            "2000-02-29T00:00:00.001234Z"
        );
        assert_eq!(seconds(i64::MIN), "0001-01-01T00:00:00Z");
        assert_eq!(seconds(i64::MAX), "9999-12-31T23:59:59Z");
    }
}
