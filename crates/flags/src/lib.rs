//! The command line of kube-proxy: a field for each flag.
//!
//! - Names and defaults are the same as those of upstream's kube-proxy, so an existing DaemonSet
//!   starts this binary unchanged.
//! - One field of [`Flags`] defines the name, default, parser and help of a flag.
//! - Each part of the daemon has a type for the flags that it reads. The daemon's module `options`
//!   combines these types.
//!
//! The crate does not depend on the code that reads the flags.

pub mod gates;
pub mod go;
pub mod headings;
pub mod nets;
mod removed;
pub mod unusable_flag;
pub mod usage;
pub mod version;
pub mod words;

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use clap::{ArgAction, Parser};

/// Media type of objects that are encoded as Kubernetes protobuf.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Values of all flags.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "kube-proxy",
    about = "Carries Kubernetes Services by the kernel's IPVS (ipvs mode), by rules of iptables (iptables mode), by a table of \
             nftables (nftables mode) or by itself (userspace mode).",
    disable_version_flag = true,
    args_override_self = true
)]
#[allow(clippy::struct_excessive_bools, reason = "one bool is one flag")]
#[allow(
    clippy::option_option,
    reason = "a flag may be absent, bare, or have a value"
)]
pub struct Flags {
    /// File with a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1). It overrides all flags
    /// that have a field there, except --hostname-override and the flags of the log
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub config: OsString,

    /// Write these flags to a file as a configuration, and exit
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub write_config_to: OsString,

    /// Remove the entries of all modes from the kernel, and exit
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub cleanup: bool,

    /// Print the writes of a start, as `kube-proxy plan` does, and exit: 0 no write, 1 some, 2
    /// undetermined; -o is text, wide, json or yaml
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub dry_run: bool,

    /// Do the privileged part of a start (sysctls; in ipvs mode also load IPVS and set its timeouts),
    /// and exit
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub init_only: bool,

    /// File with the pod's lifetime that keeps the fields of --config that need a restart. --init-only
    /// writes it, and so does the first start; later starts use its values, and report changed fields
    /// as waiting
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub prepared_config: OsString,

    /// Folder of Kubernetes manifests (*.yaml, *.yml, *.json) to serve instead of a cluster's
    /// objects; watched for changes
    #[arg(long, value_name = "DIR", allow_hyphen_values = true)]
    pub manifests: Option<OsString>,

    /// File with the address and credentials of the API server; without it and --master, the Pod's
    /// service account is used
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

