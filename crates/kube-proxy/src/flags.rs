//! The command line: first what was typed ([`Flags`]), then what is meant ([`Options`]).
//!
//! Spelling, defaults and meaning are upstream kube-proxy's, so that an existing DaemonSet starts this binary unchanged.
//! A flag is one field of [`Flags`]: its name, its default, how its text is read, and its help. What a value means
//! together with the others, and whether that is allowed, is decided in [`Options`].
//!
//! With `--config`, a file takes the place of the flags that it has fields for: see [`crate::config`].
//!
//! An unknown flag is an error, as upstream. A flag that means nothing here is taken, and a warning says so if it is given.

pub mod gates;
pub(crate) mod go;
mod gone;
mod options;

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory as _, FromArgMatches as _, Parser};

use crate::check::Output;
use crate::config::{self, Configuration, ConfigurationError, Given, Period, Waiting};
use crate::version;

pub use gates::Gates;
pub use options::{
    Conntrack, DetectLocal, IptablesBackend, IpvsTimeouts, LogFormat, Options, ProxyMode,
    UnusableFlag,
};

/// The media type of Kubernetes' protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// What was typed.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "kube-proxy",
    about = "Carries Kubernetes Services by rules of iptables (iptables mode) or by the kernel's IPVS (ipvs mode).",
    after_help = "kube-proxy check [FLAGS] [-o text|json|yaml] says what a start with these flags would change in the kernel, and \
                  changes nothing. Exit status 0: nothing; 1: something; 2: it cannot be said.",
    disable_version_flag = true,
    args_override_self = true
)]
#[allow(clippy::struct_excessive_bools, reason = "one bool is one flag")]
#[allow(
    clippy::option_option,
    reason = "a flag may be absent, bare, or have a value"
)]
pub struct Flags {
    /// File with a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1). With it, flags that it has a field for are ignored, but for --hostname-override and those of the log
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub config: OsString,

    /// Write the configuration that these flags make to a file, and exit
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub write_config_to: OsString,

    /// Take away what IPVS mode and iptables mode leave in the kernel, and exit
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub cleanup: bool,

    /// Do what needs privileges (sysctls; in ipvs mode, also loading IPVS and its timeouts), and
    /// exit
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub init_only: bool,

    /// File, gone with the pod, that keeps the fields of --config that take a new start as they
    /// were when the pod was prepared: --init-only writes it, and so does a start that finds none;
    /// a start that finds it leaves other values waiting
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub prepared_config: OsString,

    /// Folder of Kubernetes manifests (*.yaml, *.yml, *.json) to serve instead of a cluster's objects; watched for changes
    #[arg(long, value_name = "DIR", allow_hyphen_values = true)]
    pub manifests: Option<OsString>,

    /// File that says how to reach the API server; without it and --master, the Pod's service account is used
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub kubeconfig: OsString,

    /// URL of the API server; overrides the one in --kubeconfig
    #[arg(
        long,
        value_name = "URL",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub master: String,

    /// Name of this node, if it is not the host's name
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub hostname_override: String,

