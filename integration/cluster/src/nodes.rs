//! Nodes of the cluster: network namespaces, each with a containerd and a kubelet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Node, World};
use serde_json::{Value, json};

use crate::binaries::Binaries;
use crate::control_plane::ControlPlane;

/// Address of the first node, on which the control plane runs.
pub(crate) const FIRST: &str = "172.35.0.100";
/// Timeout for a node's start, in which containerd also unpacks images.
const STARTS_WITHIN: Duration = Duration::from_mins(5);
const READY_WITHIN: Duration = Duration::from_mins(4);
const SCRIPT: &str = include_str!("../node.sh");

/// A node, and its running containerd and kubelet.
#[derive(Debug)]
pub(crate) struct Kubelet {
    pub(crate) node: Node,
}

/// Directories in the VM that a node's programs use.
#[derive(Debug, Clone)]
pub(crate) struct Folders {
    /// Directory for the programs' state, in memory. It also holds the upper layers of the
    /// containers' overlay file systems. The VM's root cannot hold them, because Linux accepts no
    /// overlay as an upper layer, and the root is an overlay.
    pub(crate) state: PathBuf,
    /// Directory for the programs' logs. The logs stay on the host after the VM has ended.
    pub(crate) logs: PathBuf,
}

/// Creates nodes in the lab's network, without containerd and kubelet.
pub(crate) fn lay(world: &mut World, count: u8) -> Result<Vec<Node>> {
    (1..=count)
        .map(|number| {
            let last = 99 + u32::from(number);
            let addresses = format!("172.35.0.{last}/24 fd35::{last}/64");
            let gateways = format!("10.244.{number}.1/24 fd44:{number}::1/64");
            let name = format!("node{number}");
            Ok(world.node(&name, addresses.as_str(), gateways.as_str())?)
        })
        .collect()
}

