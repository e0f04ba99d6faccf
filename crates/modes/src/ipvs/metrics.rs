//! Metrics that only IPVS mode has.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipvs_netlink::Tables;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use proxy::{IpFamily, Report};

use crate::metrics::restores::FailedRestores;
use crate::metrics::rows::Rows;
use crate::metrics::{ModeLabels, SyncExtent};

/// Metrics of IPVS mode.
#[derive(Debug)]
pub(super) struct IpvsMetrics {
    restores: FailedRestores,
    /// Directory with `proc` in it: `/`, or a test's directory.
    root: PathBuf,
}

impl IpvsMetrics {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            restores: FailedRestores::default(),
            root: root.to_owned(),
        }
    }
}

impl ModeLabels for IpvsMetrics {
    fn register(&self, rows: &mut Rows) {
        self.restores.register(rows);
        rows.collect(TableGauges {
            root: self.root.clone(),
        });
    }

    fn begins(&self, family: IpFamily) {
        self.restores.begins(family);
    }

    fn booked(&self, family: IpFamily, report: &Report) {
        self.restores.booked(family, report);
    }

    fn extent(&self, report: &Report) -> Option<SyncExtent> {
        self.restores.extent(report)
    }

    fn synced(&self, family: IpFamily, took: Duration, extent: SyncExtent) {
        self.restores.synced(family, took, extent);
    }
}

/// Gauges of the sizes of the IPVS tables, read from the kernel at each scrape. A gauge is absent
/// if the kernel does not report its value.
#[derive(Debug)]
struct TableGauges {
    root: PathBuf,
}

/// A gauge: its name, its help, and the function that takes its value from the IPVS tables.
type Row = (&'static str, &'static str, fn(&Tables) -> Option<u64>);

const ROWS: &[Row] = &[
    (
        "kubeproxy_ipvs_connections",
        "Connections in the IPVS table of this network namespace.",
        |tables| tables.status.connections,
    ),
    (
        "kubeproxy_ipvs_connections_max",
        "Connections at which IPVS drops new ones (sysctl net.ipv4.vs.conn_max).",
        |tables| tables.connections_max,
    ),
    (
        "kubeproxy_ipvs_connection_buckets",
        "Buckets of the IPVS connection table of this network namespace.",
        |tables| tables.status.connection_table.buckets,
    ),
    (
        "kubeproxy_ipvs_connection_chain_length_max",
        "Entries in the longest chain of the IPVS connection table, as far as the kernel counts.",
        |tables| Some(tables.status.connection_table.longest()?.into()),
    ),
    (
        "kubeproxy_ipvs_virtual_servers",
        "Virtual servers in the IPVS table of this network namespace, of both IP families.",
        |tables| tables.status.services,
    ),
    (
        "kubeproxy_ipvs_virtual_server_buckets",
        "Buckets of the table of IPVS virtual servers of this network namespace.",
        |tables| tables.status.service_table.buckets,
    ),
];

impl Collector for TableGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(Some(tables)) = Tables::read(&self.root) else {
            return Ok(());
        };
        for (name, help, value) in ROWS {
            let Some(value) = value(&tables) else {
                continue;
            };
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    fn scraped(root: &Path) -> String {
        let (mut rows, mut page) = (Rows::default(), String::new());
        IpvsMetrics::new(root).register(&mut rows);
        rows.add(
            "ALPHA",
            "kubeproxy_another",
            "Another metric",
            Gauge::<i64>::default(),
        );
        encode(&mut page, &rows.registry).unwrap();
        page
    }

    /// The texts of this test are copies of /proc files of Linux 7.2.7.
    #[test]
    fn ipvs_table_sizes_are_gauges_if_the_kernel_exposes_them() {
        let root = std::env::temp_dir().join(format!("ipvs-tables-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(!scraped(&root).contains("kubeproxy_ipvs_connections"));
        let text = include_str!("../../../../fuzz/corpus/proc_files/ip_vs_status");
        write("proc/thread-self/net/ip_vs_status", text);
        let page = scraped(&root);
        assert!(!page.contains("kubeproxy_ipvs_connections_max"), "{page}");
        write("proc/sys/net/ipv4/vs/conn_max", "1073741824\n");
        let page = scraped(&root);
        for line in [
            "# TYPE kubeproxy_ipvs_connections gauge",
            "kubeproxy_ipvs_connections 300",
            "kubeproxy_ipvs_connections_max 1073741824",
            "kubeproxy_ipvs_connection_buckets 4096",
            "kubeproxy_ipvs_connection_chain_length_max 3",
            "kubeproxy_ipvs_virtual_servers 1",
            "kubeproxy_ipvs_virtual_server_buckets 16",
        ] {
            assert!(page.lines().any(|told| told == line), "{line}: {page}");
        }
        // A file that cannot be parsed removes only the metrics of IPVS tables from the page.
        write("proc/thread-self/net/ip_vs_status", "Conns:\tmany\n");
        let page = scraped(&root);
        assert!(!page.contains("kubeproxy_ipvs_connections"), "{page}");
        assert!(page.contains("kubeproxy_another 0"), "{page}");
        let error = Tables::read(&root).unwrap_err();
        assert!(error.contains("Conns:\\tmany"), "{error}");
        fs::remove_dir_all(&root).unwrap();
    }
}
