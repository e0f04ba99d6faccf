//! Chooses the proxy to the API server as Go programs do:
//!
//! 1. A kubeconfig's `proxy-url` always applies.
//! 2. Otherwise `HTTPS_PROXY` or `HTTP_PROXY` applies, according to the server's scheme, unless
//!    `NO_PROXY` names the server.
//!
//! kubeadm passes these variables to kube-proxy. `kube` also reads the variables, but wrongly
//! compares `NO_PROXY` with the proxy's name.

use std::fmt;
use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

use super::addresses::ServerPeer;
use super::server_url;

/// Protocol that the client speaks with a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP, with `CONNECT`.
    Http,
    /// HTTP with `CONNECT`, over TLS.
    Https,
    /// SOCKS 5. The proxy resolves names, as in Go programs for both `socks5` and `socks5h`.
    Socks5,
}

/// A proxy between this process and the API server, with its credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) protocol: Protocol,
    /// URL of the proxy (`http` or `https`), with host and port only.
    pub(super) url: Uri,
    /// Decoded user name and password, if any.
    pub(super) user: Option<(String, String)>,
}

/// Formats the proxy without user name and password.
impl fmt::Display for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Http => "http",
            Protocol::Https => "https",
            Protocol::Socks5 => "socks5",
        };
        let host = self.url.authority().map_or("", |host| host.as_str());
        write!(formatter, "{scheme}://{host}")
    }
}

/// Formats the proxy without user name and password, like `Display`.
impl fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Returns the proxy for connections to `server`, or `None` for direct connections. `given` is the
/// kubeconfig's `proxy-url`. `variable` returns the value of an environment variable.
pub(super) fn choose(
    given: Option<&str>,
    server: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, String> {
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
    let proxy = Proxy::parse(&text).map_err(|why| format!("{what} {why}"))?;
    proxy
        .check(server)
        .map_err(|why| format!("{what}: {why}"))?;
    Ok(Some(proxy))
}

impl Proxy {
    /// Parses a proxy's URL, by default with the scheme `http`. Errors never quote the URL, because
    /// it may contain a password.
    fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let (protocol, scheme, port) = match &*scheme.to_lowercase() {
            "http" => (Protocol::Http, "http", 80),
            "https" => (Protocol::Https, "https", 443),
            "socks5" | "socks5h" => (Protocol::Socks5, "http", 1080),
            _ => {
                return Err("is none of an http://, https://, socks5:// or socks5h:// URL".into());
            }
        };
        let no_url = |error: http::Error| format!("is no URL: {error}");
        let url: Uri = format!("{scheme}://{rest}").parse().map_err(|error| {
            let error: http::uri::InvalidUri = error;
            no_url(error.into())
        })?;
        let host = url.host().filter(|host| !host.is_empty());
        let host = host.ok_or("is no URL: it has no host")?;
        server_url::check_port(&url).map_err(|why| format!("is no URL: {why}"))?;
        let port = url.port_u16().unwrap_or(port);
        let plain = Uri::builder()
            .scheme(scheme)
            .authority(format!("{host}:{port}"))
            .path_and_query("/")
            .build()
            .map_err(no_url)?;
        Ok(Self {
            protocol,
            user: user_of(&url),
            url: plain,
        })
    }

    /// Checks that user name, password and `server`'s host fit into `hyper-util`'s SOCKS messages.
    fn check(&self, server: &Uri) -> Result<(), String> {
        /// Largest total length of user, password and host in `hyper-util`'s SOCKS messages.
        const ROOM: usize = 249;
        let (Protocol::Socks5, Some((name, password))) = (self.protocol, &self.user) else {
            return Ok(());
        };
        let length = name.len() + password.len() + server.host().unwrap_or_default().len();
        if length > ROOM || name.len().max(password.len()) > usize::from(u8::MAX) {
            return Err(format!(
                "name and password are too long: with the server's host they are {length} bytes, and a SOCKS proxy is \
                 told at most {ROOM}"
            ));
        }
        Ok(())
    }
}

/// Returns the percent-decoded user name and password in a URL, if any.
fn user_of(url: &Uri) -> Option<(String, String)> {
    let (user, _) = url.authority()?.as_str().rsplit_once('@')?;
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((decoded(name), decoded(password)))
}