    /// Requests per second to the API server; no effect
    #[arg(
        long,
        value_name = "NUMBER",
        default_value = "5",
        value_parser = go::float,
        allow_hyphen_values = true
    )]
    pub kube_api_qps: f32,

    /// Requests to the API server at once; no effect
    #[arg(long, value_name = "COUNT", default_value = "10", value_parser = go::int, allow_hyphen_values = true)]
    pub kube_api_burst: i32,

    /// Encoding to ask the API server for: protobuf, with JSON where it has none; any other: JSON
    #[arg(
        long,
        value_name = "TYPE",
        default_value = PROTOBUF,
        allow_hyphen_values = true
    )]
    pub kube_api_content_type: String,

    /// How often objects are looked at without a change; no effect
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = go::duration, allow_hyphen_values = true)]
    pub config_sync_period: Duration,

    /// Kubernetes feature gates: all of 1.36 are known, and AllowServiceExternalIPs,
    /// ComponentFlagz, ComponentStatusz, LoggingAlphaOptions, LoggingBetaOptions and
    /// WatchListClient are heard
    #[arg(long, value_name = "NAME=BOOL,...", value_parser = go::gate, allow_hyphen_values = true, value_delimiter = ',', action = ArgAction::Append)]
    pub feature_gates: Vec<(String, bool)>,

    /// How Services are carried: iptables or ipvs; empty: iptables
    #[arg(
        long,
        value_name = "MODE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub proxy_mode: String,

    /// This node's IP, if not 0.0.0.0 or ::, instead of the one in its Node object; its family is the primary one
    #[arg(long, value_name = "IP", default_value = "0.0.0.0", value_parser = go::bind, allow_hyphen_values = true)]
    pub bind_address: IpAddr,

    /// Exit if --healthz-bind-address or --metrics-bind-address cannot be bound
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub bind_address_hard_fail: bool,

    /// Address of the health server; empty: none
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "0.0.0.0:10256",
        allow_hyphen_values = true
    )]
    pub healthz_bind_address: String,

    /// Address of the metrics server; empty: none
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "127.0.0.1:10249",
        allow_hyphen_values = true
    )]
    pub metrics_bind_address: String,

    /// Port of the health server, if --healthz-bind-address has none; 0: no health server
    #[arg(long, value_name = "PORT", default_value = "10256", value_parser = go::int, allow_hyphen_values = true, hide = true)]
    pub healthz_port: i32,

    /// Port of the metrics server, if --metrics-bind-address has none; 0: no metrics server
    #[arg(long, value_name = "PORT", default_value = "10249", value_parser = go::int, allow_hyphen_values = true, hide = true)]
    pub metrics_port: i32,

    /// Go profiles on the metrics server; no effect
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub profiling: bool,

    /// Show metrics that were hidden in this version; no effect
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub show_hidden_metrics_for_version: String,

    /// How unwilling the kernel is to kill this process when memory is short, -1000 to 1000
    #[arg(long, value_name = "SCORE", default_value = "-999", value_parser = go::int, allow_hyphen_values = true)]
    pub oom_score_adj: i32,

    /// Networks of the cluster's pods, one of each family at most: with --detect-local-mode=ClusterCIDR, traffic to cluster IPs from elsewhere is masqueraded
    #[arg(long, value_name = "CIDRS", allow_hyphen_values = true)]
    pub cluster_cidr: Option<String>,

    /// How traffic of this node's pods is told apart: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(
        long,
        value_name = "MODE",
        default_value = "ClusterCIDR",
        allow_hyphen_values = true
    )]
    pub detect_local_mode: String,

    /// Bridge that pods are attached to, for --detect-local-mode=BridgeInterface
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub pod_bridge_interface: String,

    /// Prefix of the names of pods' interfaces, for --detect-local-mode=InterfaceNamePrefix
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub pod_interface_name_prefix: String,

    /// Networks whose addresses of this node serve NodePorts, or "primary" for the node's own IP; all addresses if not given
    #[arg(long, value_name = "CIDRS", action = ArgAction::Append, allow_hyphen_values = true)]
    pub nodeport_addresses: Vec<String>,

    /// Masquerade all traffic to cluster IPs
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub masquerade_all: bool,

    /// Bit of the packet mark that says "masquerade", 0 to 31
    #[arg(long, value_name = "BIT", default_value = "14", value_parser = go::int, allow_hyphen_values = true)]
    pub iptables_masquerade_bit: i32,

    /// Longest time between two comparisons with the kernel in iptables mode; no effect in ipvs mode
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = go::duration, allow_hyphen_values = true)]
    pub iptables_sync_period: Duration,

    /// Shortest time between two syncs of iptables mode; no effect in ipvs mode
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = go::duration, allow_hyphen_values = true)]
    pub iptables_min_sync_period: Duration,

    /// NodePorts on 127.0.0.1 in iptables mode; no effect in ipvs mode
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub iptables_localhost_nodeports: bool,

    /// Which iptables commands to use: legacy, nft, or auto for what the node already uses
    #[arg(
        long,
        value_name = "BACKEND",
        default_value = "auto",
        allow_hyphen_values = true
    )]
    pub iptables_backend: String,

    /// IPVS scheduler of every virtual server; rr if empty; no effect in iptables mode
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub ipvs_scheduler: String,

    /// Networks in which virtual servers are left alone, also by --cleanup and by a mode that
    /// clears up after ipvs mode
    #[arg(long, value_name = "CIDRS", action = ArgAction::Append, allow_hyphen_values = true)]
    pub ipvs_exclude_cidrs: Vec<String>,

    /// Answer ARP only on the interface that has the address (sysctls arp_ignore=1,
    /// arp_announce=2); no effect in iptables mode
    #[arg(long = "ipvs-strict-arp", value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub ipvs_strict_arp: bool,

    /// Idle timeout of TCP connections in IPVS; 0 leaves the kernel's; no effect in iptables mode
    #[arg(long = "ipvs-tcp-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_tcp_timeout: Duration,

    /// Timeout of TCP connections in IPVS after a FIN; 0 leaves the kernel's; no effect in iptables
    /// mode
    #[arg(long = "ipvs-tcpfin-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_tcpfin_timeout: Duration,

    /// Idle timeout of UDP flows in IPVS; 0 leaves the kernel's; no effect in iptables mode
    #[arg(long = "ipvs-udp-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_udp_timeout: Duration,

    /// Longest time between two comparisons with the kernel in ipvs mode; no effect in iptables
    /// mode
    #[arg(long = "ipvs-sync-period", value_name = "DURATION", default_value = "30s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_sync_period: Duration,

    /// Shortest time between the end of one sync and the start of the next in ipvs mode; no effect
    /// in iptables mode
    #[arg(long = "ipvs-min-sync-period", value_name = "DURATION", default_value = "1s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_min_sync_period: Duration,

    /// Which iptables rules stand by IPVS: upstream, or lean (fewer, cheaper to the first packet of
    /// a flow); no effect in iptables mode
    #[arg(
        long,
        value_name = "upstream|lean",
        default_value = "upstream",
        allow_hyphen_values = true
    )]
    pub ipvs_shim: String,

    /// How long a removed endpoint may keep its TCP connections; 0: until they end; no effect in
    /// iptables mode
    #[arg(long = "ipvs-drain-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_drain_timeout: Duration,

    /// In which form kube-ipvs0 holds the service addresses: address, or route (cheaper to the
    /// kernel by the thousand); no effect in iptables mode
    #[arg(
        long,
        value_name = "address|route",
        default_value = "address",
        allow_hyphen_values = true
    )]
    pub ipvs_vip_mode: String,

    /// Entries of the connection tracking table for each CPU (sysctl nf_conntrack_max); 0 leaves the kernel's, whatever --conntrack-min says
    #[arg(long, value_name = "COUNT", default_value = "32768", value_parser = go::int, allow_hyphen_values = true)]
    pub conntrack_max_per_core: i32,

    /// Entries of the connection tracking table that there are at least, whatever --conntrack-max-per-core comes to
    #[arg(long, value_name = "COUNT", default_value = "131072", value_parser = go::int, allow_hyphen_values = true)]
    pub conntrack_min: i32,

    /// Idle timeout of established TCP connections in connection tracking; 0 leaves the kernel's
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = go::duration, allow_hyphen_values = true)]
    pub conntrack_tcp_timeout_established: Duration,

    /// Timeout of TCP connections in CLOSE_WAIT in connection tracking; 0 leaves the kernel's
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = go::duration, allow_hyphen_values = true)]
    pub conntrack_tcp_timeout_close_wait: Duration,

    /// Take TCP segments outside of the window for valid, which connection tracking otherwise calls INVALID
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub conntrack_tcp_be_liberal: bool,

    /// Idle timeout of UDP flows without an answer in connection tracking; 0 leaves the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub conntrack_udp_timeout: Duration,

    /// Idle timeout of UDP flows with answers in connection tracking; 0 leaves the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub conntrack_udp_timeout_stream: Duration,

    /// Log verbosity: 4 adds decisions, 6 adds every step
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value = "0", value_parser = go::int, allow_hyphen_values = true)]
    pub verbosity: i32,

    /// Log verbosity of single source files (of this program: proxier=4,sets=6); * and ? stand for any text and character
    #[arg(
        long,
        value_name = "PATTERN=LEVEL,...",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub vmodule: String,

    /// Form of the log: text (klog's lines), plain (lines for people) or json
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        allow_hyphen_values = true
    )]
    pub logging_format: String,

    /// How long log lines may be held back; no effect, none is
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = go::duration, allow_hyphen_values = true)]
    pub log_flush_frequency: Duration,

    /// Log buffer; no effect; needs --feature-gates=LoggingAlphaOptions=true
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = go::quantity, allow_hyphen_values = true)]
    pub log_json_info_buffer_size: String,

    /// With --logging-format=json, log all but errors to standard output; needs
    /// --feature-gates=LoggingAlphaOptions=true
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub log_json_split_stream: bool,

    /// Log buffer; no effect; needs --feature-gates=LoggingAlphaOptions=true
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = go::quantity, allow_hyphen_values = true)]
    pub log_text_info_buffer_size: String,

    /// With --logging-format=text or plain, log all but warnings and errors to standard output;
    /// needs --feature-gates=LoggingAlphaOptions=true
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub log_text_split_stream: bool,

    /// No effect
    #[arg(
        long,
        value_name = "FILES",
        default_value = "/proc/sys/kernel/random/boot_id",
        allow_hyphen_values = true
    )]
    pub boot_id_file: String,

    /// No effect
    #[arg(
        long,
        value_name = "FILES",
        default_value = "/etc/machine-id,/var/lib/dbus/machine-id",
        allow_hyphen_values = true
    )]
    pub machine_id_file: String,

    /// Print the version of Kubernetes that this is as, with this program's own, and exit
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub version: Option<String>,
}

