//! The command line: first what was typed ([`Flags`]), then what is meant ([`Options`]).
//!
//! Spelling, defaults and meaning are upstream kube-proxy's, so that an existing DaemonSet starts this binary unchanged.
//! A flag is one field of [`Flags`]: its name, its default, how its text is read, and its help. What a value means
//! together with the others, and whether that is allowed, is decided in [`Options`].
//!
//! What is not here: the configuration file, and flags of parts that do not exist yet. An unknown flag is an error.

mod go;
mod options;

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use clap::{ArgAction, Parser};

pub use options::{
    Conntrack, DetectLocal, IptablesBackend, IpvsTimeouts, ObjectSource, Options, UnusableFlag,
};

/// What was typed.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "kube-proxy",
    about = "Carries Kubernetes Services by the kernel's IPVS.",
    disable_version_flag = true,
    args_override_self = true
)]
#[allow(clippy::struct_excessive_bools, reason = "one bool is one flag")]
#[allow(
    clippy::option_option,
    reason = "a flag may be absent, bare, or have a value"
)]
pub struct Flags {
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

    /// How Services are carried; this build has: ipvs
    #[arg(
        long,
        value_name = "MODE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub proxy_mode: String,

    /// This node's IP, if not 0.0.0.0 or ::, instead of the one in its Node object; its family is the primary one
    #[arg(long, value_name = "IP", default_value = "0.0.0.0", value_parser = go::ip, allow_hyphen_values = true)]
    pub bind_address: IpAddr,

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

    /// Which iptables commands to use: legacy, nft, or auto for what the node already uses
    #[arg(
        long,
        value_name = "BACKEND",
        default_value = "auto",
        allow_hyphen_values = true
    )]
    pub iptables_backend: String,

    /// IPVS scheduler of every virtual server; rr if empty
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub ipvs_scheduler: String,

    /// Networks in which virtual servers of others are left alone
    #[arg(long, value_name = "CIDRS", action = ArgAction::Append, allow_hyphen_values = true)]
    pub ipvs_exclude_cidrs: Vec<String>,

    /// Answer ARP only on the interface that has the address (sysctls arp_ignore=1, arp_announce=2)
    #[arg(long = "ipvs-strict-arp", value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub ipvs_strict_arp: bool,

    /// Idle timeout of TCP connections in IPVS; 0 leaves the kernel's
    #[arg(long = "ipvs-tcp-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_tcp_timeout: Duration,

    /// Timeout of TCP connections in IPVS after a FIN; 0 leaves the kernel's
    #[arg(long = "ipvs-tcpfin-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_tcpfin_timeout: Duration,

    /// Idle timeout of UDP flows in IPVS; 0 leaves the kernel's
    #[arg(long = "ipvs-udp-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_udp_timeout: Duration,

    /// Longest time between two comparisons with the kernel
    #[arg(long = "ipvs-sync-period", value_name = "DURATION", default_value = "30s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_sync_period: Duration,

    /// Shortest time between the end of one sync and the start of the next
    #[arg(long = "ipvs-min-sync-period", value_name = "DURATION", default_value = "1s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_min_sync_period: Duration,

    /// How long a removed endpoint may keep its TCP connections; 0: until they end
    #[arg(long = "ipvs-drain-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_drain_timeout: Duration,

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

    /// Print the version and exit
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub version: Option<String>,
}

/// What to do about a command line.
#[derive(Debug)]
pub enum Command {
    /// Run the daemon.
    Run(Box<Options>),
    /// Print this (help or version) to standard output, and exit with 0.
    Print(String),
}

/// Why a command line cannot be used. Exit with 1, as upstream does.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    /// An unknown flag or a value that cannot be read.
    #[error("{}", .0.to_string().trim_start_matches("error: ").trim_end())]
    Syntax(#[source] clap::Error),
    /// A value that cannot be meant.
    #[error(transparent)]
    Meaning(#[from] UnusableFlag),
}

/// Reads a command line, the program's name first.
pub fn parse<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<Command, CommandLineError> {
    let mut is_value = false;
    let arguments = arguments.into_iter().map(Into::into).map(|argument| {
        // Everything behind `--` is no flag.
        is_value |= argument == "--";
        if is_value {
            argument
        } else {
            go::normalise(argument)
        }
    });
    let flags = match Flags::try_parse_from(arguments) {
        Ok(flags) => flags,
        Err(error) if !error.use_stderr() => return Ok(Command::Print(error.to_string())),
        Err(error) => return Err(CommandLineError::Syntax(error)),
    };
    match flags.version.as_deref() {
        None | Some("false") => Ok(Command::Run(Box::new(Options::new(&flags)?))),
        Some("true" | "raw") => Ok(Command::Print(format!(
            "kube-proxy-ipvs v{}\n",
            env!("CARGO_PKG_VERSION")
        ))),
        Some(value) => Err(UnusableFlag::new("version", value, "give true or false").into()),
    }
}

#[cfg(test)]
mod tests;
