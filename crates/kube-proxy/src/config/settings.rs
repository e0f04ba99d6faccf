//! Table of the settings that have both a field in the configuration file and a flag.

use flags::unusable_flag::UnusableFlag;
use flags::{Flags, go, nets};
use modes::settings::ProxyMode;
use modes::shared::PRIMARY;
use proxy::NodePortAddresses;
use serde_json::Value;

use super::spelling::Spelling;
use super::{API_VERSION, Configuration, KIND};

/// A field of the configuration that has a flag.
#[derive(Debug)]
pub(super) struct SettingRow {
    /// Path of the field in the file, such as `ipvs.scheduler`.
    pub(super) path: &'static str,
    /// Name of the flag without dashes, such as `ipvs-scheduler`.
    pub(super) flag: &'static str,
    /// Time at which a changed value takes effect.
    pub(super) change: Change,
}

/// Time at which a changed setting takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Immediate effect: the running process applies the change.
    Live,
    /// Effect after a restart: the process uses the setting only at its start, when it opens the
    /// files and sockets that depend on the setting.
    Restart,
}

/// Generates the code that converts between fields and flags. A row has five parts: the field's
/// path, the path in Rust, the flag's name, the flag's Rust field, and the time at which a change
/// takes effect.
macro_rules! rows {
    ($($path:literal [$($field:tt)+] $name:literal [$flag:ident] $change:ident;)+) => {
        /// Rows of all fields that have a flag.
        pub(super) const ROWS: &[SettingRow] = &[$(SettingRow { path: $path, flag: $name, change: Change::$change }),+];

        impl Configuration {
            /// Sets each field that has a flag to the flag's value.
            fn take(&mut self, flags: &Flags) {
                $(self.$($field)+ = Some(Spelling::to_field(&flags.$flag));)+
            }

            /// Sets the flags from the fields. Keeps each flag for which `keeps` returns true, and
            /// each flag whose field has no value.
            fn give(self, flags: &mut Flags, keeps: impl Fn(&str) -> bool) -> Result<(), UnusableFlag> {
                $(if let Some(field) = self.$($field)+.filter(|_| !keeps($name)) {
                    flags.$flag = Spelling::from_field(field)
                        .map_err(|(value, advice)| UnusableFlag::new($name, &value, advice))?;
                })+
                Ok(())
            }
        }
    };
}

