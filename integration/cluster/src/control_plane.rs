//! The control plane: etcd, and the programs that kubeadm would run as static pods. The programs
//! run as processes on the first node, with the flags that kubeadm writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::Place;
use serde_json::Value;

use crate::binaries::Binaries;
use crate::nodes::FIRST;
use crate::run::Kubectl;

/// Timeout for the API server's first response. It is long, because a VM loads the programs slowly.
const SERVES_WITHIN: Duration = Duration::from_mins(3);
const ETCD: &str = "http://127.0.0.1:2379";
const STATIC_PODS: &str = "/etc/kubernetes/manifests";
/// Name that kubeadm gives to the group of administrators and to its ClusterRoleBinding.
const ADMINS: &str = "kubeadm:cluster-admins";

/// A running control plane, with runners of `kubectl` and `kubeadm`.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    pub(crate) kubectl: Kubectl,
    kubeadm: Kubeadm,
}

/// Runner of `kubeadm` on the first node, with the cluster's configuration file.
#[derive(Debug)]
struct Kubeadm {
    place: Place,
    program: String,
    config: PathBuf,
}

impl Kubeadm {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let config = self.config.display().to_string();
        let argv = [&[self.program.as_str()], arguments, &["--config", &config]].concat();
        self.place
            .read(argv)
            .with_context(|| format!("kubeadm {}", arguments.join(" ")))
    }

    /// Runs one phase of `kubeadm init`, such as `certs all`. Returns its output.
    fn phase(&self, phase: &[&str]) -> Result<String> {
        self.run(&[&["init", "phase"], phase].concat())
    }
}

impl ControlPlane {
    /// Starts the control plane on the first node, and waits until the API server responds. `mode`
    /// is the proxy mode.
    pub(crate) fn start(
        place: &Place,
        binaries: &Binaries,
        state: &Path,
        logs: &Path,
        mode: &str,
    ) -> Result<Self> {
        let program = binaries.program("kubeadm").display().to_string();
        let version = place.read([program.as_str(), "version", "-o", "short"])?;
        let config = state.join("kubeadm.yaml");
        std::fs::write(&config, configuration(version.trim(), mode))?;
        let kubeadm = Kubeadm {
            place: place.clone(),
            program,
            config,
        };
        // Removes the files of a previous run, which kubeadm would reuse.
        let _ = std::fs::remove_dir_all("/etc/kubernetes");
        for phase in [
            ["certs", "all"],
            ["kubeconfig", "all"],
            ["control-plane", "all"],
        ] {
            kubeadm.phase(&phase)?;
        }
        let etcd = [
            binaries.program("etcd").display().to_string(),
            format!("--data-dir={}", state.join("etcd").display()),
            format!("--listen-client-urls={ETCD}"),
            format!("--advertise-client-urls={ETCD}"),
            // Skips fsync, because etcd's data disappears with the VM anyway.
            "--unsafe-no-fsync".to_owned(),
        ];
        let kubectl = Kubectl::new(place, binaries);
        let programs = &kubectl.programs;
        programs.start(place, "etcd", &logs.join("etcd.log"), &etcd)?;
        let run = |name: &str| -> Result<()> {
            let argv = command(binaries, name)?;
            programs.start(place, name, &logs.join(format!("{name}.log")), &argv)
        };
        run("kube-apiserver")?;
        let is_ready = || Ok(kubectl.run(&["get", "--raw", "/readyz"])?.trim() == "ok");
        programs
            .until("the API server is ready", SERVES_WITHIN, is_ready)
            .with_context(|| format!("see {}", logs.join("kube-apiserver.log").display()))?;
        // Both programs exit after ten seconds without the API server or without their roles, and
        // this cluster has no supervisor that would restart them.
        run("kube-controller-manager")?;
        run("kube-scheduler")?;
        // Binds the roles that `kubeadm init` binds between its phases. `kubectl exec` needs the
        // API server's right to connect to kubelets. The API server's client certificate names a
        // group or, in Kubernetes 1.36, only a user.
        for (name, role, who) in [
            (ADMINS, "cluster-admin", format!("--group={ADMINS}")),
            (
                "kubeadm:apiserver-kubelet-client",
                "system:kubelet-api-admin",
                "--user=kube-apiserver-kubelet-client".to_owned(),
            ),
        ] {
            let role = format!("--clusterrole={role}");
            kubectl.run(&["create", "clusterrolebinding", name, &role, &who])?;
        }
        Ok(Self { kubectl, kubeadm })
    }

    /// Returns a kubeconfig with the credentials of a kubelet.
    pub(crate) fn kubelet_credentials(&self, node: &str) -> Result<String> {
        let client = format!("--client-name=system:node:{node}");
        self.kubeadm
            .run(&["kubeconfig", "user", &client, "--org=system:nodes"])
    }

    /// Creates kubeadm's DaemonSet of kube-proxy, with its ConfigMap, ServiceAccount and role
    /// bindings.
    pub(crate) fn add_kube_proxy(&self) -> Result<()> {
        self.kubeadm.phase(&["addon", "kube-proxy"])?;
        Ok(())
    }

    /// Creates kubeadm's CoreDNS Deployment and Service.
    pub(crate) fn add_dns(&self) -> Result<()> {
        self.kubeadm.phase(&["addon", "coredns"])?;
        Ok(())
    }
}

/// Returns kubeadm's configuration for a dual-stack cluster. The controller manager allocates no
/// pod ranges to nodes, because each node already has its pod ranges.
fn configuration(version: &str, mode: &str) -> String {
    let host = FIRST;
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: {host}, bindPort: 6443}}
nodeRegistration: {{name: node1}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {version}
controlPlaneEndpoint: '{host}:6443'
networking: {{serviceSubnet: '10.96.0.0/16,fd96::/112', podSubnet: '10.244.0.0/16,fd44::/48', dnsDomain: cluster.local}}
etcd: {{external: {{endpoints: ['{ETCD}']}}}}
controllerManager: {{extraArgs: [{{name: allocate-node-cidrs, value: 'false'}}, {{name: leader-elect, value: 'false'}}]}}
# There is one of each: on a busy machine it would lose its lease to nobody, and end.
scheduler: {{extraArgs: [{{name: leader-elect, value: 'false'}}]}}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
# Only the initial network namespace may size the connection tracking table.
conntrack: {{maxPerCore: 0}}
"
    )
}

/// Returns the command line of kubeadm's static pod `name`, with the program from the user's
/// directory.
fn command(binaries: &Binaries, name: &str) -> Result<Vec<String>> {
    let file = Path::new(STATIC_PODS).join(format!("{name}.yaml"));
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("kubeadm has not written {}", file.display()))?;
    let pod: Value = serde_saphyr::from_str(&text)?;
    let words = pod
        .pointer("/spec/containers/0/command")
        .and_then(Value::as_array)
        .with_context(|| format!("{} has no command", file.display()))?;
    let program = binaries.program(name).display().to_string();
    let flags = words.iter().skip(1).filter_map(Value::as_str);
    Ok(std::iter::once(program)
        .chain(flags.map(str::to_owned))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeadm_configuration_has_three_documents() {
        let text = configuration("v1.36.2", "nftables");
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let kinds: Vec<_> = documents
            .iter()
            .map(|one| one["kind"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds,
            [
                "InitConfiguration",
                "ClusterConfiguration",
                "KubeProxyConfiguration"
            ]
        );
        assert_eq!(documents[2]["mode"], "nftables");
        assert_eq!(documents[1]["kubernetesVersion"], "v1.36.2");
    }
}
