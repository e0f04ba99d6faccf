//! What the metrics of single Services read of the flags.

use flags::Flags;
use flags::unusable::UnusableFlag;
use flags::words::word;

/// The words of `--metrics-per-service`.
const DETAILS: [(&str, Detail); 3] = [
    ("none", Detail::None),
    ("ports", Detail::Ports),
    ("endpoints", Detail::Endpoints),
];

/// How much is told of single Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Nothing, and nothing is read or kept for it. Each Service port has several series on each
    /// node: on a thousand nodes that is what a Prometheus has to be made for.
    #[default]
    None,
    /// Their ports.
    Ports,
    /// The endpoints of these, too.
    Endpoints,
}

/// What the metrics of single Services read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How much is told.
    pub detail: Detail,
    /// Of how many ports at most, and of how many endpoints: those with the most connections.
    pub most: usize,
}

impl Settings {
    /// Reads the flags.
    ///
    /// # Errors
    ///
    /// They cannot be meant.
    pub(crate) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        let most = flags.metrics_service_series_max;
        let most = usize::try_from(most).ok().filter(|most| *most > 0);
        Ok(Self {
            detail: word("metrics-per-service", &flags.metrics_per_service, &DETAILS)?,
            most: most.ok_or_else(|| {
                let given = flags.metrics_service_series_max.to_string();
                let advice = "give 1 or more; --metrics-per-service=none tells none";
                UnusableFlag::new("metrics-service-series-max", &given, advice)
            })?,
        })
    }
}
