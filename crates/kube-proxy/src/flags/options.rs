//! What the flags mean, typed and checked.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use proxy::{ExternalIps, IpFamily, LocalDetector, Node, NodePortAddresses};
use proxy_ipvs::{ShimStyle, VipMode};
use source::{Api, ContentType, Lists, Settings, address};

use super::gates::{ALPHA_LOGGING, BETA_LOGGING, EXTERNAL_IPS, Gates, STREAMED_LISTS};
use super::{Flags, PROTOBUF, go};
use crate::config::Configuration;

/// The longest name of a network interface (`IFNAMSIZ` less its NUL).
const INTERFACE_NAME_MAX: usize = 15;

/// What is meant.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "one bool is one flag")]
pub struct Options {
    /// How Services are carried.
    pub mode: ProxyMode,
    /// Where Services come from.
    pub source: Settings,
    /// This node's name, lower-cased.
    pub node_name: String,
    /// `--bind-address`; unspecified (`0.0.0.0`, `::`) if the node's IP comes from its Node object. Its family is the
    /// primary one.
    pub bind_address: IpAddr,
    /// Where the health server listens, if there is one.
    pub healthz_address: Option<SocketAddr>,
    /// Where the metrics server listens, if there is one.
    pub metrics_address: Option<SocketAddr>,
    /// Whether a server that cannot listen is a reason to exit.
    pub bind_address_hard_fail: bool,
    /// How traffic of this node's pods is told apart.
    pub detect_local: DetectLocal,
    /// Which addresses serve NodePorts.
    pub node_port_addresses: NodePortAddresses,
    /// Whether all traffic to cluster IPs is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that says "masquerade", 0 to 31.
    pub masquerade_bit: u8,
    /// Which iptables commands to use.
    pub iptables_backend: IptablesBackend,
    /// Whether iptables mode is to serve NodePorts on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// The IPVS scheduler of every virtual server.
    pub scheduler: String,
    /// Networks in which virtual servers of others are left alone.
    pub exclude_cidrs: Vec<IpNet>,
    /// Whether `arp_ignore` and `arp_announce` are set.
    pub strict_arp: bool,
    /// Timeouts of IPVS connections.
    pub timeouts: IpvsTimeouts,
    /// Which iptables rules stand by IPVS.
    pub shim: ShimStyle,
    /// How long a removed endpoint may keep its TCP connections; `None`: until they end.
    pub drain_timeout: Option<Duration>,
    /// In which form `kube-ipvs0` holds the service addresses.
    pub vip_mode: VipMode,
    /// Settings of connection tracking.
    pub conntrack: Conntrack,
    /// The longest time between two comparisons with the kernel, more than zero.
    pub sync_period: Duration,
    /// The shortest time between the end of a sync and the start of the next, at most `sync_period`.
    pub min_sync_period: Duration,
    /// `/proc/self/oom_score_adj`, -1000 to 1000.
    pub oom_score_adj: i16,
    /// Whether to exit once what needs privileges is done.
    pub init_only: bool,
    /// Log verbosity, 0 to 10.
    pub verbosity: u8,
    /// Log verbosity of single source files, by pattern; the first that matches counts.
    pub vmodule: Vec<(String, u8)>,
    /// Form of the log.
    pub log_format: LogFormat,
    /// Whether lines that inform go to standard output, and not with the others to standard error.
    pub log_is_split: bool,
    /// Feature gates.
    pub gates: Gates,
    /// The file to follow, `--config`.
    pub configuration_file: Option<PathBuf>,
    /// The file that keeps what this pod was prepared for, `--prepared-config`.
    pub prepared_configuration: Option<PathBuf>,
    /// All of it as a file would say it, also what is accepted without effect.
    pub configuration: Configuration,
    /// What was chosen because nothing was given, a line each.
    pub notes: Vec<String>,
    /// What the operator should know about what was given, a line each.
    pub warnings: Vec<String>,
}

/// `--proxy-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyMode {
    /// By virtual servers.
    Ipvs,
    /// By rules. An empty mode is this, as upstream's on Linux: an image that is swapped changes no
    /// data plane.
    #[default]
    Iptables,
}

impl ProxyMode {
    /// All of them, the default first.
    pub(crate) const ALL: [Self; 2] = [Self::Iptables, Self::Ipvs];

