//! Shortens the durations in alert rules.

/// Returns the rules with seconds instead of minutes, and minutes instead of hours, in ranges and
/// in `for`. A test then waits seconds instead of minutes.
pub fn shorten_durations(rules: &str) -> String {
    let mut quick = String::with_capacity(rules.len());
    let mut digits = 0;
    let mut rest = rules.chars().peekable();
    while let Some(c) = rest.next() {
        let ends = rest.peek().is_none_or(|next| !next.is_alphanumeric());
        quick.push(match c {
            'm' if digits > 0 && ends => 's',
            'h' if digits > 0 && ends => 'm',
            c => c,
        });
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
    }
    quick
}

#[cfg(test)]
mod tests {
    use super::shorten_durations;

    #[test]
    fn durations_in_alert_rules_are_shortened_for_tests() {
        let rule = "expr: rate(m5_total[5m]) > 60 and x[1h]\nfor: 10m";
        let wanted = "expr: rate(m5_total[5s]) > 60 and x[1m]\nfor: 10s";
        assert_eq!(shorten_durations(rule), wanted);
    }
}
