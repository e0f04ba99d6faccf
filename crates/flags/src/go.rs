//! Parsers for flag values and flag names, as Go programs accept them.
//!
//! Existing manifests contain spellings that Go's `strconv`, `time` and pflag accept but Rust's
//! parsers reject, such as `T`, `1h30m`, `0x10` and `--proxy_mode`.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::IntErrorKind;
use std::time::Duration;

use source::address;

/// Parses a boolean like `strconv.ParseBool`.
pub fn bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("give true or false"),
    }
}

/// Parses a 32-bit integer like `strconv.ParseInt` with base 0. Accepts `14`, `0xe`, `0o16`, `016`,
/// `0b1110` and `1_4`.
pub fn int(text: &str) -> Result<i32, &'static str> {
    const WRONG: &str = "give a whole number";
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = [("0x", 16), ("0o", 8), ("0b", 2), ("0", 8)]
        .into_iter()
        .find_map(|(prefix, radix)| Some((radix, lower.strip_prefix(prefix)?)))
        .filter(|(_, digits)| !digits.is_empty())
        .unwrap_or((10, &lower));
    if digits.starts_with(['+', '-']) {
        return Err(WRONG);
    }
    let digits = digits.replace('_', "");
    let number = i32::from_str_radix(&format!("{sign}{digits}"), radix);
    number.map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
            "give a whole number from -2147483648 to 2147483647"
        }
        _ => WRONG,
    })
}

/// Parses a floating-point number like `strconv.ParseFloat`, except hexadecimal numbers.
pub fn float(text: &str) -> Result<f32, &'static str> {
    text.parse().map_err(|_| "give a number such as 5 or 2.5")
}

/// Error text for a value that is not a duration.
const NO_DURATION: &str = "give a duration such as 30s, 1m30s, 500ms or 0";
/// Error text for a duration above `i64::MAX` nanoseconds, which Go cannot represent.
const TOO_LONG: &str = "the duration is too long; give less than 292 years";

/// Parses a duration like `time.ParseDuration`, but rejects a negative one, because no flag
/// supports it.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    let rest = text.strip_prefix('+').unwrap_or(text);
    if rest.starts_with('-') {
        return Err("a negative duration has no meaning here; give one such as 30s, or 0");
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut total) = (rest, 0_u64);
    loop {
        let number_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or(NO_DURATION)?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        total = total
            .checked_add(nanoseconds(number, unit)?)
            .filter(|total| i64::try_from(*total).is_ok())
            .ok_or(TOO_LONG)?;
        if after.is_empty() {
            return Ok(Duration::from_nanos(total));
        }
        rest = after;
    }
}

/// Converts `number`, digits with at most one decimal point, from the time unit `unit` to
/// nanoseconds. Fails with advice if the number or unit is invalid, or if the result is too large.
fn nanoseconds(number: &str, unit: &str) -> Result<u64, &'static str> {
    let unit: u64 = match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return Err(NO_DURATION),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(NO_DURATION);
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        // All characters are digits, so parsing fails only if the number is too large.
        whole.parse().map_err(|_| TOO_LONG)?
    };
    let mut nanoseconds = whole.checked_mul(unit).ok_or(TOO_LONG)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        let part = u64::from(digit - b'0') * place;
        nanoseconds = nanoseconds.checked_add(part).ok_or(TOO_LONG)?;
    }
    Ok(nanoseconds)
}

/// Parses an IP address as Kubernetes does: IPv4 octets may have leading zeros.
pub fn ip(text: &str) -> Result<IpAddr, &'static str> {
    address::ip(text.trim()).ok_or("give an IPv4 or IPv6 address")
}

/// Parses the value of `--bind-address`. An empty text means 0.0.0.0.
pub fn bind(text: &str) -> Result<IpAddr, &'static str> {
    if text.is_empty() {
        return Ok(Ipv4Addr::UNSPECIFIED.into());
    }
    ip(text)
}

/// Parses a feature gate such as `Name=true` into its name and value. An empty text gives an empty
/// name.
pub fn gate(text: &str) -> Result<(String, bool), &'static str> {
    const WRONG: &str = "give feature gates such as Name=true,Other=false";
    if text.is_empty() {
        return Ok((String::new(), false));
    }
    let (name, value) = text.split_once('=').ok_or(WRONG)?;
    let value = bool(value.trim()).map_err(|_| WRONG)?;
    Ok((name.trim().to_owned(), value))
}

/// Checks a quantity like Kubernetes' `resource.ParseQuantity`, such as `0`, `64Ki`, `1.5M` or
/// `1e3`. Returns the text unchanged.
pub fn quantity(text: &str) -> Result<String, &'static str> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let is_exponent = suffix
        .strip_prefix(['e', 'E'])
        .is_some_and(|exponent| exponent.parse::<i32>().is_ok());
    let is_suffix = matches!(
        suffix,
        "" | "n"
            | "u"
            | "m"
            | "k"
            | "M"
            | "G"
            | "T"
            | "P"
            | "E"
            | "Ki"
            | "Mi"
            | "Gi"
            | "Ti"
            | "Pi"
            | "Ei"
    );
    if number.parse::<f64>().is_ok() && (is_suffix || is_exponent) {
        Ok(text.to_owned())
    } else {
        Err("give a size such as 0 or 64Ki")
    }
}