    /// As the flag names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
        }
    }

    fn read(flag: &str) -> Result<Self, UnusableFlag> {
        let mut modes = Self::ALL.into_iter();
        let named = modes.find(|mode| mode.name() == flag);
        named
            .or(flag.is_empty().then(Self::default))
            .ok_or_else(|| {
                let modes = Self::ALL.map(Self::name).join(", ");
                let advice = format!("the modes of this build are: {modes}");
                UnusableFlag::new("proxy-mode", flag, advice)
            })
    }
}

/// `--logging-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// klog's lines.
    Text,
    /// Lines for people.
    Plain,
    /// A JSON object to a line.
    Json,
}

/// `--detect-local-mode` with what it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectLocal {
    /// By the cluster's pod networks, one of each family at most; of a family without one, traffic is not told apart.
    ClusterCidr(Vec<IpNet>),
    /// By the pod networks in the own Node object.
    NodeCidr,
    /// By the bridge that pods are attached to.
    BridgeInterface(String),
    /// By the prefix of the names of pods' interfaces.
    InterfaceNamePrefix(String),
}

impl DetectLocal {
    /// The detector of one family, given the own Node as far as it is known.
    pub fn detector(&self, family: IpFamily, node: Option<&Node>) -> LocalDetector {
        let first = |nets: &[IpNet]| {
            nets.iter()
                .find(|net| IpFamily::of(net.addr()) == family)
                .map_or(LocalDetector::None, |net| LocalDetector::SourceNet(*net))
        };
        match self {
            Self::ClusterCidr(nets) => first(nets),
            Self::NodeCidr => node.map_or(LocalDetector::None, |node| first(&node.pod_cidrs)),
            Self::BridgeInterface(name) => LocalDetector::Bridge(name.clone()),
            Self::InterfaceNamePrefix(prefix) => LocalDetector::InterfacePrefix(prefix.clone()),
        }
    }
}

/// `--iptables-backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IptablesBackend {
    /// What the node already uses, else what works.
    Auto,
    /// `iptables-legacy-restore` and its siblings.
    Legacy,
    /// `iptables-nft-restore` and its siblings.
    Nft,
}

/// Timeouts of IPVS connections; zero leaves the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IpvsTimeouts {
    /// Idle TCP connections.
    pub tcp: Duration,
    /// TCP connections after a FIN.
    pub tcp_fin: Duration,
    /// Idle UDP flows.
    pub udp: Duration,
}

/// Settings of connection tracking; zero leaves the kernel's. Times are not shorter than a second, in which the kernel counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conntrack {
    /// Entries for each CPU.
    pub max_per_core: u32,
    /// Entries at least, if `max_per_core` is not zero.
    pub min: u32,
    /// Idle established TCP connections.
    pub tcp_established: Duration,
    /// TCP connections in `CLOSE_WAIT`.
    pub tcp_close_wait: Duration,
    /// Whether TCP segments outside of the window are valid.
    pub tcp_be_liberal: bool,
    /// UDP flows without an answer.
    pub udp: Duration,
    /// UDP flows with answers.
    pub udp_stream: Duration,
}

/// A flag whose value can be read but not be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value '{value}' for '--{flag}': {advice}")]
pub struct UnusableFlag {
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// The value it has.
    pub value: String,
    /// What is wrong with it, and what is allowed.
    pub advice: String,
}

impl UnusableFlag {
    pub(crate) fn new(flag: &'static str, value: &str, advice: impl Into<String>) -> Self {
        Self {
            flag,
            value: value.to_owned(),
            advice: advice.into(),
        }
    }
}

impl Options {
    /// What becomes of Services' external IPs.
    pub(crate) fn external_ips(&self) -> ExternalIps {
        if self.gates.is_on(EXTERNAL_IPS) {
            ExternalIps::Served
        } else {
            ExternalIps::Ignored
        }
    }

    /// Whether iptables mode serves NodePorts on 127.0.0.1: it is asked to, and `--nodeport-addresses` has that address.
    pub(crate) fn serves_localhost(&self) -> bool {
        let has_localhost = match &self.node_port_addresses {
            NodePortAddresses::All => true,
            NodePortAddresses::Primary => false,
            NodePortAddresses::Within(cidrs) => {
                let mut own = cidrs.iter().filter(|net| net.addr().is_ipv4()).peekable();
                let first = IpAddr::from([127, 0, 0, 0]);
                own.peek().is_none()
                    || own.any(|net| net.addr().is_loopback() || net.contains(&first))
            }
        };
        self.mode == ProxyMode::Iptables && self.localhost_node_ports && has_localhost
    }

