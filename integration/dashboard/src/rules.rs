//! The alert rules with shorter times.

/// The rules with each minute as a second and each hour as a minute, in their ranges and in how long
/// something must last: so that a test need not wait for what an operator must.
pub fn quickened(rules: &str) -> String {
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
    use super::quickened;

    #[test]
    fn minutes_are_seconds_and_hours_are_minutes() {
        let rule = "expr: rate(m5_total[5m]) > 60 and x[1h]\nfor: 10m";
        let quick = "expr: rate(m5_total[5s]) > 60 and x[1m]\nfor: 10s";
        assert_eq!(quickened(rule), quick);
    }
}