rows! {
    "bindAddress" [bind_address] "bind-address" [bind_address] Restart;
    "bindAddressHardFail" [bind_address_hard_fail] "bind-address-hard-fail" [bind_address_hard_fail] Restart;
    "clientConnection.burst" [client_connection.burst] "kube-api-burst" [kube_api_burst] Live;
    "clientConnection.contentType" [client_connection.content_type] "kube-api-content-type" [kube_api_content_type] Restart;
    "clientConnection.kubeconfig" [client_connection.kubeconfig] "kubeconfig" [kubeconfig] Restart;
    "clientConnection.qps" [client_connection.qps] "kube-api-qps" [kube_api_qps] Live;
    "clusterCIDR" [cluster_cidr] "cluster-cidr" [cluster_cidr] Live;
    "configSyncPeriod" [config_sync_period] "config-sync-period" [config_sync_period] Live;
    "conntrack.maxPerCore" [conntrack.max_per_core] "conntrack-max-per-core" [conntrack_max_per_core] Live;
    "conntrack.min" [conntrack.min] "conntrack-min" [conntrack_min] Live;
    "conntrack.tcpBeLiberal" [conntrack.tcp_be_liberal] "conntrack-tcp-be-liberal" [conntrack_tcp_be_liberal] Live;
    "conntrack.tcpCloseWaitTimeout" [conntrack.tcp_close_wait_timeout] "conntrack-tcp-timeout-close-wait" [conntrack_tcp_timeout_close_wait] Live;
    "conntrack.tcpEstablishedTimeout" [conntrack.tcp_established_timeout] "conntrack-tcp-timeout-established" [conntrack_tcp_timeout_established] Live;
    "conntrack.udpStreamTimeout" [conntrack.udp_stream_timeout] "conntrack-udp-timeout-stream" [conntrack_udp_timeout_stream] Live;
    "conntrack.udpTimeout" [conntrack.udp_timeout] "conntrack-udp-timeout" [conntrack_udp_timeout] Live;
    "detectLocal.bridgeInterface" [detect_local.bridge_interface] "pod-bridge-interface" [pod_bridge_interface] Live;
    "detectLocal.interfaceNamePrefix" [detect_local.interface_name_prefix] "pod-interface-name-prefix" [pod_interface_name_prefix] Live;
    "detectLocalMode" [detect_local_mode] "detect-local-mode" [detect_local_mode] Live;
    "enableProfiling" [enable_profiling] "profiling" [profiling] Live;
    "featureGates" [feature_gates] "feature-gates" [feature_gates] Restart;
    "healthzBindAddress" [healthz_bind_address] "healthz-bind-address" [healthz_bind_address] Restart;
    "hostnameOverride" [hostname_override] "hostname-override" [hostname_override] Restart;
    "iptables.localhostNodePorts" [iptables.localhost_node_ports] "iptables-localhost-nodeports" [iptables_localhost_nodeports] Live;
    "iptables.masqueradeAll" [iptables.masquerade_all] "masquerade-all" [masquerade_all] Live;
    "iptables.masqueradeBit" [iptables.masquerade_bit] "iptables-masquerade-bit" [iptables_masquerade_bit] Live;
    "iptables.minSyncPeriod" [iptables.min_sync_period] "iptables-min-sync-period" [iptables_min_sync_period] Live;
    "iptables.syncPeriod" [iptables.sync_period] "iptables-sync-period" [iptables_sync_period] Live;
    "ipvs.excludeCIDRs" [ipvs.exclude_cidrs] "ipvs-exclude-cidrs" [ipvs_exclude_cidrs] Live;
    "ipvs.minSyncPeriod" [ipvs.min_sync_period] "ipvs-min-sync-period" [ipvs_min_sync_period] Live;
    "ipvs.scheduler" [ipvs.scheduler] "ipvs-scheduler" [ipvs_scheduler] Live;
    "ipvs.strictARP" [ipvs.strict_arp] "ipvs-strict-arp" [ipvs_strict_arp] Live;
    "ipvs.syncPeriod" [ipvs.sync_period] "ipvs-sync-period" [ipvs_sync_period] Live;
    "ipvs.tcpFinTimeout" [ipvs.tcp_fin_timeout] "ipvs-tcpfin-timeout" [ipvs_tcpfin_timeout] Live;
    "ipvs.tcpTimeout" [ipvs.tcp_timeout] "ipvs-tcp-timeout" [ipvs_tcp_timeout] Live;
    "ipvs.udpTimeout" [ipvs.udp_timeout] "ipvs-udp-timeout" [ipvs_udp_timeout] Live;
    "logging.flushFrequency" [logging.flush_frequency] "log-flush-frequency" [log_flush_frequency] Live;
    "logging.format" [logging.format] "logging-format" [logging_format] Restart;
    "logging.options.json.infoBufferSize" [logging.options.json.info_buffer_size] "log-json-info-buffer-size" [log_json_info_buffer_size] Live;
    "logging.options.json.splitStream" [logging.options.json.split_stream] "log-json-split-stream" [log_json_split_stream] Restart;
    "logging.options.text.infoBufferSize" [logging.options.text.info_buffer_size] "log-text-info-buffer-size" [log_text_info_buffer_size] Live;
    "logging.options.text.splitStream" [logging.options.text.split_stream] "log-text-split-stream" [log_text_split_stream] Restart;
    "logging.verbosity" [logging.verbosity] "v" [verbosity] Live;
    "logging.vmodule" [logging.vmodule] "vmodule" [vmodule] Live;
    "metricsBindAddress" [metrics_bind_address] "metrics-bind-address" [metrics_bind_address] Restart;
    "mode" [mode] "proxy-mode" [proxy_mode] Restart;
    "nftables.masqueradeAll" [nftables.masquerade_all] "nftables-masquerade-all" [nftables_masquerade_all] Live;
    "nftables.masqueradeBit" [nftables.masquerade_bit] "nftables-masquerade-bit" [nftables_masquerade_bit] Live;
    "nftables.minSyncPeriod" [nftables.min_sync_period] "nftables-min-sync-period" [nftables_min_sync_period] Live;
    "nftables.syncPeriod" [nftables.sync_period] "nftables-sync-period" [nftables_sync_period] Live;
    "nodePortAddresses" [node_port_addresses] "nodeport-addresses" [nodeport_addresses] Live;
    "oomScoreAdj" [oom_score_adj] "oom-score-adj" [oom_score_adj] Live;
    "showHiddenMetricsForVersion" [show_hidden_metrics_for_version] "show-hidden-metrics-for-version" [show_hidden_metrics_for_version] Live;
}