/// Flags that go at some time, and what to use.
const DEPRECATED: [(&str, &str); 2] = [
    ("healthz-port", "healthz-bind-address"),
    ("metrics-port", "metrics-bind-address"),
];

/// What to do about a command line.
#[derive(Debug)]
pub enum Command {
    /// Run the daemon.
    Run(Box<Options>),
    /// Say what the daemon would write, and exit: `check` stands in front of the flags.
    Check(Box<Options>, Output),
    /// Take down what a kube-proxy has left (`--cleanup`), and exit.
    Cleanup(Box<Options>),
    /// Print this (help or version) to standard output, and exit with 0.
    Print(String),
    /// Write this text to the file, and exit with 0.
    Write(PathBuf, String),
}

/// Why a command line cannot be used. Exit with 1, as upstream does.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    /// An unknown flag or a value that cannot be read.
    #[error("{0}")]
    Syntax(String),
    /// A value that cannot be meant.
    #[error(transparent)]
    Meaning(#[from] UnusableFlag),
    /// The file that `--config` names.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

impl Flags {
    /// What nothing typed says.
    pub(crate) fn defaults() -> Self {
        Self::parse_from(["kube-proxy"])
    }
}

/// Reads a command line, the program's name first, and the configuration file that it names.
pub fn parse<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<Command, CommandLineError> {
    parse_with(arguments, config::read)
}

/// The same, with the fields of the file that wait for a new start as they are in use.
pub fn parse_keeping<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    waiting: &[Waiting],
) -> Result<Command, CommandLineError> {
    parse_with(arguments, |file| {
        let (configuration, warnings) = config::read(file)?;
        Ok((configuration.keeping(waiting), warnings))
    })
}

