//! Reads values of a kubeconfig as client-go does.

use std::path::Path;

use http::HeaderValue;
use kube::config::Kubeconfig;
use serde_json::{Map, Value};

/// Removes empty values of clusters and users, because client-go treats them as unset. `kube` has
/// resolved empty paths to `folder`, the kubeconfig's own folder. Also trims tokens, because HTTP
/// headers cannot contain the newline with which many files end, and completes servers' URLs.
///
/// # Errors
///
/// Returns the reason if a token cannot be sent in an HTTP header. Does not quote the token.
pub(super) fn without_empty(kubeconfig: &Kubeconfig, folder: &Path) -> Result<Kubeconfig, String> {
    let mut all = serde_json::to_value(kubeconfig).map_err(|error| error.to_string())?;
    let own_folder = folder.join("").display().to_string();
    for (list, kind) in [("clusters", "cluster"), ("users", "user")] {
        let named = all.get_mut(list).and_then(Value::as_array_mut);
        for one in named.into_iter().flatten() {
            if let Some(fields) = one.get_mut(kind).and_then(Value::as_object_mut) {
                fields.retain(|_, value| {
                    value
                        .as_str()
                        .is_none_or(|text| !text.is_empty() && text != own_folder)
                });
                trim_token(fields)?;
                add_scheme(fields);
            }
        }
    }
    // Does not quote the parser's error, which may contain a key or token.
    serde_json::from_value(all).map_err(|_| "this is not a kubeconfig".to_owned())
}

/// Adds the scheme `http` to the server of a cluster, if it has none, as client-go does.
fn add_scheme(cluster: &mut Map<String, Value>) {
    if let Some(Value::String(server)) = cluster.get_mut("server")
        && !server.contains("://")
    {
        server.insert_str(0, "http://");
    }
}

fn trim_token(user: &mut Map<String, Value>) -> Result<(), String> {
    let Some(Value::String(token)) = user.get_mut("token") else {
        return Ok(());
    };
    let trimmed = token.trim().to_owned();
    if HeaderValue::try_from(&trimmed).is_err() {
        return Err("its user's token has a character that no HTTP header may have".to_owned());
    }
    *token = trimmed;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
        let read = without_empty(&kubeconfig, Path::new("/etc/kubernetes"))?;
        Ok(serde_json::to_value(read).unwrap())
    }

    #[test]
    fn empty_values_of_clusters_and_users_are_unset() {
        let read = read(
            "clusters: [{name: '', cluster: {server: 'https://a', certificate-authority-data: '', \
             certificate-authority: /etc/kubernetes/, tls-server-name: ''}}]\n\
             users: [{name: u, user: {token: \"abc\\n\", tokenFile: '', client-key-data: '', password: ''}}]\n",
        )
        .unwrap();
        let cluster = &read["clusters"][0];
        assert_eq!(cluster["name"], "");
        assert_eq!(cluster["cluster"]["server"], "https://a");
        for field in [
            "certificate-authority-data",
            "certificate-authority",
            "tls-server-name",
        ] {
            assert!(cluster["cluster"][field].is_null(), "{field}: {cluster}");
        }
        let user = &read["users"][0]["user"];
        assert_eq!(user["token"], "abc");
        for field in ["tokenFile", "client-key-data", "password"] {
            assert!(user[field].is_null(), "{field}: {user}");
        }
    }

    #[test]
    fn a_server_without_a_scheme_is_reached_by_http() {
        for (given, url) in [
            ("172.35.0.9:6443", "http://172.35.0.9:6443"),
            ("localhost", "http://localhost"),
            ("https://a:1", "https://a:1"),
        ] {
            let text = format!("clusters: [{{name: a, cluster: {{server: '{given}'}}}}]");
            assert_eq!(
                read(&text).unwrap()["clusters"][0]["cluster"]["server"],
                url
            );
        }
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_an_error_without_the_token() {
        let error = read("users: [{name: u, user: {token: \"sec\\nret\"}}]").unwrap_err();
        assert!(error.contains("token") && !error.contains("sec"), "{error}");
    }
}