/// Returns the path of each field that has a flag, with the flag's name.
pub(crate) fn fields_with_flags() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROWS.iter().map(|row| (row.path, row.flag))
}

/// Returns the path of the field for `flag`, or `None` if the flag has no field.
pub(crate) fn field_of(flag: &str) -> Option<&'static str> {
    ROWS.iter().find(|row| row.flag == flag).map(|row| row.path)
}

/// Replaces names of flags in `text` with the paths of their fields.
pub(super) fn in_terms_of_fields(text: &str) -> String {
    // Replaces the longest names first, because one name may be the beginning of another.
    let mut rows: Vec<_> = ROWS.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.flag.len()));
    rows.into_iter().fold(text.to_owned(), |text, row| {
        text.replace(&format!("--{}", row.flag), row.path)
    })
}

/// Reports whether a flag on the command line overrides the file. As in upstream, only log flags
/// and `--hostname-override` do so.
pub(crate) fn wins_over_file(flag: &str) -> bool {
    matches!(flag, "hostname-override" | "v" | "vmodule") || flag.starts_with("log")
}

impl Configuration {
    /// Returns the configuration file that corresponds to the flags. Fields without a flag have
    /// their default values.
    pub fn of(flags: &Flags) -> Self {
        Self::default().completed(flags)
    }

    /// Completes a configuration. A field with a flag gets the flag's value from `flags`. A missing
    /// field without a flag gets its default.
    pub(crate) fn completed(mut self, flags: &Flags) -> Self {
        self.take(flags);
        self.api_version = Some(API_VERSION.to_owned());
        self.kind = Some(KIND.to_owned());
        for (chosen, default) in [
            (&mut self.mode, ProxyMode::default().name()),
            (&mut self.detect_local_mode, "ClusterCIDR"),
        ] {
            chosen.take_if(|chosen| chosen.is_empty());
            chosen.get_or_insert_with(|| default.to_owned());
        }
        for (address, port) in [
            (&mut self.healthz_bind_address, flags.healthz_port),
            (&mut self.metrics_bind_address, flags.metrics_port),
        ] {
            // Ignores an invalid address, which another check rejects.
            if let Some(Ok(at)) = address.as_deref().map(|text| go::listen(text, port)) {
                *address = Some(at.map(|at| at.to_string()).unwrap_or_default());
            }
        }
        for lists in [&mut self.ipvs.exclude_cidrs, &mut self.node_port_addresses] {
            // Splits each item, because a list flag may occur several times on the command line.
            let items = nets::items(lists.as_deref().unwrap_or_default());
            let items: Vec<_> = items.filter(|item| !item.is_empty()).collect();
            *lists = (!items.is_empty()).then(|| items.into_iter().map(str::to_owned).collect());
        }
        let mut modes = ProxyMode::ALL.into_iter();
        let chosen = modes.find(|mode| self.mode.as_deref() == Some(mode.name()));
        if let Some(mode) = chosen
            && mode.definition().node_port_addresses() == NodePortAddresses::Primary
        {
            let addresses = &mut self.node_port_addresses;
            addresses.get_or_insert_with(|| vec![PRIMARY.to_owned()]);
        }
        for text in [
            &mut self.client_connection.accept_content_types,
            &mut self.port_range,
            &mut self.winkernel.network_name,
            &mut self.winkernel.root_hns_endpoint_name,
            &mut self.winkernel.source_vip,
        ] {
            text.get_or_insert_default();
        }
        for switch in [
            &mut self.windows_run_as_service,
            &mut self.winkernel.enable_dsr,
            &mut self.winkernel.forward_health_check_vip,
        ] {
            switch.get_or_insert_default();
        }
        self
    }