/// Reports whether the client connects to the server without a proxy. True for `localhost`, for
/// loopback addresses and for servers in `NO_PROXY`. An entry of `NO_PROXY` is one of these, with
/// or without a port:
///
/// - `*`, an address, or a network;
/// - a domain name, which includes its subdomains;
/// - a domain name with a leading dot, which includes only its subdomains.
fn is_exempt(server: &Uri, no_proxy: &str) -> bool {
    let Some(target) = ServerPeer::of(server) else {
        return false;
    };
    let host = target.host.to_lowercase();
    let address = host.parse::<IpAddr>().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    no_proxy.split(',').map(str::trim).any(|entry| {
        let entry = entry.to_lowercase();
        if let (Ok(net), Some(address)) = (entry.parse::<IpNet>(), address) {
            return net.contains(&address);
        }
        let (name, only) = with_port(&entry);
        if name.is_empty() || only.is_some_and(|only| only != target.port) {
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

/// Splits an entry of `NO_PROXY` into a name or address, and its port, if any.
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
            Ok(Some(proxy)) => proxy.to_string(),
            Ok(None) => "direct".to_owned(),
            Err(error) => error,
        }
    }

    #[test]
    fn the_http_proxy_is_chosen_as_in_go_programs() {
        let server = "https://10.0.0.1:6443";
        let https = ("HTTPS_PROXY", "http://proxy:3128");
        let no = |list| [https, ("NO_PROXY", list)];
        assert_eq!(chosen(None, server, &[]), "direct");
        assert_eq!(chosen(None, server, &[https]), "http://proxy:3128");
        let lower = ("https_proxy", "proxy:3128");
        assert_eq!(chosen(None, server, &[lower]), "http://proxy:3128");
        assert_eq!(chosen(None, "http://10.0.0.1", &[https]), "direct");
        assert_eq!(chosen(None, "https://127.0.0.1:6443", &[https]), "direct");
        let given = Some("socks5://s:1080");
        assert_eq!(chosen(given, server, &no("*")), "socks5://s:1080");
        let wrong = chosen(Some("ftp://s"), server, &[]);
        assert!(wrong.starts_with("proxy-url is none of"), "{wrong}");
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

    #[test]
    fn proxy_urls_are_parsed_as_in_go_programs() {
        let read = |text: &str| {
            let proxy = Proxy::parse(text).unwrap();
            format!("{proxy} at {}", proxy.url)
        };
        assert_eq!(read("proxy"), "http://proxy:80 at http://proxy:80/");
        assert_eq!(
            read("HTTPS://proxy/x?y"),
            "https://proxy:443 at https://proxy:443/"
        );
        assert_eq!(
            read("https://[fd00::1]:3129"),
            "https://[fd00::1]:3129 at https://[fd00::1]:3129/"
        );
        for scheme in ["socks5", "socks5h"] {
            let url = format!("{scheme}://proxy");
            assert_eq!(read(&url), "socks5://proxy:1080 at http://proxy:1080/");
        }
        for wrong in [
            "http://",
            "https://:3128",
            "socks4://proxy",
            "http://proxy:99999",
            "http://a b",
            "socks5://me@",
        ] {
            let why = Proxy::parse(wrong).unwrap_err();
            assert!(why.starts_with("is no"), "{wrong}: {why}");
        }
    }

    #[test]
    fn proxy_credentials_are_decoded_and_never_displayed() {
        let user = |url: &str| Proxy::parse(url).unwrap().user;
        let is = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(user("http://proxy:3128"), None);
        let secret = "https://me:p%40ss%3A@proxy:3128";
        assert_eq!(user(secret), is("me", "p@ss:"));
        assert_eq!(user("socks5://me@proxy:1080"), is("me", ""));
        let proxy = Proxy::parse(secret).unwrap();
        assert_eq!(
            format!("{proxy} {proxy:?}"),
            "https://proxy:3128 https://proxy:3128"
        );
        let wrong = chosen(Some("ftp://me:secret@proxy"), "https://a", &[]);
        assert!(!wrong.contains("secret"), "{wrong}");
    }

    #[test]
    fn too_long_socks_credentials_are_rejected() {
        let with = |length| {
            chosen(
                Some(&format!("socks5://me:{}@s", "x".repeat(length))),
                "https://api",
                &[],
            )
        };
        assert_eq!(with(244), "socks5://s:1080");
        assert!(with(245).contains("too long"), "{}", with(245));
        let basic = format!("http://me:{}@s", "x".repeat(1000));
        assert_eq!(chosen(Some(&basic), "https://api", &[]), "http://s:80");
    }
}