/// Parses the listen address of the health or metrics server. An address without a port gets
/// `port`, the value of a deprecated flag such as `--healthz-port`. Returns `None` (no server) if
/// `text` is empty or `port` is 0.
pub fn listen(text: &str, port: i32) -> Result<Option<SocketAddr>, &'static str> {
    const WRONG: &str = "give IP:port such as 0.0.0.0:10256 or [::]:10256, an IP alone, or nothing to have no server";
    if text.is_empty() || port == 0 {
        return Ok(None);
    }
    if let Ok(ip) = ip(text) {
        let port = u16::try_from(port).map_err(|_| "a port is a number up to 65535")?;
        return Ok(Some((ip, port).into()));
    }
    let (host, port) = text.rsplit_once(':').ok_or(WRONG)?;
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']').ok_or(WRONG)?,
        None if host.contains(':') => return Err(WRONG),
        None => host,
    };
    let (ip, port) = (
        ip(host).map_err(|_| WRONG)?,
        port.parse().map_err(|_| WRONG)?,
    );
    if port == 0 {
        return Err(WRONG);
    }
    Ok(Some(SocketAddr::new(ip, port)))
}

/// Replaces `_` with `-` in the name of a flag, such as `--proxy_mode=ipvs`, as Kubernetes
/// components do.
pub fn normalise(argument: OsString) -> OsString {
    let Some(text) = argument.to_str().filter(|text| text.starts_with("--")) else {
        return argument;
    };
    let name = text.split('=').next().unwrap_or(text);
    if !name.contains('_') {
        return argument;
    }
    let (name, value) = text.split_at(name.len());
    (name.replace('_', "-") + value).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_parsed_like_in_go() {
        for yes in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(bool(yes), Ok(true), "{yes}");
        }
        for no in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(bool(no), Ok(false), "{no}");
        }
        for wrong in ["", "yes", "tRUE", "2", " true"] {
            assert!(bool(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn integers_are_parsed_like_in_go() {
        for (text, value) in [
            ("14", 14),
            ("-1", -1),
            ("+7", 7),
            ("0", 0),
            ("0x1f", 31),
            ("0X1F", 31),
            ("017", 15),
            ("0o17", 15),
            ("0b101", 5),
            ("1_000", 1000),
        ] {
            assert_eq!(int(text), Ok(value), "{text}");
        }
        for wrong in ["", "x", "1.5", "0x", "--1", "0x-1", "2147483648", "1 "] {
            assert!(int(wrong).is_err(), "{wrong}");
        }
        for large in ["2147483648", "-2147483649", "0x100000000"] {
            assert!(
                int(large).unwrap_err().contains("from -2147483648"),
                "{large}"
            );
        }
    }

    #[test]
    fn durations_are_parsed_like_in_go() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("30s", 30_000),
            ("1h2m3.5s", 3_723_500),
            ("300ms", 300),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("+1m", 60_000),
            ("1000us", 1),
            ("1000\u{b5}s", 1),
        ] {
            assert_eq!(
                duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for wrong in [
            "", "30", "s", "1d", "-1s", ".", ".s", "1..5s", "1 s", "1s ", "1e3s", "+", "9999999h",
            "3000000h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for long in ["9999999h", "1000000000h", "99999999999999999999s"] {
            assert_eq!(duration(long), Err(TOO_LONG), "{long}");
        }
    }

    #[test]
    fn feature_gates_are_parsed() {
        assert_eq!(gate("A=true"), Ok(("A".to_owned(), true)));
        assert_eq!(gate(" A = F"), Ok(("A".to_owned(), false)));
        assert_eq!(gate(""), Ok((String::new(), false)));
        for wrong in ["A", "A=", "A=maybe"] {
            assert!(gate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn kubernetes_quantities_are_validated() {
        for text in ["0", "64Ki", "1.5M", "1e3", "12E", "-1"] {
            assert_eq!(quantity(text), Ok(text.to_owned()), "{text}");
        }
        for wrong in ["", "Ki", "1KiB", "1e", "1.2.3", "one"] {
            assert!(quantity(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn listen_addresses_are_parsed_as_by_upstream() {
        let at = |text| listen(text, 10256).map(|at| at.map(|at| at.to_string()));
        for (text, place) in [
            ("0.0.0.0:10256", Some("0.0.0.0:10256")),
            ("10.0.0.1", Some("10.0.0.1:10256")),
            ("::", Some("[::]:10256")),
            ("fd00::1", Some("[fd00::1]:10256")),
            ("[::1]:80", Some("[::1]:80")),
            ("", None),
        ] {
            assert_eq!(at(text), Ok(place.map(str::to_owned)), "{text}");
        }
        for wrong in [
            "node:80",
            "[::1]",
            "10.0.0.1:",
            "10.0.0.1:65536",
            "127.0.0.1:0",
            ":80",
            "[::1:80",
            "fd00::1:g",
        ] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
        assert_eq!(listen("0.0.0.0:80", 0), Ok(None));
        assert!(listen("10.0.0.1", -1).is_err());
        assert!(listen("10.0.0.1", 65536).is_err());
        // The address has a port, so the port of the deprecated flag is not used, even if it is
        // invalid.
        assert!(listen("10.0.0.1:80", 65536).is_ok());
    }

    #[test]
    fn underscores_become_hyphens_only_in_flag_names() {
        let normal = |text: &str| normalise(text.into()).into_string().unwrap();
        assert_eq!(normal("--proxy_mode=a_b"), "--proxy-mode=a_b");
        assert_eq!(normal("--proxy_mode"), "--proxy-mode");
        assert_eq!(normal("a_b"), "a_b");
        assert_eq!(normal("-v=2"), "-v=2");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_flag_values_never_panic_the_parsers(text in "\\PC*") {
            let _ = (bool(&text), int(&text), duration(&text), ip(&text), gate(&text), quantity(&text), listen(&text, 1));
            normalise(text.into());
        }

        #[test]
        fn whole_seconds_are_parsed_exactly(seconds in 0_u64..9_000_000_000) {
            proptest::prop_assert_eq!(
                duration(&format!("{seconds}s")),
                Ok(Duration::from_secs(seconds))
            );
        }
    }
}