/// The same as [`parse`], for a process that starts, perhaps anew in its pod: what takes a new
/// start is as it was when the pod was prepared (`--prepared-config`), and so is all of a file that
/// cannot be used.
pub fn parse_prepared(arguments: &[OsString]) -> Result<Command, CommandLineError> {
    let found = parse(arguments);
    let is_concerned = match &found {
        Ok(Command::Run(options)) => !options.init_only && options.configuration_file.is_some(),
        Ok(_) => false,
        Err(error) => matches!(error, CommandLineError::Configuration(_)),
    };
    let is_it = |(flag, value): &(String, String)| flag == "prepared-config" && !value.is_empty();
    let Some((_, file)) = values(arguments).into_iter().find(is_it) else {
        return found;
    };
    if !is_concerned {
        return found;
    }
    let prepared = match config::prepared(Path::new(&file)) {
        Ok(Some(prepared)) => prepared,
        Ok(None) => return found,
        Err(error) => return warned(found, &format!("{error}; going on without it")),
    };
    match found {
        Ok(Command::Run(options)) => match &*prepared.waits(&options.configuration) {
            [] => Ok(Command::Run(options)),
            waiting => parse_keeping(arguments, waiting),
        },
        Ok(other) => Ok(other),
        Err(error) => warned(
            parse_with(arguments, |_| Ok((prepared, Vec::new()))),
            &format!("{error}; going on with the configuration that this pod had"),
        ),
    }
}