/// Starts containerd on a node, imports the images into it, and starts the kubelet.
pub(crate) fn start(
    node: &Node,
    binaries: &Binaries,
    control_plane: &ControlPlane,
    folders: &Folders,
    images: &[PathBuf],
) -> Result<Kubelet> {
    let name = node.name();
    let state = folders.state.join(name);
    let run = Path::new("/run/cluster").join(name);
    for folder in [&state.join("cni"), &run] {
        std::fs::create_dir_all(folder)?;
    }
    let write = |file: &str, text: String| {
        let file = state.join(file);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    write("containerd.toml", containerd(&state, &run))?;
    write("cni/10-lab.conflist", cni(node).to_string())?;
    write(
        "kubelet.yaml",
        kubelet(&state, &run, &folders.logs.join("pods").join(name)),
    )?;
    // CoreDNS forwards external names to this address, which no host has (RFC 5737). With a
    // loopback address, CoreDNS would query itself, detect the loop, and exit.
    write("resolv.conf", "nameserver 192.0.2.53\n".to_owned())?;
    write("kubelet.conf", control_plane.kubelet_credentials(name)?)?;
    write("node.sh", SCRIPT.to_owned())?;
    let ips: Vec<String> = node
        .addresses()
        .iter()
        .map(|net| net.addr().to_string())
        .collect();
    let mut argv: Vec<String> = ["unshare", "--uts", "sh"].map(str::to_owned).into();
    argv.extend([state.join("node.sh").display().to_string(), name.to_owned()]);
    argv.extend([&state, &run, &folders.logs].map(|path| path.display().to_string()));
    argv.push(ips.join(","));
    argv.push(binaries.folder().display().to_string());
    argv.extend(images.iter().map(|image| image.display().to_string()));
    let mut running = node.spawn(argv)?;
    running.wait_for("images are there", STARTS_WITHIN)?;
    control_plane.kubectl.programs.add(name, running);
    Ok(Kubelet { node: node.clone() })
}

/// Sets the registered nodes' pod ranges, and waits until all nodes are ready. Returns the duration
/// of this wait.
pub(crate) fn await_ready(control_plane: &ControlPlane, kubelets: &[Kubelet]) -> Result<Duration> {
    let kubectl = &control_plane.kubectl;
    let programs = &kubectl.programs;
    for kubelet in kubelets {
        let name = kubelet.node.name().to_owned();
        let is_registered = || kubectl.run(&["get", "node", &name]).map(|_| true);
        programs
            .until(
                &format!("{name} is registered"),
                READY_WITHIN,
                is_registered,
            )
            .with_context(|| format!("see {name}-kubelet.log"))?;
        let ranges: Vec<String> = kubelet
            .node
            .pod_ranges()
            .map(|net| net.to_string())
            .collect();
        let patch = json!({"spec": {"podCIDR": ranges.first(), "podCIDRs": ranges}});
        kubectl.run(&["patch", "node", &name, "-p", &patch.to_string()])?;
    }
    programs.until("all nodes are ready", READY_WITHIN, || {
        let nodes = kubectl.get(&["nodes"])?;
        let items = nodes.pointer("/items").and_then(Value::as_array);
        let items = items.map(Vec::as_slice).unwrap_or_default();
        Ok(items.len() == kubelets.len() && items.iter().all(is_ready))
    })
}

fn is_ready(object: &Value) -> bool {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    conditions.is_some_and(|all| {
        all.iter().any(|one| {
            one.get("type") == Some(&json!("Ready")) && one.get("status") == Some(&json!("True"))
        })
    })
}

/// Returns containerd's configuration. containerd creates no cgroups for containers, because the
/// lab's VM lacks some cgroup controllers.
fn containerd(state: &Path, run: &Path) -> String {
    let (state, run) = (state.display(), run.display());
    format!(
        "version = 2
root = \"{state}/containerd\"
state = \"{run}/containerd\"
[grpc]
  address = \"{run}/containerd.sock\"
[plugins.\"io.containerd.grpc.v1.cri\"]
  sandbox_image = \"docker.io/lab/pod:1\"
  disable_cgroup = true
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]
    runtime_type = \"io.containerd.runc.v2\"
  [plugins.\"io.containerd.grpc.v1.cri\".cni]
    bin_dir = \"/usr/lib/cni\"
    conf_dir = \"{state}/cni\"
"
    )
}

/// Returns a CNI configuration that attaches pods to the node's bridge. Pods get addresses from the
/// node's pod ranges.
fn cni(node: &Node) -> Value {
    let ranges: Vec<Value> = node
        .pod_ranges()
        .map(|range| json!([{"subnet": range.to_string()}]))
        .collect();
    let state = format!("/var/lib/cluster/{}/cni-leases", node.name());
    json!({
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "ranges": ranges, "dataDir": state},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// Returns the kubelet's configuration for nodes that lack some cgroup controllers and share one
/// file system.
fn kubelet(state: &Path, run: &Path, logs: &Path) -> String {
    let (state, run, logs) = (state.display(), run.display(), logs.display());
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: /etc/kubernetes/pki/ca.crt}}}}
authorization: {{mode: Webhook}}
containerRuntimeEndpoint: unix://{run}/containerd.sock
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
localStorageCapacityIsolation: false
evictionHard: {{memory.available: '1Mi', nodefs.available: '0%', imagefs.available: '0%'}}
imageGCHighThresholdPercent: 100
podLogsDir: {logs}
volumePluginDir: {state}/volume-plugins
resolvConf: {state}/resolv.conf
clusterDNS: ['10.96.0.10']
clusterDomain: cluster.local
"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;
    use std::time::Instant;

    use lab::Running;

    use super::*;
    use crate::programs::Programs;

    /// Runs `node.sh` in its own mount namespace, with shell scripts instead of containerd and the
    /// kubelet.
    #[test]
    fn a_wait_fails_with_the_last_log_lines_of_an_exited_kubelet() {
        let namespaces = ["--mount", "--uts"];
        let is_possible = Command::new("unshare")
            .args(namespaces)
            .arg("true")
            .status();
        if !is_possible.is_ok_and(|status| status.success()) {
            eprintln!("skipped: only root may make namespaces");
            return;
        }
        let folder = std::env::temp_dir().join(format!("cluster-node-{}", std::process::id()));
        let parts = ["state", "run", "logs"].map(|part| folder.join(part));
        for part in &parts {
            std::fs::create_dir_all(part).unwrap();
        }
        for (name, script) in [
            ("containerd", "exec sleep 60"),
            ("ctr", "exit 0"),
            ("kubelet", "echo 'cannot read kernel keys' >&2; exit 7"),
        ] {
            let file = folder.join(name);
            std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let own = folder.display().to_string();
        let mut command = Command::new("unshare");
        command
            .args(namespaces)
            .args(["sh", "-c", SCRIPT, "node.sh", "node7"]);
        command.args(&parts).args(["172.35.0.106", &own]);
        command.env("PATH", format!("{own}:{path}"));
        let mut node = Running::start(command).unwrap();
        node.wait_for("images are there", STARTS_WITHIN).unwrap();
        let programs = Programs::default();
        programs.add("node7", node);
        let started = Instant::now();
        let waited = programs.until("node7 is registered", READY_WITHIN, || Ok(false));
        std::fs::remove_dir_all(&folder).unwrap();
        let error = format!("{:#}", waited.unwrap_err());
        assert!(started.elapsed() < Duration::from_secs(30));
        for part in [
            "node7 is registered: node7 has ended",
            "kubelet of node7 has ended with status 7; the end of node7-kubelet.log:",
            "cannot read kernel keys",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
