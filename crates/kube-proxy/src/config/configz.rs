//! The configuration in effect as `/configz` tells it: as upstream's source spells it, and not as the file does.
//!
//! Upstream 1.36 serves its internal type (pkg/proxy/apis/config/types.go), which has no JSON names, so that Go's field names
//! are seen, in the order of that file; only `Logging` and the periods are spelled as in the file (k/k#137426).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Number;

use super::{Configuration, FileVerbosity, LoggingBuffer, Period, as_go};

/// The page's body, for those who serve it; replaced when the configuration is.
#[derive(Debug, Clone, Default)]
pub struct Configz(Arc<Mutex<String>>);

impl Configz {
    /// A page that tells `configuration`.
    pub fn new(configuration: &Configuration) -> Self {
        let page = Self::default();
        page.set(configuration);
        page
    }

    /// Tells another one from now on.
    pub fn set(&self, configuration: &Configuration) {
        let body = Page {
            configuration: Internal::from(configuration),
        };
        let body = serde_json::to_string(&body).unwrap_or_default();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = body;
    }

    /// JSON.
    pub fn body(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[derive(Serialize)]
struct Page {
    #[serde(rename = "kubeproxy.config.k8s.io")]
    configuration: Internal,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Internal {
    linux: Linux,
    windows: Windows,
    feature_gates: BTreeMap<String, bool>,
    client_connection: ClientConnection,
    logging: Logging,
    hostname_override: String,
    bind_address: String,
    healthz_bind_address: String,
    metrics_bind_address: String,
    bind_address_hard_fail: bool,
    enable_profiling: bool,
    show_hidden_metrics_for_version: String,
    mode: String,
    #[serde(rename = "IPTables")]
    iptables: Iptables,
    #[serde(rename = "IPVS")]
    ipvs: Ipvs,
    winkernel: Winkernel,
    #[serde(rename = "NFTables")]
    nftables: Nftables,
    detect_local_mode: String,
    detect_local: DetectLocal,
    node_port_addresses: Option<Vec<String>>,
    sync_period: Period,
    min_sync_period: Period,
    config_sync_period: Period,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Linux {
    conntrack: Conntrack,
    masquerade_all: bool,
    #[serde(rename = "OOMScoreAdj")]
    oom_score_adj: i32,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Conntrack {
    max_per_core: i32,
    min: i32,
    #[serde(rename = "TCPEstablishedTimeout")]
    tcp_established_timeout: Period,
    #[serde(rename = "TCPCloseWaitTimeout")]
    tcp_close_wait_timeout: Period,
    #[serde(rename = "TCPBeLiberal")]
    tcp_be_liberal: bool,
    #[serde(rename = "UDPTimeout")]
    udp_timeout: Period,
    #[serde(rename = "UDPStreamTimeout")]
    udp_stream_timeout: Period,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Windows {
    run_as_service: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ClientConnection {
    kubeconfig: String,
    accept_content_types: String,
    content_type: String,
    #[serde(rename = "QPS")]
    qps: Option<Number>,
    burst: i32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Logging {
    format: String,
    flush_frequency: Period,
    verbosity: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vmodule: Vec<FileVerbosity>,
    options: LoggingOptions,
}

#[derive(Serialize)]
struct LoggingOptions {
    text: OutputRouting,
    json: OutputRouting,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OutputRouting {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    split_stream: bool,
    info_buffer_size: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Iptables {
    masquerade_bit: i32,
    localhost_node_ports: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Ipvs {
    scheduler: String,
    #[serde(rename = "ExcludeCIDRs")]
    exclude_cidrs: Option<Vec<String>>,
    #[serde(rename = "StrictARP")]
    strict_arp: bool,
    #[serde(rename = "TCPTimeout")]
    tcp_timeout: Period,
    #[serde(rename = "TCPFinTimeout")]
    tcp_fin_timeout: Period,
    #[serde(rename = "UDPTimeout")]
    udp_timeout: Period,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Winkernel {
    network_name: String,
    source_vip: String,
    #[serde(rename = "EnableDSR")]
    enable_dsr: bool,
    root_hns_endpoint_name: String,
    forward_health_check_vip: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Nftables {
    masquerade_bit: i32,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct DetectLocal {
    bridge_interface: String,
    #[serde(rename = "ClusterCIDRs")]
    cluster_cidrs: Option<Vec<String>>,
    interface_name_prefix: String,
}

impl From<&Configuration> for Internal {
    /// A configuration in effect has every field; what is missing in another is Go's zero.
    fn from(from: &Configuration) -> Self {
        let from = from.clone();
        let cluster_cidr = from.cluster_cidr.unwrap_or_default();
        let qps = f64::from(from.client_connection.qps.unwrap_or_default());
        Self {
            linux: Linux {
                conntrack: Conntrack {
                    max_per_core: from.conntrack.max_per_core.unwrap_or_default(),
                    min: from.conntrack.min.unwrap_or_default(),
                    tcp_established_timeout: from
                        .conntrack
                        .tcp_established_timeout
                        .unwrap_or_default(),
                    tcp_close_wait_timeout: from
                        .conntrack
                        .tcp_close_wait_timeout
                        .unwrap_or_default(),
                    tcp_be_liberal: from.conntrack.tcp_be_liberal.unwrap_or_default(),
                    udp_timeout: from.conntrack.udp_timeout.unwrap_or_default(),
                    udp_stream_timeout: from.conntrack.udp_stream_timeout.unwrap_or_default(),
                },
                masquerade_all: from.iptables.masquerade_all.unwrap_or_default(),
                oom_score_adj: from.oom_score_adj.unwrap_or_default(),
            },
            windows: Windows {
                run_as_service: from.windows_run_as_service.unwrap_or_default(),
            },
            feature_gates: from.feature_gates.unwrap_or_default(),
            client_connection: ClientConnection {
                kubeconfig: from.client_connection.kubeconfig.unwrap_or_default(),
                accept_content_types: from
                    .client_connection
                    .accept_content_types
                    .unwrap_or_default(),
                content_type: from.client_connection.content_type.unwrap_or_default(),
                qps: as_go(qps.into()).as_number().cloned(),
                burst: from.client_connection.burst.unwrap_or_default(),
            },
            logging: Logging {
                format: from.logging.format.unwrap_or_default(),
                flush_frequency: from.logging.flush_frequency.unwrap_or_default(),
                verbosity: from.logging.verbosity.unwrap_or_default(),
                vmodule: from.logging.vmodule.unwrap_or_default(),
                options: LoggingOptions {
                    text: from.logging.options.text.into(),
                    json: from.logging.options.json.into(),
                },
            },
            hostname_override: from.hostname_override.unwrap_or_default(),
            bind_address: from.bind_address.unwrap_or_default(),
            healthz_bind_address: from.healthz_bind_address.unwrap_or_default(),
            metrics_bind_address: from.metrics_bind_address.unwrap_or_default(),
            bind_address_hard_fail: from.bind_address_hard_fail.unwrap_or_default(),
            enable_profiling: from.enable_profiling.unwrap_or_default(),
            show_hidden_metrics_for_version: from
                .show_hidden_metrics_for_version
                .unwrap_or_default(),
            mode: from.mode.unwrap_or_default(),
            iptables: Iptables {
                masquerade_bit: from.iptables.masquerade_bit.unwrap_or_default(),
                localhost_node_ports: from.iptables.localhost_node_ports.unwrap_or_default(),
            },
            sync_period: from.ipvs.sync_period.unwrap_or_default(),
            min_sync_period: from.ipvs.min_sync_period.unwrap_or_default(),
            ipvs: Ipvs {
                scheduler: from.ipvs.scheduler.unwrap_or_default(),
                exclude_cidrs: from.ipvs.exclude_cidrs,
                strict_arp: from.ipvs.strict_arp.unwrap_or_default(),
                tcp_timeout: from.ipvs.tcp_timeout.unwrap_or_default(),
                tcp_fin_timeout: from.ipvs.tcp_fin_timeout.unwrap_or_default(),
                udp_timeout: from.ipvs.udp_timeout.unwrap_or_default(),
            },
            winkernel: Winkernel {
                network_name: from.winkernel.network_name.unwrap_or_default(),
                source_vip: from.winkernel.source_vip.unwrap_or_default(),
                enable_dsr: from.winkernel.enable_dsr.unwrap_or_default(),
                root_hns_endpoint_name: from.winkernel.root_hns_endpoint_name.unwrap_or_default(),
                forward_health_check_vip: from
                    .winkernel
                    .forward_health_check_vip
                    .unwrap_or_default(),
            },
            nftables: Nftables {
                masquerade_bit: from.nftables.masquerade_bit.unwrap_or_default(),
            },
            detect_local_mode: from.detect_local_mode.unwrap_or_default(),
            detect_local: DetectLocal {
                bridge_interface: from.detect_local.bridge_interface.unwrap_or_default(),
                cluster_cidrs: (!cluster_cidr.is_empty())
                    .then(|| cluster_cidr.split(',').map(str::to_owned).collect()),
                interface_name_prefix: from.detect_local.interface_name_prefix.unwrap_or_default(),
            },
            node_port_addresses: from.node_port_addresses,
            config_sync_period: from.config_sync_period.unwrap_or_default(),
        }
    }
}

impl From<LoggingBuffer> for OutputRouting {
    fn from(from: LoggingBuffer) -> Self {
        Self {
            split_stream: from.split_stream.unwrap_or_default(),
            info_buffer_size: from.info_buffer_size.unwrap_or_default(),
        }
    }
}