/// With a warning for the operator.
fn warned(
    mut read: Result<Command, CommandLineError>,
    warning: &str,
) -> Result<Command, CommandLineError> {
    if let Ok(Command::Run(options)) = &mut read {
        options.warnings.push(warning.to_owned());
    }
    read
}

/// Reads a command line, and with `read` the configuration file that it names.
fn parse_with<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    read: impl FnOnce(&Path) -> Result<(Configuration, Vec<String>), ConfigurationError>,
) -> Result<Command, CommandLineError> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let output = take_check(&mut arguments)?;
    let typed = Flags::command()
        .try_get_matches_from(normalised(arguments))
        .and_then(|typed| Ok((Flags::from_arg_matches(&typed)?, typed)));
    let (flags, typed) = match typed {
        Ok(typed) => typed,
        Err(error) if !error.use_stderr() => return Ok(Command::Print(error.to_string())),
        Err(error) => return Err(CommandLineError::Syntax(told(&error))),
    };
    match flags.version.as_deref() {
        None | Some("false") => {}
        // It is to be told as the version, and tells nothing here.
        Some(given) if given.starts_with('v') => {}
        Some("true" | "raw") => {
            return Ok(Command::Print(version::told()));
        }
        Some(value) => {
            return Err(UnusableFlag::new("version", value, "give true, raw or false").into());
        }
    }
    let is_given = |flag: &str| {
        // clap's name of a flag is the field's.
        let id = match flag {
            "v" => "verbosity".to_owned(),
            other => other.replace('-', "_"),
        };
        typed.value_source(&id) == Some(ValueSource::CommandLine)
    };
    let mut flags = flags;
    if !flags.hostname_override.trim().is_empty() {
        flags.hostname_override = flags.hostname_override.trim().to_lowercase();
    }
    let (flags, configuration, said) = if flags.config.is_empty() {
        (flags, Configuration::default(), Vec::new())
    } else {
        with_file(flags, read, is_given)?
    };
    let is_of_file = |flag: &str| {
        let wins = config::wins_over_file(flag) && is_given(flag);
        !flags.config.is_empty() && !wins
    };
    let mut options = Options::new(&flags).map_err(|error| match config::field_of(error.flag) {
        Some(field) if is_of_file(error.flag) => {
            ConfigurationError::of(Path::new(&flags.config), field, &error).into()
        }
        _ => CommandLineError::from(error),
    })?;
    if !flags.write_config_to.is_empty() {
        let text = config::render(configuration, &flags);
        return Ok(Command::Write(flags.write_config_to.into(), text));
    }
    let given = Given {
        typed: &is_given,
        file: (!flags.config.is_empty()).then_some((Path::new(&flags.config), &configuration)),
    };
    let without_effect = given.without_effect(&flags);
    options.configuration = configuration.completed(&flags);
    options.warnings.extend(said);
    let deprecated = DEPRECATED.iter().filter(|(flag, _)| is_given(flag));
    options.warnings.extend(
        deprecated.map(|(flag, instead)| format!("--{flag} is deprecated; use --{instead}")),
    );
    options.warnings.extend(without_effect);
    let options = Box::new(options);
    Ok(match output {
        Some(output) => Command::Check(options, output),
        None if flags.cleanup => Command::Cleanup(options),
        None => Command::Run(options),
    })
}