    /// Works out what `flags` mean.
    pub fn new(flags: &Flags) -> Result<Self, UnusableFlag> {
        let mode = ProxyMode::read(&flags.proxy_mode)?;
        let gates = Gates::new(flags.feature_gates.iter().cloned())
            .map_err(|error| UnusableFlag::new("feature-gates", &error.given, error.advice))?;
        let log_format = log_format(flags, &gates)?;
        let Ok(masquerade_bit @ 0..=31) = u8::try_from(flags.iptables_masquerade_bit) else {
            return Err(UnusableFlag::new(
                "iptables-masquerade-bit",
                &flags.iptables_masquerade_bit.to_string(),
                "a packet mark has the bits 0 to 31",
            ));
        };
        let (sync, min_sync) = match mode {
            ProxyMode::Ipvs => (
                ("ipvs-sync-period", flags.ipvs_sync_period),
                ("ipvs-min-sync-period", flags.ipvs_min_sync_period),
            ),
            ProxyMode::Iptables => (
                ("iptables-sync-period", flags.iptables_sync_period),
                ("iptables-min-sync-period", flags.iptables_min_sync_period),
            ),
        };
        let (sync_period, min_sync_period) = (sync.1, min_sync.1);
        if sync_period.is_zero() {
            return Err(UnusableFlag::new(
                sync.0,
                "0s",
                "must be longer than 0, for example 30s",
            ));
        }
        if min_sync_period > sync_period {
            return Err(UnusableFlag::new(
                min_sync.0,
                &format!("{min_sync_period:?}"),
                format!(
                    "must not be longer than --{}, which is {sync_period:?}",
                    sync.0
                ),
            ));
        }
        if flags.config_sync_period.is_zero() {
            return Err(UnusableFlag::new(
                "config-sync-period",
                "0s",
                "must be longer than 0, for example 15m",
            ));
        }
        if flags.kube_api_burst < 0 {
            return Err(UnusableFlag::new(
                "kube-api-burst",
                &flags.kube_api_burst.to_string(),
                "give 0 or more",
            ));
        }
        let timeouts = IpvsTimeouts {
            tcp: timeout("ipvs-tcp-timeout", flags.ipvs_tcp_timeout)?,
            tcp_fin: timeout("ipvs-tcpfin-timeout", flags.ipvs_tcpfin_timeout)?,
            udp: timeout("ipvs-udp-timeout", flags.ipvs_udp_timeout)?,
        };
        Ok(Self {
            mode,
            localhost_node_ports: flags.iptables_localhost_nodeports,
            source: source(flags, &gates)?,
            detect_local: detect_local(flags)?,
            node_port_addresses: node_port_addresses(flags)?,
            exclude_cidrs: nets("ipvs-exclude-cidrs", &flags.ipvs_exclude_cidrs)?,
            iptables_backend: match &*flags.iptables_backend {
                "auto" => IptablesBackend::Auto,
                "legacy" => IptablesBackend::Legacy,
                "nft" => IptablesBackend::Nft,
                other => {
                    return Err(UnusableFlag::new(
                        "iptables-backend",
                        other,
                        "give auto, legacy or nft",
                    ));
                }
            },
            node_name: node_name(&flags.hostname_override)?,
            bind_address: flags.bind_address,
            healthz_address: listen(
                "healthz-bind-address",
                &flags.healthz_bind_address,
                flags.healthz_port,
            )?,
            metrics_address: listen(
                "metrics-bind-address",
                &flags.metrics_bind_address,
                flags.metrics_port,
            )?,
            bind_address_hard_fail: flags.bind_address_hard_fail,
            oom_score_adj: match i16::try_from(flags.oom_score_adj) {
                Ok(score @ -1000..=1000) => score,
                _ => {
                    return Err(UnusableFlag::new(
                        "oom-score-adj",
                        &flags.oom_score_adj.to_string(),
                        "give -1000 to 1000",
                    ));
                }
            },
            init_only: flags.init_only,
            log_format,
            log_is_split: match log_format {
                LogFormat::Text | LogFormat::Plain => flags.log_text_split_stream,
                LogFormat::Json => flags.log_json_split_stream,
            },
            configuration_file: (!flags.config.is_empty()).then(|| (&flags.config).into()),
            prepared_configuration: (!flags.prepared_config.is_empty())
                .then(|| (&flags.prepared_config).into()),
            configuration: Configuration::of(flags),
            notes: [notes(flags), gates.notes()].concat(),
            warnings: [warnings(flags), gates.without_effect()].concat(),
            gates,
            masquerade_all: flags.masquerade_all,
            masquerade_bit,
            scheduler: match &*flags.ipvs_scheduler {
                "" => "rr".to_owned(),
                name => name.to_owned(),
            },
            strict_arp: flags.ipvs_strict_arp,
            timeouts,
            shim: match &*flags.ipvs_shim {
                "upstream" => ShimStyle::Upstream,
                "lean" => ShimStyle::Lean,
                other => {
                    return Err(UnusableFlag::new(
                        "ipvs-shim",
                        other,
                        "give upstream or lean",
                    ));
                }
            },
            drain_timeout: (!flags.ipvs_drain_timeout.is_zero())
                .then_some(flags.ipvs_drain_timeout),
            vip_mode: match &*flags.ipvs_vip_mode {
                "address" => VipMode::Address,
                "route" => VipMode::Route,
                other => {
                    return Err(UnusableFlag::new(
                        "ipvs-vip-mode",
                        other,
                        "give address or route",
                    ));
                }
            },
            conntrack: conntrack(flags)?,
            sync_period,
            min_sync_period,
            verbosity: u8::try_from(flags.verbosity.clamp(0, 10)).unwrap_or_default(),
            vmodule: vmodule(&flags.vmodule)?,
        })
    }
}

