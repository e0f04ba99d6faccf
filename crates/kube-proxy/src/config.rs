//! The configuration file: KubeProxyConfiguration of `kubeproxy.config.k8s.io/v1alpha1`.
//!
//! ```text
//!   file ─▶ file::read ─▶ Configuration ─▶ put ─┐
//!                                               ├─▶ Flags ─▶ Options
//!   command line ───────────────────────────────┘
//! ```
//!
//! - A field and its flag define the same setting, which has a row in `settings`.
//! - The daemon converts the file to flags, so only one function interprets settings.
//! - For `--write-config-to`, the daemon converts flags to a file.
//!
//! Like upstream, this module supports only version `v1alpha1` of the format, and only one file.

pub mod command_line;
pub mod configz;
mod file;
pub mod follow;
pub mod options;
mod prepared;
pub mod question;
mod reload;
mod settings;
mod spelling;
mod without_effect;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use flags::{Flags, go};

pub use file::ConfigurationError;
pub(crate) use file::parse;
pub(crate) use file::read;
pub use prepared::{prepared, record};
pub use reload::{Waiting, change_of, fields};
pub use settings::Change;
pub(crate) use settings::{field_of, fields_with_flags, wins_over_file};
pub(crate) use without_effect::GivenSettings;

/// Value of `apiVersion` that a configuration file must have.
const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// Value of `kind` that a configuration file must have.
const KIND: &str = "KubeProxyConfiguration";
/// Sections with fields for one mode. Each section has the mode's name.
const MODE_SECTIONS: [&str; 3] = ["iptables", "ipvs", "nftables"];