/// The flags with `_` for `-` in their names made right.
fn normalised(arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = false;
    arguments.into_iter().map(move |argument| {
        // Everything behind `--` is no flag.
        is_value |= argument == "--";
        if is_value {
            argument
        } else {
            go::normalise(argument)
        }
    })
}

/// What is wrong with a command line, in one line.
fn told(error: &clap::Error) -> String {
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let argument = context(ContextKind::InvalidArg);
    // `--flag <VALUE>`, `--flag[=<VALUE>]`, or `-v, --v <VALUE>`.
    let flag = argument.split([' ', '[']).next().unwrap_or(&argument);
    let flag = if flag == "-v," { "--v" } else { flag };
    match error.kind() {
        ErrorKind::UnknownArgument if !flag.starts_with('-') => format!(
            "only flags are taken, and '{flag}' is none; the value of a switch goes behind =, as in --masquerade-all=true"
        ),
        ErrorKind::UnknownArgument => {
            let similar = context(ContextKind::SuggestedArg);
            match gone::advice(flag.trim_start_matches('-')) {
                Some(advice) => format!("unknown flag: {flag}: {advice}"),
                None if similar.is_empty() => {
                    format!("unknown flag: {flag}; see kube-proxy --help")
                }
                None => format!("unknown flag: {flag}; is {similar} meant?"),
            }
        }
        ErrorKind::ValueValidation => {
            let (value, advice) = (context(ContextKind::InvalidValue), error.source());
            let advice = advice.map(ToString::to_string).unwrap_or_default();
            format!("invalid value '{value}' for '{flag}': {advice}")
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => {
            format!("flag needs a value: {flag}")
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    }
}

/// The flags of a command line that can be read, with their values, as upstream logs them: `--v="2"`, sorted.
pub fn as_typed<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Vec<String> {
    values(arguments)
        .into_iter()
        .map(|(name, value)| format!("--{name}={value:?}"))
        .collect()
}

/// The flags of a command line that can be read, without their dashes, with their values as Go
/// prints them, sorted.
pub fn values<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Vec<(String, String)> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let mut command = Flags::command();
    command.build();
    let typed = take_check(&mut arguments)
        .ok()
        .and_then(|_| command.try_get_matches_from_mut(normalised(arguments)).ok());
    let Some(typed) = typed else {
        return Vec::new();
    };
    let mut flags: Vec<_> = command
        .get_arguments()
        .filter_map(|flag| Some((flag.get_long()?.to_owned(), value(flag, &typed))))
        .collect();
    flags.sort();
    flags
}

/// The value of a flag as Go prints it.
fn value(flag: &Arg, typed: &ArgMatches) -> String {
    let id = flag.get_id().as_str();
    if matches!(id, "help" | "version") {
        let given = typed.try_get_one::<String>(id).ok().flatten();
        return given.map_or_else(|| "false".to_owned(), Clone::clone);
    }
    let given = typed.get_raw(id).into_iter().flatten();
    let mut given: Vec<String> = given
        .map(|value: &OsStr| value.to_string_lossy().into_owned())
        .collect();
    let names = flag.get_value_names().unwrap_or_default();
    let kind = names.first().map_or("", |name| name.as_str());
    let is_list = matches!(flag.get_action(), ArgAction::Append);
    if kind == "CIDRS" && is_list {
        return format!("[{}]", given.join(","));
    }
    if is_list {
        let gates = given.iter().filter_map(|gate| go::gate(gate).ok());
        let mut gates: Vec<String> = gates
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        gates.sort();
        return gates.join(",");
    }
    let last = given.pop().unwrap_or_default();
    match kind {
        "DURATION" => go::duration(&last)
            .ok()
            .map(|value| Period(value).to_string()),
        "BOOL" => go::bool(&last).ok().map(|value| value.to_string()),
        "NUMBER" => go::float(&last).ok().map(|value| value.to_string()),
        _ => go::int(&last).ok().map(|value| value.to_string()),
    }
    .unwrap_or(last)
}

/// Takes `check` and its `-o` out of a command line, if it begins so; the form of the answer.
fn take_check(arguments: &mut Vec<OsString>) -> Result<Option<Output>, UnusableFlag> {
    if arguments.get(1).is_none_or(|first| first != "check") {
        return Ok(None);
    }
    arguments.remove(1);
    let mut form = "text".to_owned();
    let mut rest = Vec::with_capacity(arguments.len());
    let mut given = arguments.drain(..);
    while let Some(argument) = given.next() {
        let text = argument.to_string_lossy();
        form = match text.split_once('=') {
            Some(("-o" | "--output", value)) => value.to_owned(),
            None if text == "-o" || text == "--output" => {
                let value = given.next().unwrap_or_default();
                value.to_string_lossy().into_owned()
            }
            _ => {
                rest.push(argument);
                continue;
            }
        };
    }
    drop(given);
    *arguments = rest;
    match &*form {
        "text" => Ok(Some(Output::Text)),
        "json" => Ok(Some(Output::Json)),
        "yaml" => Ok(Some(Output::Yaml)),
        other => Err(UnusableFlag::new(
            "output",
            other,
            "give text, json or yaml",
        )),
    }
}

/// The flags with the file's fields in place of theirs, the file, and warnings about it.
fn with_file(
    mut flags: Flags,
    read: impl FnOnce(&Path) -> Result<(Configuration, Vec<String>), ConfigurationError>,
    is_given: impl Fn(&str) -> bool,
) -> Result<(Flags, Configuration, Vec<String>), ConfigurationError> {
    let file = PathBuf::from(&flags.config);
    let (configuration, mut warnings) = read(&file)?;
    let place = file.display();
    for warning in &mut warnings {
        *warning = format!("{place}: {warning}");
    }
    let ignored: Vec<String> = config::fields_with_flags()
        .filter(|(_, flag)| is_given(flag) && !config::wins_over_file(flag))
        .map(|(field, flag)| format!("--{flag} ({field})"))
        .collect();
    if !ignored.is_empty() {
        let ignored = ignored.join(", ");
        warnings.push(format!(
            "{place}: it counts, and not {ignored} of the command line"
        ));
    }
    let wrong = |error: UnusableFlag| {
        let field = config::field_of(error.flag).unwrap_or_default();
        ConfigurationError::of(&file, field, &error)
    };
    configuration
        .clone()
        .put(&mut flags, is_given)
        .map_err(wrong)?;
    // Upstream's file has an address for each server, and no port beside it.
    let defaults = Flags::defaults();
    (flags.healthz_port, flags.metrics_port) = (defaults.healthz_port, defaults.metrics_port);
    Ok((flags, configuration, warnings))
}

#[cfg(test)]
mod tests;