fn vmodule(given: &str) -> Result<Vec<(String, u8)>, UnusableFlag> {
    let items = given.split(',').map(str::trim);
    items
        .filter(|item| !item.is_empty())
        .map(|item| {
            let wrong = || {
                UnusableFlag::new(
                    "vmodule",
                    item,
                    "give source files and their verbosity, such as proxier=4,sets=6",
                )
            };
            let (pattern, verbosity) = item.split_once('=').ok_or_else(wrong)?;
            let verbosity: u32 = verbosity.trim().parse().map_err(|_| wrong())?;
            Ok((
                pattern.trim().to_owned(),
                u8::try_from(verbosity).unwrap_or(10),
            ))
        })
        .collect()
}

fn listen(flag: &'static str, text: &str, port: i32) -> Result<Option<SocketAddr>, UnusableFlag> {
    go::listen(text, port).map_err(|advice| UnusableFlag::new(flag, text, advice))
}

/// What is chosen for the operator, in the words in which it would be given.
fn notes(flags: &Flags) -> Vec<String> {
    if !flags.proxy_mode.is_empty() {
        return Vec::new();
    }
    let mode = ProxyMode::default().name();
    let (empty, ipvs) = if flags.config.is_empty() {
        ("--proxy-mode is empty".to_owned(), "--proxy-mode=ipvs")
    } else {
        let file = Path::new(&flags.config).display();
        (format!("{file}: mode is empty"), "mode: ipvs")
    };
    vec![format!(
        "{empty}: {mode} mode is used, as upstream's default; give {ipvs} for IPVS"
    )]
}

/// What means nothing.
fn warnings(flags: &Flags) -> Vec<String> {
    let defaults = Flags::defaults();
    let mut warnings = Vec::new();
    let mut warn = |applies: bool, text: &str| {
        if applies {
            warnings.push(text.to_owned());
        }
    };
    for (flag, value, default) in [
        ("boot-id-file", &flags.boot_id_file, defaults.boot_id_file),
        (
            "machine-id-file",
            &flags.machine_id_file,
            defaults.machine_id_file,
        ),
    ] {
        let text = format!("--{flag} has no effect: it is left over from another program");
        warn(*value != default, &text);
    }
    warn(
        flags.config.is_empty() && !flags.prepared_config.is_empty(),
        "--prepared-config has no effect: there is no --config that could change",
    );
    let is_ipvs = flags.proxy_mode == ProxyMode::Ipvs.name();
    for (flag, is_given) in [
        ("ipvs-shim", flags.ipvs_shim != defaults.ipvs_shim),
        (
            "ipvs-drain-timeout",
            flags.ipvs_drain_timeout != defaults.ipvs_drain_timeout,
        ),
        (
            "ipvs-vip-mode",
            flags.ipvs_vip_mode != defaults.ipvs_vip_mode,
        ),
    ] {
        let text = format!("--{flag} has no effect: it is of ipvs mode");
        warn(is_given && !is_ipvs, &text);
    }
    warnings
}

