//! Parses and checks URLs of API servers and proxies.

use http::Uri;

use crate::error::StartError;

/// Advice to an operator who gave an invalid URL.
pub(super) const EXAMPLE: &str = "give a URL such as https://10.0.0.1:6443";

/// Returns a URL without user, password and query.
pub(super) fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    // Removes the query, which may also contain a secret.
    let path = path.split('?').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// Parses `--master`. As in client-go, a URL without a scheme means plain HTTP.
pub(super) fn master_url(master: &str) -> Result<Uri, StartError> {
    let url = if master.contains("://") {
        master.to_owned()
    } else {
        format!("http://{master}")
    };
    url.parse()
        .map_err(|error: http::uri::InvalidUri| StartError::Api {
            what: format!("--master={master}"),
            reason: error.to_string(),
            advice: EXAMPLE,
        })
}

/// Checks that a server's URL has the scheme http or https, a host and a valid port. The error says
/// why the URL cannot be used.
pub(super) fn check(url: &Uri) -> Result<(), &'static str> {
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err("its scheme is neither http nor https");
    }
    if url.host().is_none_or(str::is_empty) {
        return Err("it has no host");
    }
    check_port(url)
}

/// Checks that a URL's port is valid, if it has one. Without this check, the default port would
/// replace an invalid port.
pub(super) fn check_port(url: &Uri) -> Result<(), &'static str> {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let place = authority.rsplit('@').next().unwrap_or_default();
    let port = place.strip_prefix(url.host().unwrap_or_default());
    match port {
        Some(text) if text.len() > 1 && url.port_u16().is_none() => {
            Err("its port is not a number from 1 to 65535")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_needs_a_known_scheme_a_host_and_a_valid_port() {
        let port = "its port is not a number from 1 to 65535";
        for (url, wanted) in [
            ("https://10.0.0.1:6443", Ok(())),
            ("http://me@[::1]:8080/prefix", Ok(())),
            ("https://[::1]", Ok(())),
            ("https://example.org:", Ok(())),
            (
                "ftp://10.0.0.1",
                Err("its scheme is neither http nor https"),
            ),
            ("10.0.0.1:6443", Err("its scheme is neither http nor https")),
            ("https://10.0.0.1:99999", Err(port)),
            ("https://[::1]:99999", Err(port)),
            ("https://me@10.0.0.1:99999/prefix", Err(port)),
        ] {
            assert_eq!(check(&url.parse().unwrap()), wanted, "{url}");
        }
    }
}