    /// Sets the flags to the values of a file's fields. A field that the file omits has the default
    /// of the file format. Keeps flags on the command line (`is_given`) that override the file.
    pub(crate) fn put(
        mut self,
        flags: &mut Flags,
        is_given: impl Fn(&str) -> bool,
    ) -> Result<(), UnusableFlag> {
        self.check_lists()?;
        self.unset_zeros();
        let is_v6 = self
            .bind_address
            .as_deref()
            .and_then(|text| go::ip(text).ok())
            .is_some_and(|ip| ip.is_ipv6());
        if is_v6 {
            self.healthz_bind_address
                .get_or_insert("[::]:10256".to_owned());
            self.metrics_bind_address
                .get_or_insert("[::1]:10249".to_owned());
        }
        // In upstream's file, the minimum sync period of IPVS mode has no default, so it is 0.
        self.ipvs.min_sync_period.get_or_insert_default();
        let mut file = Flags::defaults();
        self.give(&mut file, |_| false)?;
        let mut whole = Self::default();
        whole.take(&file);
        whole.give(flags, |flag| wins_over_file(flag) && is_given(flag))
    }

    /// Rejects empty items of lists, as upstream does. On the command line, an empty value is an
    /// empty list.
    fn check_lists(&self) -> Result<(), UnusableFlag> {
        let is_ipvs = self.mode.as_deref() == Some(ProxyMode::Ipvs.name());
        let excluded = self.ipvs.exclude_cidrs.as_ref().filter(|_| is_ipvs);
        for (flag, list) in [
            ("nodeport-addresses", self.node_port_addresses.as_ref()),
            ("ipvs-exclude-cidrs", excluded),
        ] {
            if list.is_some_and(|list| list.iter().any(String::is_empty)) {
                let advice = "a network cannot be empty: give networks such as 10.0.0.0/8, or []";
                return Err(UnusableFlag::new(flag, "", advice));
            }
        }
        Ok(())
    }

    /// Removes empty and zero values, because upstream treats them as unset.
    fn unset_zeros(&mut self) {
        for text in [
            &mut self.bind_address,
            &mut self.client_connection.content_type,
            &mut self.cluster_cidr,
            &mut self.detect_local_mode,
            &mut self.healthz_bind_address,
            &mut self.logging.format,
            &mut self.metrics_bind_address,
        ] {
            text.take_if(|text| text.is_empty());
        }
        for period in [
            &mut self.config_sync_period,
            &mut self.iptables.min_sync_period,
            &mut self.iptables.sync_period,
            &mut self.ipvs.sync_period,
            &mut self.nftables.min_sync_period,
            &mut self.nftables.sync_period,
            &mut self.logging.flush_frequency,
        ] {
            period.take_if(|period| period.0.is_zero());
        }
        self.client_connection.burst.take_if(|burst| *burst == 0);
        self.client_connection.qps.take_if(|qps| *qps == 0.0);
    }

    /// Returns the configuration as JSON, with every field.
    pub(super) fn tree(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Reports whether `field` is equal to `path` or lies in the section `path`.
pub(super) fn is_within(field: &str, path: &str) -> bool {
    field
        .strip_prefix(path)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the default configuration with all its fields, as JSON.
pub(super) fn every_field() -> Value {
    Configuration::of(&Flags::defaults()).tree()
}

pub(super) fn at<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |tree, name| tree.get(name))
}
