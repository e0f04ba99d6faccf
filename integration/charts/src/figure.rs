//! Number formats of reports and charts.

/// Formats a figure with three significant digits, or as a whole number from 100 on: `0.0123`,
/// `12.3`, `12,345`.
pub fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs();
    if magnitude >= 99.95 {
        return grouped(value);
    }
    // Values below 9.995 get two decimals, values below 0.9995 three decimals, and so on.
    let mut decimals = 1;
    let mut bound = 9.995;
    while magnitude < bound && decimals < 6 {
        decimals += 1;
        bound /= 10.0;
    }
    format!("{value:.decimals$}")
}

/// Formats a number with a comma for each thousand: `12,345`.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("−{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_at_least_three_significant_digits() {
        let texts = [0.012_345, 1.234, 12.34, 123.4, 12_345.6, 0.999_9, 0.0].map(short);
        let wanted = ["0.0123", "1.23", "12.3", "123", "12,346", "1.00", "0"];
        assert_eq!(texts, wanted);
        assert_eq!(short(-1_234.0), "−1,234");
    }
}