fn log_format(flags: &Flags, gates: &Gates) -> Result<LogFormat, UnusableFlag> {
    let needs = |gate: &str| format!("the feature gate {gate} is off, which this needs");
    let options = [
        (
            "log-json-info-buffer-size",
            &flags.log_json_info_buffer_size,
        ),
        (
            "log-text-info-buffer-size",
            &flags.log_text_info_buffer_size,
        ),
        (
            "log-json-split-stream",
            &flags.log_json_split_stream.to_string(),
        ),
        (
            "log-text-split-stream",
            &flags.log_text_split_stream.to_string(),
        ),
    ];
    // Upstream's zero may be spelled in many ways: `0`, `0Ki`.
    let is_set = |value: &str| value == "true" || value.contains(|c| matches!(c, '1'..='9'));
    for (flag, value) in options {
        if is_set(value) && !gates.is_on(ALPHA_LOGGING) {
            return Err(UnusableFlag::new(flag, value, needs(ALPHA_LOGGING)));
        }
    }
    let format = match &*flags.logging_format {
        "text" => LogFormat::Text,
        "plain" => LogFormat::Plain,
        "json" if gates.is_on(BETA_LOGGING) => LogFormat::Json,
        "json" => {
            return Err(UnusableFlag::new(
                "logging-format",
                "json",
                needs(BETA_LOGGING),
            ));
        }
        other => {
            return Err(UnusableFlag::new(
                "logging-format",
                other,
                "give text, plain or json",
            ));
        }
    };
    Ok(format)
}

