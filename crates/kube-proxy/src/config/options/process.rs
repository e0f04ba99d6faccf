//! Options of the daemon's process and its main loop.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use flags::Flags;
use flags::gates::Gates;
use flags::nets::nets;
use flags::unusable_flag::UnusableFlag;

/// Options of the daemon's process and its main loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Name of this node, in lower case.
    pub node_name: String,
    /// True if the process exits after its privileged work (`--init-only`).
    pub init_only: bool,
    /// Value for `/proc/self/oom_score_adj`: -1000 to 1000.
    pub oom_score_adj: i16,
    /// Shortest pause between the end of a sync and the start of the next sync. Never longer than
    /// the sync period.
    pub min_sync_period: Duration,
    /// Feature gates that the user sets, with their values.
    pub gates: Gates,
    /// Networks that must contain external and load-balancer addresses of Services. `None` allows
    /// any network.
    pub allowed_external: Option<Vec<IpNet>>,
    /// Configuration file to follow (`--config`). `None`: flags only.
    pub configuration_file: Option<PathBuf>,
    /// File that stores the configuration for which this pod was prepared (`--prepared-config`), if
    /// the flag is set.
    pub prepared_configuration: Option<PathBuf>,
}

impl Process {
    /// Converts flags to options of the process. `min_sync_period` is the setting of the chosen
    /// mode.
    pub(super) fn read(
        flags: &Flags,
        gates: Gates,
        min_sync_period: Duration,
    ) -> Result<Self, UnusableFlag> {
        Ok(Self {
            node_name: node_name(&flags.hostname_override)?,
            init_only: flags.init_only,
            oom_score_adj: oom_score_adj(flags)?,
            min_sync_period,
            gates,
            allowed_external: (!flags.allowed_external_cidrs.is_empty())
                .then(|| nets("allowed-external-cidrs", &flags.allowed_external_cidrs))
                .transpose()?,
            configuration_file: (!flags.config.is_empty()).then(|| (&flags.config).into()),
            prepared_configuration: (!flags.prepared_config.is_empty())
                .then(|| (&flags.prepared_config).into()),
        })
    }
}

fn node_name(given: &str) -> Result<String, UnusableFlag> {
    let name = if given.is_empty() {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    } else {
        given.to_owned()
    };
    match name.trim() {
        "" => Err(UnusableFlag::new(
            "hostname-override",
            given,
            "a node has a name: give it here, or set the host's name",
        )),
        name => Ok(name.to_lowercase()),
    }
}

fn oom_score_adj(flags: &Flags) -> Result<i16, UnusableFlag> {
    match i16::try_from(flags.oom_score_adj) {
        Ok(score @ -1000..=1000) => Ok(score),
        _ => Err(UnusableFlag::new(
            "oom-score-adj",
            &flags.oom_score_adj.to_string(),
            "give -1000 to 1000",
        )),
    }
}
