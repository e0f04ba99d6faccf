//! Options of the metrics of single Services.

use flags::Flags;
use flags::unusable_flag::UnusableFlag;
use flags::words::word;

/// Values of `--metrics-per-service`, each with its level of detail.
const DETAILS: [(&str, Detail); 3] = [
    ("none", Detail::None),
    ("ports", Detail::Ports),
    ("endpoints", Detail::Endpoints),
];

/// Level of detail of the metrics of single Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// No metrics of single Services, and no reads of their counters. In a large cluster, there
    /// would be very many metrics: each node has several time series for each Service port.
    #[default]
    None,
    /// Metrics of each Service port, without its endpoints.
    Ports,
    /// Metrics of each Service port and of each of its endpoints.
    Endpoints,
}

/// Options of the metrics of single Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Level of detail of the metrics.
    pub detail: Detail,
    /// Maximum number of reported Service ports, and separately of reported endpoints. The metrics
    /// report the ports and endpoints with the most connections.
    pub most: usize,
}

impl Settings {
    /// Converts flags to the options of these metrics.
    ///
    /// # Errors
    ///
    /// Fails if a value is invalid.
    pub(crate) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        let most = flags.metrics_service_series_max;
        let most = usize::try_from(most).ok().filter(|most| *most > 0);
        Ok(Self {
            detail: word("metrics-per-service", &flags.metrics_per_service, &DETAILS)?,
            most: most.ok_or_else(|| {
                let given = flags.metrics_service_series_max.to_string();
                let advice = "give 1 or more; --metrics-per-service=none turns them off";
                UnusableFlag::new("metrics-service-series-max", &given, advice)
            })?,
        })
    }
}
