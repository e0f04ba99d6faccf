//! kubeadm's DaemonSet of kube-proxy with our image, and a Service to test it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::Place;
use serde_json::Value;

use crate::load::ask_once;
use crate::run::Kubectl;

/// Path of our patch for kubeadm's DaemonSet, which users apply with `kubectl patch`.
const PATCH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../manifests/kubeadm-patch/kubeproxydaemonset.yaml"
);
const ROLLED_WITHIN: Duration = Duration::from_mins(8);
const SERVED_WITHIN: Duration = Duration::from_mins(3);
/// Addresses of `web` for clients outside the cluster: a node port of the first node, in both
/// families.
pub(crate) const NODE_PORT: [&str; 2] = ["172.35.0.100:30080", "[fd35::100]:30080"];
/// Addresses of `web` for clients in the cluster, in both families.
pub(crate) const CLUSTER_IP: [&str; 2] = ["10.96.0.80:80", "[fd96::80]:80"];

/// Manifest of three pods and the dual-stack Service `web`.
const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: 'docker.io/lab/pod:1', imagePullPolicy: Never, args: [serve, '8080']}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  selector: {app: web}
  ipFamilyPolicy: RequireDualStack
  clusterIP: 10.96.0.80
  clusterIPs: ['10.96.0.80', 'fd96::80']
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
";

/// An image archive, and the name of the image in it.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) archive: PathBuf,
    pub(crate) name: String,
}

impl Image {
    /// Reads the image's name from an OCI archive, or from an archive of `docker save`.
    pub(crate) fn read(archive: &Path) -> Result<Self> {
        let part = |file: &str| -> Option<Value> {
            let output = Command::new("tar")
                .arg("-xOf")
                .arg(archive)
                .arg(file)
                .output();
            serde_json::from_slice(&output.ok()?.stdout).ok()
        };
        let annotated = part("index.json").and_then(|index| {
            let annotations = index.pointer("/manifests/0/annotations")?;
            Some(
                annotations
                    .get("io.containerd.image.name")?
                    .as_str()?
                    .to_owned(),
            )
        });
        let tagged = || {
            let manifest = part("manifest.json")?;
            Some(manifest.pointer("/0/RepoTags/0")?.as_str()?.to_owned())
        };
        let name = annotated.or_else(tagged).with_context(|| {
            format!("{} is no image archive that says a name", archive.display())
        })?;
        Ok(Self {
            archive: archive.canonicalize()?,
            name,
        })
    }
}

/// kubeadm's DaemonSet of kube-proxy.
#[derive(Debug)]
pub(crate) struct Proxy<'a> {
    pub(crate) kubectl: &'a Kubectl,
}

impl Proxy<'_> {
    fn of_system(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl
            .run(&[&["-n", "kube-system"], arguments].concat())
    }

    /// Patches kubeadm's DaemonSet with our patch file and image, by the steps in the manifests'
    /// README.
    pub(crate) fn patch(&self, image: &Image) -> Result<()> {
        self.of_system(&["patch", "daemonset", "kube-proxy", "--patch-file", PATCH])?;
        self.swap(image)
    }

    /// Sets the image of the DaemonSet's container to `image`, and changes nothing else.
    pub(crate) fn swap(&self, image: &Image) -> Result<()> {
        let container = format!("kube-proxy={}", image.name);
        self.of_system(&["set", "image", "daemonset/kube-proxy", &container])?;
        Ok(())
    }

    /// Sets the proxy mode in kubeadm's ConfigMap, and restarts the DaemonSet's pods.
    pub(crate) fn set_mode(&self, mode: &str) -> Result<()> {
        let map = self
            .kubectl
            .get(&["-n", "kube-system", "configmap", "kube-proxy"])?;
        let config = map
            .pointer("/data/config.conf")
            .and_then(Value::as_str)
            .context("kubeadm's ConfigMap has no config.conf")?;
        let lines = config.lines().map(|line| {
            if line.starts_with("mode:") {
                format!("mode: {mode}\n")
            } else {
                format!("{line}\n")
            }
        });
        let patch = serde_json::json!({"data": {"config.conf": lines.collect::<String>()}});
        self.of_system(&["patch", "configmap", "kube-proxy", "-p", &patch.to_string()])?;
        self.of_system(&["rollout", "restart", "daemonset/kube-proxy"])?;
        Ok(())
    }

    /// Waits until each node has a ready pod of the DaemonSet's newest generation. Returns the
    /// duration.
    pub(crate) fn await_rollout(&self) -> Result<Duration> {
        let programs = &self.kubectl.programs;
        let rolled = programs.until("kube-proxy is rolled out", ROLLED_WITHIN, || {
            let set = self
                .kubectl
                .get(&["-n", "kube-system", "daemonset", "kube-proxy"])?;
            let number = |of: &str| {
                set.pointer(&format!("/status/{of}"))
                    .and_then(Value::as_u64)
                    .unwrap_or(0)
            };
            let wanted = number("desiredNumberScheduled");
            Ok(
                set.pointer("/metadata/generation") == set.pointer("/status/observedGeneration")
                    && wanted > 0
                    && ["updatedNumberScheduled", "numberReady", "numberAvailable"]
                        .into_iter()
                        .all(|of| number(of) == wanted),
            )
        });
        rolled.with_context(|| {
            let pods = self.of_system(&["describe", "pods", "-l", "k8s-app=kube-proxy"]);
            let tail = pods.unwrap_or_else(|error| format!("{error:#}"));
            format!("its pods:\n{tail}")
        })
    }

    /// Returns the last 200 log lines of each pod of the DaemonSet, or the error of `kubectl`.
    pub(crate) fn said(&self) -> String {
        let said = self.of_system(&["logs", "-l", "k8s-app=kube-proxy", "--tail=200", "--prefix"]);
        said.unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// Creates the Service `web`, and waits until it responds on every path. Returns the duration.
pub(crate) fn serve_web(
    kubectl: &Kubectl,
    folder: &Path,
    outside: &Place,
    node: &Place,
) -> Result<Duration> {
    kubectl.create(folder, "web.yaml", WEB)?;
    let ways = ways(outside, node)?;
    kubectl.programs.until(
        "the Service web answers by every way",
        SERVED_WITHIN,
        || {
            for (from, to) in &ways {
                ask_once(from, *to).with_context(|| format!("{} to {to}", from.name()))?;
            }
            Ok(true)
        },
    )
}

/// Returns the paths to `web` in both families: from outside to a node port, and from a node to the
/// ClusterIP.
pub(crate) fn ways(outside: &Place, node: &Place) -> Result<Vec<(Place, SocketAddr)>> {
    let from_outside = NODE_PORT.map(|to| (outside.clone(), to));
    let inside = CLUSTER_IP.map(|to| (node.clone(), to));
    let ways: Vec<_> = from_outside.into_iter().chain(inside).collect();
    ensure!(!ways.is_empty(), "no way");
    ways.into_iter()
        .map(|(from, to)| Ok((from, to.parse()?)))
        .collect()
}
