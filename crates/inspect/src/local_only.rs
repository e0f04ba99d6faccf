//! Restricts the API at the metrics address to clients on this node. Of the pages in a browser,
//! only the daemon's own page may use the API.
//!
//! Every program on the node can reach a loopback address, including a browser. A foreign site can
//! make its own host name resolve to 127.0.0.1 (DNS rebinding), so the browser lets the site's page
//! read the daemon's responses. The request then has the site's host name. So this module accepts
//! only host names of this node.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderName, HeaderValue, header};

/// Header in which a browser says which site caused a request (Fetch Metadata, W3C).
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Returns the reason why the server rejects a request at the metrics address, or `None` for an
/// allowed request. `is_loopback` is true if the metrics address is a loopback address.
pub fn refusal(head: &Parts, is_loopback: bool) -> Option<&'static str> {
    if !is_loopback {
        return Some(
            "this is answered only where --metrics-bind-address is a loopback address; on the node, kube-proxy status and \
             kube-proxy services ask by a local socket",
        );
    }
    let host = head.headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    // In HTTP/1.1, a host in the request line takes precedence over the header.
    let host = head.uri.authority().map_or(host, |uri| uri.as_str());
    if !is_of_this_node(host) {
        return Some(
            "only requests for localhost, 127.0.0.1 or [::1] are answered: ask by one of these names (with kubectl port-forward, \
             too)",
        );
    }
    is_anothers(head)
        .then_some("a page from elsewhere asks: only the page /ui/ of this address may")
}

/// Reports whether a page of another site caused an API request. The page cannot read the response,
/// but the request costs work on the node.
///
/// Returns false for the path of the daemon's own page. Also returns false for a client that does
/// not send the header [`SITE`], as only browsers do.
fn is_anothers(head: &Parts) -> bool {
    let site = head.headers.get(SITE).map(HeaderValue::as_bytes);
    head.uri.path().starts_with(super::PREFIX)
        && site.is_some_and(|site| !matches!(site, b"same-origin" | b"none"))
}

fn is_of_this_node(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        // The last colon separates the port, unless it is inside the brackets of an IPv6 address.
        Some((name, port)) if !port.ends_with(']') => {
            if port.parse::<u16>().is_err() {
                return false;
            }
            name
        }
        _ => host,
    };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let inner = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = inner.unwrap_or(name).parse::<IpAddr>();
    match address {
        Ok(IpAddr::V4(ip)) => inner.is_none() && ip.is_loopback(),
        Ok(IpAddr::V6(ip)) => inner.is_some() && ip.is_loopback(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(uri: &str, host: &str) -> Parts {
        let request = http::Request::get(uri).header(header::HOST, host);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_host_names_of_this_node_are_accepted() {
        for (host, is_heard) in [
            ("localhost", true),
            ("LOCALHOST:10249", true),
            ("127.0.0.1:10249", true),
            ("127.0.0.1", true),
            ("[::1]:10249", true),
            ("[::1]", true),
            ("", false),
            ("evil.example", false),
            ("evil.example:10249", false),
            ("localhost.evil.example:10249", false),
            ("127.0.0.1.evil.example", false),
            ("127.0.0.1:port", false),
            ("localhost:80:80", false),
            ("10.0.0.1:10249", false),
            ("[fd00::1]:10249", false),
            ("::1", false),
            ("[127.0.0.1]", false),
        ] {
            let why = refusal(&head("/api/v1/status", host), true);
            assert_eq!(why.is_none(), is_heard, "{host}: {why:?}");
            assert!(refusal(&head("/api/v1/status", host), false).is_some());
        }
        let absolute = head("http://evil.example/api/v1/status", "localhost");
        assert!(refusal(&absolute, true).is_some());
        let without = http::Request::get("/api/v1/status").body(()).unwrap();
        assert!(refusal(&without.into_parts().0, true).is_some());
    }

    #[test]
    fn requests_caused_by_pages_of_other_sites_are_rejected() {
        let from = |path: &str, site: &str| {
            let mut head = head(path, "localhost:10249");
            head.headers.insert(SITE, site.parse().unwrap());
            refusal(&head, true).is_none()
        };
        for (site, is_heard) in [
            ("same-origin", true),
            ("none", true),
            ("same-site", false),
            ("cross-site", false),
        ] {
            assert_eq!(from("/api/v1/explain?to=a/b", site), is_heard, "{site}");
            assert!(from("/ui/", site), "a link to the page, {site}");
        }
    }
}