    /// Encoding of the API server's answers: protobuf, with JSON as a fallback; any other: JSON
    #[arg(
        long,
        value_name = "TYPE",
        default_value = PROTOBUF,
        allow_hyphen_values = true
    )]
    pub kube_api_content_type: String,

    /// Period of resyncs of unchanged objects; no effect
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = go::duration, allow_hyphen_values = true)]
    pub config_sync_period: Duration,

    /// Kubernetes feature gates, all of 1.34 to 1.38 are known; these have an effect:
    /// AllowServiceExternalIPs, ComponentFlagz, ComponentStatusz, KubeProxyIPVS,
    /// KubeProxyNFTablesLocalhostNodePorts, LoggingAlphaOptions, LoggingBetaOptions and
    /// WatchListClient
    #[arg(long, value_name = "NAME=BOOL,...", value_parser = go::gate, allow_hyphen_values = true, value_delimiter = ',', action = ArgAction::Append)]
    pub feature_gates: Vec<(String, bool)>,

    /// Mode that carries Services: iptables, ipvs, nftables or userspace; empty: iptables
    #[arg(
        long,
        value_name = "MODE",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub proxy_mode: String,

    /// IP of this node, instead of the one in its Node object (0.0.0.0 and :: keep that one); its
    /// family is the primary one
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

    /// Metrics of single Services: none, ports (the kernel's counters of the busiest Service ports),
    /// or endpoints (also of their endpoints); read at each scrape
    #[arg(
        long,
        value_name = "none|ports|endpoints",
        default_value = "none",
        allow_hyphen_values = true
    )]
    pub metrics_per_service: String,

    /// Maximum of Service ports, and of endpoints, with metrics of their own: those with the most
    /// connections
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = go::int, allow_hyphen_values = true)]
    pub metrics_service_series_max: i32,

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

    /// OOM score of this process, -1000 (killed last) to 1000
    #[arg(long, value_name = "SCORE", default_value = "-999", value_parser = go::int, allow_hyphen_values = true)]
    pub oom_score_adj: i32,

    /// Networks of the cluster's pods, at most one of each family: with
    /// --detect-local-mode=ClusterCIDR, traffic to cluster IPs from other sources is masqueraded
    #[arg(long, value_name = "CIDRS", allow_hyphen_values = true)]
    pub cluster_cidr: Option<String>,

    /// Method that recognises traffic of this node's pods: ClusterCIDR, NodeCIDR, BridgeInterface or
    /// InterfaceNamePrefix
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

    /// Networks: the node's addresses in them serve NodePorts; also "primary" for the node's IP,
    /// "localhost" and "all", in any mix; default: all addresses, and in nftables mode "primary"
    #[arg(long, value_name = "CIDRS", action = ArgAction::Append, allow_hyphen_values = true)]
    pub nodeport_addresses: Vec<String>,

    /// Networks that may hold external and load-balancer addresses of Services; other addresses are not
    /// served; default: any address
    #[arg(long, value_name = "CIDRS", action = ArgAction::Append, allow_hyphen_values = true)]
    pub allowed_external_cidrs: Vec<String>,

    /// Masquerade all traffic to cluster IPs
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub masquerade_all: bool,

    /// Bit of the packet mark for packets to masquerade, 0 to 31; nftables mode reads
    /// nftables.masqueradeBit of the file instead
    #[arg(long, value_name = "BIT", default_value = "14", value_parser = go::int, allow_hyphen_values = true)]
    pub iptables_masquerade_bit: i32,

    /// Longest time between two comparisons with the kernel in iptables, nftables and userspace mode;
    /// no effect in ipvs mode
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = go::duration, allow_hyphen_values = true)]
    pub iptables_sync_period: Duration,

    /// Shortest time between two syncs of iptables, nftables and userspace mode; no effect in ipvs
    /// mode
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = go::duration, allow_hyphen_values = true)]
    pub iptables_min_sync_period: Duration,

    /// NodePorts on 127.0.0.1 in iptables and userspace mode; no effect in ipvs mode
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub iptables_localhost_nodeports: bool,

    /// Idle timeout of UDP flows in userspace mode; more than 0
    #[arg(long, value_name = "DURATION", default_value = "250ms", value_parser = go::duration, allow_hyphen_values = true)]
    pub udp_timeout: Duration,

    /// iptables commands to use: legacy, nft, or auto for those that the node already uses
    #[arg(
        long,
        value_name = "BACKEND",
        default_value = "auto",
        allow_hyphen_values = true
    )]
    pub iptables_backend: String,

    /// Value of `nftables.masqueradeAll` in the configuration file. No flag sets it.
    #[arg(skip)]
    pub nftables_masquerade_all: bool,

    /// Value of `nftables.masqueradeBit` in the configuration file. No flag sets it.
    #[arg(skip = 14_i32)]
    pub nftables_masquerade_bit: i32,

    /// Value of `nftables.minSyncPeriod` in the configuration file. No flag sets it.
    #[arg(skip = Duration::from_secs(1))]
    pub nftables_min_sync_period: Duration,

    /// Value of `nftables.syncPeriod` in the configuration file. No flag sets it.
    #[arg(skip = Duration::from_secs(30))]
    pub nftables_sync_period: Duration,

    /// IPVS scheduler of every virtual server; rr if empty; no effect in other modes
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub ipvs_scheduler: String,

    /// Networks of virtual servers that kube-proxy never touches, also with --cleanup and after a
    /// change from ipvs mode to another
    #[arg(long, value_name = "CIDRS", action = ArgAction::Append, allow_hyphen_values = true)]
    pub ipvs_exclude_cidrs: Vec<String>,

    /// Answer ARP only on the interface with the address (sysctls arp_ignore=1,
    /// arp_announce=2); no effect in other modes
    #[arg(long = "ipvs-strict-arp", value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub ipvs_strict_arp: bool,

    /// Idle timeout of TCP connections in IPVS; 0 keeps the kernel's; no effect in other modes
    #[arg(long = "ipvs-tcp-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_tcp_timeout: Duration,

    /// Timeout of TCP connections in IPVS after a FIN; 0 keeps the kernel's; no effect in other
    /// modes
    #[arg(long = "ipvs-tcpfin-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_tcpfin_timeout: Duration,

    /// Idle timeout of UDP flows in IPVS; 0 keeps the kernel's; no effect in other modes
    #[arg(long = "ipvs-udp-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_udp_timeout: Duration,

    /// Longest time between two comparisons with the kernel in ipvs mode; no effect in other
    /// modes
    #[arg(long = "ipvs-sync-period", value_name = "DURATION", default_value = "30s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_sync_period: Duration,

    /// Shortest time between the end of one sync and the start of the next in ipvs mode; no effect
    /// in other modes
    #[arg(long = "ipvs-min-sync-period", value_name = "DURATION", default_value = "1s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_min_sync_period: Duration,

    /// Rules beside IPVS: upstream, lean (fewer, cheaper for the first packet of a flow), nftables
    /// (without iptables and ipset), or auto (upstream if iptables and ipset work, else nftables); no
    /// effect in other modes
    #[arg(
        long,
        value_name = "auto|upstream|lean|nftables",
        default_value = "auto",
        allow_hyphen_values = true
    )]
    pub ipvs_shim: String,

    /// Layout of the table of nftables mode: upstream, flat (most Services have no chain of their own,
    /// so the cost of a change does not grow with their number), or auto (flat above 1,000 Service
    /// ports); no effect in other modes
    #[arg(
        long,
        value_name = "auto|upstream|flat",
        default_value = "auto",
        allow_hyphen_values = true
    )]
    pub nftables_layout: String,

    /// Time for a removed endpoint to keep its TCP connections, and for other modes to keep those of
    /// an earlier IPVS mode; 0: until they end
    #[arg(long = "ipvs-drain-timeout", value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub ipvs_drain_timeout: Duration,

    /// Form of service addresses on kube-ipvs0: address, route (cheaper for the kernel with
    /// thousands of them), or range (one route for each ServiceCIDR); no effect in other modes
    #[arg(
        long,
        value_name = "address|route|range",
        default_value = "address",
        allow_hyphen_values = true
    )]
    pub ipvs_vip_mode: String,

    /// Networks of cluster IPs for --ipvs-vip-mode=range, if the API server has no ServiceCIDRs; no
    /// effect in other modes
    #[arg(long, value_name = "CIDRS", action = ArgAction::Append, allow_hyphen_values = true)]
    pub ipvs_service_cidrs: Vec<String>,

    /// Endpoints and sources that packets get in IPVS mode: upstream, or exact (those of iptables
    /// mode); no effect in other modes
    #[arg(
        long,
        value_name = "upstream|exact",
        default_value = "upstream",
        allow_hyphen_values = true
    )]
    pub ipvs_semantics: String,

    /// Bits of the packet mark that number virtual servers with --ipvs-semantics=exact, unused by
    /// other programs; no effect in other modes
    #[arg(
        long,
        value_name = "BITS",
        default_value = "0x307f",
        allow_hyphen_values = true
    )]
    pub ipvs_mark_bits: String,

    /// Reply to ping at the addresses of Services in IPVS mode; no effect in other modes
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub ipvs_answer_ping: bool,

    /// Conntrack entries for each CPU (sysctl nf_conntrack_max); 0 keeps the kernel's limit, also with
    /// --conntrack-min
    #[arg(long, value_name = "COUNT", default_value = "32768", value_parser = go::int, allow_hyphen_values = true)]
    pub conntrack_max_per_core: i32,

    /// Smallest limit of conntrack entries, if --conntrack-max-per-core results in fewer
    #[arg(long, value_name = "COUNT", default_value = "131072", value_parser = go::int, allow_hyphen_values = true)]
    pub conntrack_min: i32,

    /// Idle timeout of established TCP connections in connection tracking; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = go::duration, allow_hyphen_values = true)]
    pub conntrack_tcp_timeout_established: Duration,

    /// Timeout of TCP connections in CLOSE_WAIT in connection tracking; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = go::duration, allow_hyphen_values = true)]
    pub conntrack_tcp_timeout_close_wait: Duration,

    /// Accept TCP segments outside of the window, which connection tracking otherwise marks INVALID
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = go::bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub conntrack_tcp_be_liberal: bool,

    /// Idle timeout of unanswered UDP flows in connection tracking; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub conntrack_udp_timeout: Duration,

    /// Idle timeout of answered UDP flows in connection tracking; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = go::duration, allow_hyphen_values = true)]
    pub conntrack_udp_timeout_stream: Duration,

    /// Log verbosity: 4 adds decisions, 6 adds every step
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value = "0", value_parser = go::int, allow_hyphen_values = true)]
    pub verbosity: i32,

    /// Log verbosity of single source files of this program (proxier=4,sets=6); * and ? match any text
    /// and any character
    #[arg(
        long,
        value_name = "PATTERN=LEVEL,...",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub vmodule: String,

    /// Format of the log: text (klog's lines), plain (lines for people) or json
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        allow_hyphen_values = true
    )]
    pub logging_format: String,

    /// Longest delay of log lines; no effect: every line is written at once
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

    /// Print the Kubernetes version that this program matches, and its own, and exit
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub version: Option<String>,
}

impl Flags {
    /// Returns the default values of all flags.
    pub fn defaults() -> Self {
        Self::parse_from(["kube-proxy"])
    }
}
