//! Builds a kubeconfig for a Pod, from its environment variables and from the CA and token that the
//! kubelet mounts. So the same code handles Pods and kubeconfig files.

use std::path::Path;

use kube::config::Kubeconfig;
use serde_json::json;

/// Directory in which the kubelet mounts a Pod's service account credentials.
pub(super) const FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Builds a kubeconfig that names the CA and token files in `folder`. `variable` returns the value
/// of an environment variable. The error names a missing variable.
pub(super) fn kubeconfig(
    folder: &Path,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Kubeconfig, String> {
    let read = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| format!("{name} is not in the environment"))
    };
    let host = read("KUBERNETES_SERVICE_HOST")?;
    let port = read("KUBERNETES_SERVICE_PORT")?;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    let kubeconfig = json!({
        "current-context": "pod",
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        "clusters": [{"name": "pod", "cluster": {
            "server": format!("https://{host}:{port}"), "certificate-authority": folder.join("ca.crt"),
        }}],
        "users": [{"name": "pod", "user": {"tokenFile": folder.join("token")}}],
    });
    serde_json::from_value(kubeconfig).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_in_cluster_configuration_comes_from_the_environment() {
        let of = |host: &str, port: &str| {
            kubeconfig(Path::new("/mount"), |name| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                "KUBERNETES_SERVICE_PORT" => Some(port.to_owned()),
                _ => None,
            })
        };
        for (host, url) in [
            ("10.96.0.1", "https://10.96.0.1:443"),
            ("fd00::1", "https://[fd00::1]:443"),
            ("api.example", "https://api.example:443"),
        ] {
            let kubeconfig = of(host, "443").unwrap();
            let cluster = kubeconfig.clusters[0].cluster.as_ref().unwrap();
            assert_eq!(cluster.server.as_deref(), Some(url));
            assert_eq!(
                cluster.certificate_authority.as_deref(),
                Some("/mount/ca.crt")
            );
            let user = kubeconfig.auth_infos[0].auth_info.as_ref().unwrap();
            assert_eq!(user.token_file.as_deref(), Some("/mount/token"));
        }
        assert_eq!(
            of("", "443").err().unwrap(),
            "KUBERNETES_SERVICE_HOST is not in the environment"
        );
    }
}