/// Defines the sections of the configuration file as structs. Their fields have upstream's names.
macro_rules! sections {
    ($($(#[$doc:meta])* pub struct $name:ident { $($fields:tt)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[allow(missing_docs, reason = "the fields are upstream's, one by one")]
        pub struct $name { $($fields)* }
    )*};
}

sections! {
    /// Contents of a configuration file. `None` means that the file omits the field; the field's
    /// default then applies.
    pub struct Configuration {
        pub api_version: Option<String>,
        pub bind_address: Option<String>,
        pub bind_address_hard_fail: Option<bool>,
        #[serde(deserialize_with = "or_default")]
        pub client_connection: ClientConnection,
        #[serde(rename = "clusterCIDR")]
        pub cluster_cidr: Option<String>,
        pub config_sync_period: Option<Period>,
        #[serde(deserialize_with = "or_default")]
        pub conntrack: Conntrack,
        #[serde(deserialize_with = "or_default")]
        pub detect_local: DetectLocal,
        pub detect_local_mode: Option<String>,
        pub enable_profiling: Option<bool>,
        pub feature_gates: Option<BTreeMap<String, bool>>,
        pub healthz_bind_address: Option<String>,
        pub hostname_override: Option<String>,
        #[serde(deserialize_with = "or_default")]
        pub iptables: Iptables,
        #[serde(deserialize_with = "or_default")]
        pub ipvs: Ipvs,
        pub kind: Option<String>,
        #[serde(deserialize_with = "or_default")]
        pub logging: Logging,
        pub metrics_bind_address: Option<String>,
        pub mode: Option<String>,
        #[serde(deserialize_with = "or_default")]
        pub nftables: Nftables,
        pub node_port_addresses: Option<Vec<String>>,
        #[serde(deserialize_with = "whole_number")]
        pub oom_score_adj: Option<i32>,
        pub port_range: Option<String>,
        pub show_hidden_metrics_for_version: Option<String>,
        pub windows_run_as_service: Option<bool>,
        #[serde(deserialize_with = "or_default")]
        pub winkernel: Winkernel,
    }

    /// Section `clientConnection`: access to the API server.
    pub struct ClientConnection {
        pub accept_content_types: Option<String>,
        #[serde(deserialize_with = "whole_number")]
        pub burst: Option<i32>,
        pub content_type: Option<String>,
        pub kubeconfig: Option<String>,
        pub qps: Option<f32>,
    }

    /// Section `conntrack`: sizes and timeouts of the connection tracking table.
    pub struct Conntrack {
        #[serde(deserialize_with = "whole_number")]
        pub max_per_core: Option<i32>,
        #[serde(deserialize_with = "whole_number")]
        pub min: Option<i32>,
        pub tcp_be_liberal: Option<bool>,
        pub tcp_close_wait_timeout: Option<Period>,
        pub tcp_established_timeout: Option<Period>,
        pub udp_stream_timeout: Option<Period>,
        pub udp_timeout: Option<Period>,
    }

    /// Section `detectLocal`: detection of traffic from local pods.
    pub struct DetectLocal {
        pub bridge_interface: Option<String>,
        pub interface_name_prefix: Option<String>,
    }

    /// Section `iptables`. IPVS mode also reads the section's fields about masquerading.
    pub struct Iptables {
        pub localhost_node_ports: Option<bool>,
        pub masquerade_all: Option<bool>,
        #[serde(deserialize_with = "whole_number")]
        pub masquerade_bit: Option<i32>,
        pub min_sync_period: Option<Period>,
        pub sync_period: Option<Period>,
    }

    /// Section `ipvs`: settings of IPVS mode.
    pub struct Ipvs {
        #[serde(rename = "excludeCIDRs")]
        pub exclude_cidrs: Option<Vec<String>>,
        pub min_sync_period: Option<Period>,
        pub scheduler: Option<String>,
        #[serde(rename = "strictARP")]
        pub strict_arp: Option<bool>,
        pub sync_period: Option<Period>,
        pub tcp_fin_timeout: Option<Period>,
        pub tcp_timeout: Option<Period>,
        pub udp_timeout: Option<Period>,
    }

    /// Section `logging`: format and verbosity of the log.
    pub struct Logging {
        #[serde(deserialize_with = "period_or_nanoseconds")]
        pub flush_frequency: Option<Period>,
        pub format: Option<String>,
        #[serde(deserialize_with = "or_default")]
        pub options: LoggingOptions,
        #[serde(deserialize_with = "whole_number")]
        pub verbosity: Option<i32>,
        pub vmodule: Option<Vec<FileVerbosity>>,
    }

    /// Section `logging.options`: options of the JSON format and of the text formats.
    pub struct LoggingOptions {
        #[serde(deserialize_with = "or_default")]
        pub json: LoggingBuffer,
        #[serde(deserialize_with = "or_default")]
        pub text: LoggingBuffer,
    }

    /// Sections `logging.options.json` and `logging.options.text`: buffer size and split streams.
    pub struct LoggingBuffer {
        #[serde(deserialize_with = "text_or_number")]
        pub info_buffer_size: Option<String>,
        pub split_stream: Option<bool>,
    }

    /// An item of `logging.vmodule`: the verbosity of the source files that match a pattern.
    pub struct FileVerbosity {
        pub file_pattern: String,
        #[serde(deserialize_with = "natural_number")]
        pub verbosity: u32,
    }

    /// Section `nftables`: settings of nftables mode.
    pub struct Nftables {
        pub masquerade_all: Option<bool>,
        #[serde(deserialize_with = "whole_number")]
        pub masquerade_bit: Option<i32>,
        pub min_sync_period: Option<Period>,
        pub sync_period: Option<Period>,
    }

    /// Section `winkernel`, which has no effect on Linux.
    pub struct Winkernel {
        #[serde(rename = "enableDSR")]
        pub enable_dsr: Option<bool>,
        pub forward_health_check_vip: Option<bool>,
        pub network_name: Option<String>,
        pub root_hns_endpoint_name: Option<String>,
        pub source_vip: Option<String>,
    }
}

/// Returns the text of the file that `--write-config-to` writes: the configuration from the flags,
/// in upstream's order and spelling.
pub(crate) fn render(file: Configuration, flags: &Flags) -> String {
    let tree = file.completed(flags).as_upstream();
    serde_saphyr::to_string(&tree).unwrap_or_default()
}

impl Configuration {
    /// Converts the configuration to JSON as upstream does: omits the empty fields that upstream
    /// marks `omitempty`.
    fn as_upstream(&self) -> Value {
        let mut tree = as_go(self.tree());
        for (section, field) in [
            ("", "featureGates"),
            ("", "windowsRunAsService"),
            ("/logging", "vmodule"),
            ("/logging/options/json", "splitStream"),
            ("/logging/options/text", "splitStream"),
        ] {
            let is_empty = |value: &Value| match value {
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                other => *other == Value::Bool(false),
            };
            if let Some(fields) = tree.pointer_mut(section).and_then(Value::as_object_mut)
                && fields.get(field).is_some_and(is_empty)
            {
                fields.remove(field);
            }
        }
        tree
    }
}

/// Converts floating-point numbers without a fraction to integers, because Go prints `5` where Rust
/// prints `5.0`.
fn as_go(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, as_go(value)))
            .collect(),
        Value::Number(number) => {
            let text = number.to_string();
            text.strip_suffix(".0")
                .and_then(|whole| whole.parse::<i64>().ok())
                .map_or(Value::Number(number), Value::from)
        }
        other => other,
    }
}