fn source(flags: &Flags, gates: &Gates) -> Result<Settings, UnusableFlag> {
    let kubeconfig = (!flags.kubeconfig.is_empty()).then(|| PathBuf::from(&flags.kubeconfig));
    let master = (!flags.master.is_empty()).then(|| flags.master.clone());
    let Some(folder) = &flags.manifests else {
        let lists = match gates.given(STREAMED_LISTS) {
            Some(true) => Lists::Streamed,
            Some(false) | None => Lists::Cached,
        };
        let content_type = match &*flags.kube_api_content_type {
            "" | PROTOBUF => ContentType::Protobuf,
            _ => ContentType::Json,
        };
        return Ok(Settings::Api(Api {
            kubeconfig,
            master,
            lists,
            content_type,
        }));
    };
    let unusable = |advice| UnusableFlag::new("manifests", &folder.to_string_lossy(), advice);
    if kubeconfig.is_some() || master.is_some() {
        Err(unusable(
            "Services come from manifests or from an API server, not both: give this, or --kubeconfig and --master",
        ))
    } else if folder.is_empty() {
        Err(unusable("give a folder"))
    } else {
        Ok(Settings::Manifests(folder.into()))
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

fn detect_local(flags: &Flags) -> Result<DetectLocal, UnusableFlag> {
    let cluster_nets = match flags.cluster_cidr.as_deref() {
        None => Vec::new(),
        Some(given) => {
            let nets = nets("cluster-cidr", &given.split(',').collect::<Vec<_>>())?;
            for family in IpFamily::ALL {
                let of_family = nets
                    .iter()
                    .filter(|net| IpFamily::of(net.addr()) == family)
                    .count();
                if of_family > 1 {
                    return Err(UnusableFlag::new(
                        "cluster-cidr",
                        given,
                        format!("{of_family} {family} networks; give at most one of each family"),
                    ));
                }
            }
            nets
        }
    };
    match &*flags.detect_local_mode {
        "" | "ClusterCIDR" => Ok(DetectLocal::ClusterCidr(cluster_nets)),
        "NodeCIDR" => Ok(DetectLocal::NodeCidr),
        "BridgeInterface" => interface(
            "pod-bridge-interface",
            &flags.pod_bridge_interface,
            "BridgeInterface",
        )
        .map(DetectLocal::BridgeInterface),
        "InterfaceNamePrefix" => interface(
            "pod-interface-name-prefix",
            &flags.pod_interface_name_prefix,
            "InterfaceNamePrefix",
        )
        .map(DetectLocal::InterfaceNamePrefix),
        other => Err(UnusableFlag::new(
            "detect-local-mode",
            other,
            "give ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
        )),
    }
}

fn interface(flag: &'static str, name: &str, mode: &str) -> Result<String, UnusableFlag> {
    if name.is_empty() {
        Err(UnusableFlag::new(
            flag,
            name,
            format!("--detect-local-mode={mode} needs it: give the interface's name"),
        ))
    } else if name.len() > INTERFACE_NAME_MAX
        || name.contains(|c: char| c == '/' || c.is_whitespace())
    {
        Err(UnusableFlag::new(
            flag,
            name,
            format!(
                "an interface's name has at most {INTERFACE_NAME_MAX} characters, and neither / nor spaces"
            ),
        ))
    } else {
        Ok(name.to_owned())
    }
}

fn node_port_addresses(flags: &Flags) -> Result<NodePortAddresses, UnusableFlag> {
    const FLAG: &str = "nodeport-addresses";
    let given: Vec<&str> = items(&flags.nodeport_addresses).collect();
    if given.is_empty() {
        Ok(NodePortAddresses::All)
    } else if given == ["primary"] {
        Ok(NodePortAddresses::Primary)
    } else if given.contains(&"primary") {
        Err(UnusableFlag::new(
            FLAG,
            &given.join(","),
            "\"primary\" stands alone: give it, or networks",
        ))
    } else {
        nets(FLAG, &given).map(NodePortAddresses::Within)
    }
}

/// Networks of a flag that may be given several times, each time with several.
fn nets<T: AsRef<str>>(flag: &'static str, given: &[T]) -> Result<Vec<IpNet>, UnusableFlag> {
    given
        .iter()
        .flat_map(|list| split(list.as_ref()))
        .map(|text| {
            address::net(text).ok_or_else(|| {
                UnusableFlag::new(flag, text, "give networks such as 10.0.0.0/16 or fd00::/64")
            })
        })
        .collect()
}

fn items(given: &[String]) -> impl Iterator<Item = &str> {
    given
        .iter()
        .filter(|list| !list.is_empty())
        .flat_map(|list| split(list))
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

fn timeout(flag: &'static str, timeout: Duration) -> Result<Duration, UnusableFlag> {
    // The kernel multiplies seconds by HZ (at most 1000) in a signed 32-bit number.
    const MAX: Duration = Duration::from_secs(i32::MAX as u64 / 1000);
    if timeout > MAX {
        return Err(UnusableFlag::new(
            flag,
            &format!("{timeout:?}"),
            format!("the kernel takes at most {}s", MAX.as_secs()),
        ));
    }
    Ok(timeout)
}

fn conntrack(flags: &Flags) -> Result<Conntrack, UnusableFlag> {
    let count = |flag, count: i32| {
        u32::try_from(count).map_err(|_| {
            UnusableFlag::new(flag, &count.to_string(), "give a number of entries, or 0")
        })
    };
    let timeout = |flag, timeout: Duration| {
        if timeout.is_zero() || timeout >= Duration::from_secs(1) {
            return Ok(timeout);
        }
        Err(UnusableFlag::new(
            flag,
            &format!("{timeout:?}"),
            "the kernel counts whole seconds: give 1s or more, or 0 to leave the kernel's",
        ))
    };
    Ok(Conntrack {
        max_per_core: count("conntrack-max-per-core", flags.conntrack_max_per_core)?,
        min: count("conntrack-min", flags.conntrack_min)?,
        tcp_established: timeout(
            "conntrack-tcp-timeout-established",
            flags.conntrack_tcp_timeout_established,
        )?,
        tcp_close_wait: timeout(
            "conntrack-tcp-timeout-close-wait",
            flags.conntrack_tcp_timeout_close_wait,
        )?,
        tcp_be_liberal: flags.conntrack_tcp_be_liberal,
        udp: timeout("conntrack-udp-timeout", flags.conntrack_udp_timeout)?,
        udp_stream: timeout(
            "conntrack-udp-timeout-stream",
            flags.conntrack_udp_timeout_stream,
        )?,
    })
}
