//! Whether the API server is reached through an HTTP proxy, decided as Go programs do: a kubeconfig's `proxy-url` counts
//! always; else `HTTPS_PROXY` or `HTTP_PROXY`, by the server's scheme, unless `NO_PROXY` names the server. kubeadm passes these
//! variables on to kube-proxy.
//!
//! `kube` looks at the variables too, but holds `NO_PROXY` against the proxy's own name.

use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;

/// The proxy's URL, if one is to be used. `given` is the kubeconfig's; `variable` reads the environment.
pub(super) fn choose(
    given: Option<&str>,
    server: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, String> {
    let read = |name: &str| {
        let values = [name.to_owned(), name.to_lowercase()].into_iter();
        values
            .filter_map(|name| variable(&name))
            .find(|value| !value.is_empty())
    };
    let (what, text) = if let Some(given) = given.filter(|given| !given.is_empty()) {
        ("proxy-url", given.to_owned())
    } else {
        let name = match server.scheme_str() {
            Some("http") => "HTTP_PROXY",
            _ => "HTTPS_PROXY",
        };
        match read(name) {
            Some(text) if !is_exempt(server, &read("NO_PROXY").unwrap_or_default()) => (name, text),
            _ => return Ok(None),
        }
    };
    let url = if text.contains("://") {
        text
    } else {
        format!("http://{text}")
    };
    match url.parse::<Uri>() {
        Ok(url) if matches!(url.scheme_str(), Some("http" | "socks5")) => Ok(Some(url)),
        Ok(_) => Err(format!("{what} is neither an http:// nor a socks5:// URL")),
        Err(error) => Err(format!("{what} is no URL: {error}")),
    }
}

/// Whether a server is reached directly: this host itself, and what `NO_PROXY` lists: `*`, addresses, networks, names (with
/// all below them; below only, if they begin with a point), each with or without a port.
fn is_exempt(server: &Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default();
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_lowercase();
    let address = host.parse::<IpAddr>().ok();
    let port = server.port_u16().unwrap_or(match server.scheme_str() {
        Some("http") => 80,
        _ => 443,
    });
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    no_proxy.split(',').map(str::trim).any(|entry| {
        let entry = entry.to_lowercase();
        if let (Ok(net), Some(address)) = (entry.parse::<IpNet>(), address) {
            return net.contains(&address);
        }
        let (name, only) = with_port(&entry);
        if name.is_empty() || only.is_some_and(|only| only != port) {
            return false;
        }
        match (name.parse::<IpAddr>(), address) {
            (Ok(listed), Some(address)) => listed == address,
            (Err(_), None) => {
                let below = name.strip_prefix('*').unwrap_or(name);
                below.is_empty()
                    || (!below.starts_with('.') && host == below)
                    || host
                        .strip_suffix(below.trim_start_matches('.'))
                        .is_some_and(|rest| rest.ends_with('.'))
            }
            (Err(_), Some(_)) => name == "*",
            (Ok(_), None) => false,
        }
    })
}

/// An entry's name or address, and its port.
fn with_port(entry: &str) -> (&str, Option<u16>) {
    match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            let name = name.trim_start_matches('[').trim_end_matches(']');
            (name, port.parse().ok())
        }
        _ => (entry.trim_start_matches('[').trim_end_matches(']'), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(given: Option<&str>, server: &str, variables: &[(&str, &str)]) -> String {
        let variable = |name: &str| {
            let mut found = variables.iter().filter(|(of, _)| *of == name);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        match choose(given, &server.parse().unwrap(), variable) {
            Ok(Some(url)) => url.to_string(),
            Ok(None) => "direct".to_owned(),
            Err(error) => error,
        }
    }

    #[test]
    fn a_proxy_is_chosen_as_in_go() {
        let server = "https://10.0.0.1:6443";
        let https = ("HTTPS_PROXY", "http://proxy:3128");
        let no = |list| [https, ("NO_PROXY", list)];
        assert_eq!(chosen(None, server, &[]), "direct");
        assert_eq!(chosen(None, server, &[https]), "http://proxy:3128/");
        let lower = ("https_proxy", "proxy:3128");
        assert_eq!(chosen(None, server, &[lower]), "http://proxy:3128/");
        assert_eq!(chosen(None, "http://10.0.0.1", &[https]), "direct");
        assert_eq!(chosen(None, "https://127.0.0.1:6443", &[https]), "direct");
        let given = Some("socks5://s:1080");
        assert_eq!(chosen(given, server, &no("*")), "socks5://s:1080/");
        let wrong = chosen(Some("https://s"), server, &[]);
        assert!(wrong.starts_with("proxy-url is neither"), "{wrong}");
        for exempt in [
            "*",
            "10.0.0.0/8",
            "a, 10.0.0.1",
            "10.0.0.1:6443",
            "proxy,10.0.0.1",
        ] {
            assert_eq!(chosen(None, server, &no(exempt)), "direct", "{exempt}");
        }
        for other in ["", "proxy", "10.1.0.0/16", "10.0.0.1:443", "0.0.1", ".1"] {
            assert_ne!(chosen(None, server, &no(other)), "direct", "{other}");
        }
        let named = "https://api.k8s.example";
        for exempt in [
            "api.k8s.example",
            "example",
            ".example",
            "*.example",
            "API.k8s.example:443",
        ] {
            assert_eq!(chosen(None, named, &no(exempt)), "direct", "{exempt}");
        }
        for other in [".api.k8s.example", "ample", "k8s.example:80", "10.0.0.0/8"] {
            assert_ne!(chosen(None, named, &no(other)), "direct", "{other}");
        }
        assert_eq!(
            chosen(None, "https://[fd00::1]:6443", &no("fd00::/8")),
            "direct"
        );
        assert_eq!(
            chosen(None, "https://[fd00::1]:6443", &no("fd00::1")),
            "direct"
        );
    }
}