/// Reads `null` as the field's default, as in every Kubernetes object.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A time span in the format of `metav1.Duration`: `1m30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Period(pub Duration);

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PeriodText)
    }
}

struct PeriodText;

impl Visitor<'_> for PeriodText {
    type Value = Period;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, such as 30s")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
        go::duration(text)
            .map(Period)
            .map_err(|advice| E::custom(format!("invalid value '{text}': {advice}")))
    }
}

/// Reads `logging.flushFrequency`: a time span, or a number of nanoseconds.
fn period_or_nanoseconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Period>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "give a duration such as 5s, or nanoseconds")]
    enum Either {
        Nanoseconds(u64),
        Floating(f64),
        Period(Period),
    }
    let nanoseconds = |count| Some(Period(Duration::from_nanos(count)));
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Either::Period(period)) => Ok(Some(period)),
        Some(Either::Nanoseconds(count)) => Ok(nanoseconds(count)),
        Some(Either::Floating(count)) => {
            let count = count.to_string().parse();
            let advice = || de::Error::custom("give a whole number of nanoseconds");
            Ok(nanoseconds(count.map_err(|_| advice())?))
        }
    }
}

/// Reads a whole number. It may have the form of a floating-point number: Helm writes a million as
/// `1e+06`, and upstream reads this as a whole number.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    let text = match Option::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Value::Number(number)) if number.is_f64() => number.as_f64().map(|of| of.to_string()),
        Some(Value::Number(number)) => Some(number.to_string()),
        // `file.rs` rejects a quoted number, and names its field.
        Some(Value::String(text)) => Some(text),
        Some(_) => None,
    };
    let number = text.and_then(|text| text.parse().ok());
    let advice = || de::Error::custom("give a whole number of at most 2147483647");
    number.map(Some).ok_or_else(advice)
}

/// Reads a number as [`whole_number`] does, but not a negative one or null.
fn natural_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = whole_number(deserializer).ok().flatten();
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| de::Error::custom("give a whole number, 0 or more"))
}

/// Reads `infoBufferSize`, a quantity such as `"64Ki"` or a plain number of bytes.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(de::Error::custom("give a size such as 64Ki")),
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Prints a time span as Go's `time.Duration` does: `24h0m0s`, `1m30s`, `1.5s`, `500ms`, `0s`.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.as_secs();
        if whole == 0 {
            // Below a second, Rust and Go print durations in the same way: `500ms`, `1.5µs`.
            return if self.0.is_zero() {
                f.write_str("0s")
            } else {
                write!(f, "{:?}", self.0)
            };
        }
        let (hours, minutes) = (whole / 3600, whole / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        let fraction = format!("{:09}", self.0.subsec_nanos());
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{}s", whole % 60),
            fraction => write!(f, "{}.{fraction}s", whole % 60),
        }
    }
}

#[cfg(test)]
mod tests;
