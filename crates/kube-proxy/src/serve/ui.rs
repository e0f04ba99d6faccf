//! The page `/ui/`: files in this binary that a browser shows. The page fetches its data from
//! `/api/v1/...`.
//!
//! - The page loads nothing from other servers.
//! - Its content security policy forbids foreign scripts, styles in attributes, and frames around
//!   the page.
//! - Its script inserts data as text, never as markup.

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};

use http_server::{Answer, answer, not_found, text};

/// Content security policy of the page `/ui/`.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// A file of the page `/ui/`: its name, type and content.
struct File {
    /// Path of the file below `/ui/`.
    name: &'static str,
    content_type: &'static str,
    content: &'static [u8],
}

macro_rules! files {
    ($($name:literal: $content_type:expr),* $(,)?) => {
        [$(File {
            name: $name,
            content_type: $content_type,
            content: include_bytes!(concat!("ui/", $name)),
        }),*]
    };
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

static FILES: [File; 13] = files! {
    "index.html": HTML,
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "app.js": SCRIPT,
    "dom.js": SCRIPT,
    "poll.js": SCRIPT,
    "rates.js": SCRIPT,
    "words.js": SCRIPT,
    "overview.js": SCRIPT,
    "services.js": SCRIPT,
    "service.js": SCRIPT,
    "explain.js": SCRIPT,
    "top.js": SCRIPT,
};

/// Reports whether a path is `/ui` or below it.
pub fn has(path: &str) -> bool {
    path == "/ui" || path.starts_with("/ui/")
}

/// Returns the response to a request for the page or for a file of the page. Returns `None` for a
/// path that is not below `/ui`.
pub fn respond(head: &Parts) -> Option<Answer> {
    let path = head.uri.path();
    if !has(path) {
        return None;
    }
    if head.method != Method::GET && head.method != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "the page is only read\n");
        let allowed = HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(header::ALLOW, allowed);
        return Some(refused);
    }
    let Some(name) = path.strip_prefix("/ui/") else {
        return Some(redirect("ui/"));
    };
    let name = if name.is_empty() { "index.html" } else { name };
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return Some(not_found());
    };
    Some(sent(file, head))
}

/// Redirects to the page at a relative address, which keeps the prefix of a reverse proxy.
pub(super) fn redirect(to: &'static str) -> Answer {
    let mut moved = text(StatusCode::FOUND, format!("the page is at {to}\n"));
    let location = HeaderValue::from_static(to);
    moved.headers_mut().insert(header::LOCATION, location);
    moved
}

/// Returns a file of the page, or status 304 if the browser's copy is current.
fn sent(file: &File, head: &Parts) -> Answer {
    let tag = tag(file.content);
    let asked = head.headers.get_all(header::IF_NONE_MATCH);
    let is_known = asked
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|known| matches!(known.trim(), "*") || known.trim().trim_start_matches("W/") == tag);
    let mut sent = if is_known {
        answer(StatusCode::NOT_MODIFIED, file.content_type, "")
    } else {
        answer(StatusCode::OK, file.content_type, file.content)
    };
    sent.headers_mut().extend([
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ),
        // Makes the browser revalidate each file at each use, because an update of the daemon
        // changes all files together.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
        // Prevents other sites from using the file as their script or image.
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ]);
    if let Ok(tag) = HeaderValue::try_from(tag) {
        sent.headers_mut().insert(header::ETAG, tag);
    }
    sent
}

/// Returns a hash of the content (FNV-1a). The hash only has to distinguish the files of two
/// builds.
fn tag(content: &[u8]) -> String {
    let hash = content
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("\"{hash:016x}\"")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn asked(method: Method, path: &str, known: Option<&str>) -> Option<Answer> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(known) = known {
            request = request.header(header::IF_NONE_MATCH, known);
        }
        respond(&request.body(()).unwrap().into_parts().0)
    }

    fn got(path: &str) -> Answer {
        asked(Method::GET, path, None).unwrap()
    }

    #[test]
    fn the_ui_is_served_with_a_strict_content_security_policy() {
        assert_eq!(got("/ui/").headers()[header::CONTENT_TYPE], HTML);
        for file in &FILES {
            let answer = got(&format!("/ui/{}", file.name));
            assert_eq!(answer.status(), StatusCode::OK, "{}", file.name);
            let policy = answer.headers()[header::CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap();
            assert!(policy.contains("default-src 'self'"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
        }
    }

    #[test]
    fn each_ui_file_is_served_and_each_import_exists() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/serve/ui");
        let mut there: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let mut served: Vec<_> = FILES.iter().map(|file| file.name.to_owned()).collect();
        there.sort();
        served.sort();
        assert_eq!(there, served);
        for file in &FILES {
            let content = std::str::from_utf8(file.content).unwrap();
            for line in content.lines().filter(|line| line.starts_with("import ")) {
                let from = line
                    .split("'./")
                    .nth(1)
                    .and_then(|rest| rest.split('\'').next());
                assert!(
                    from.is_some_and(|from| served.iter().any(|name| name == from)),
                    "{line}"
                );
            }
        }
    }

    /// The page's security policy makes the browser block external content and inserted markup.
    /// This test finds such content before a release.
    #[test]
    fn the_ui_loads_no_external_content_and_inserts_no_markup() {
        for file in &FILES {
            let content = std::str::from_utf8(file.content).unwrap();
            let name = file.name;
            let without_namespace = content.replace("http://www.w3.org/2000/svg", "");
            assert!(!without_namespace.contains("://"), "{name}");
            for banned in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "<style",
                " style=\"",
                "DOMParser",
            ] {
                assert!(!content.contains(banned), "{name} has {banned}");
            }
        }
    }

    #[test]
    fn a_cached_ui_file_is_not_sent_again() {
        let tag = got("/ui/app.js").headers()[header::ETAG]
            .to_str()
            .unwrap()
            .to_owned();
        for known in [tag.clone(), format!("\"x\", W/{tag}"), "*".to_owned()] {
            let answer = asked(Method::GET, "/ui/app.js", Some(&known)).unwrap();
            assert_eq!(answer.status(), StatusCode::NOT_MODIFIED, "{known}");
        }
        let other = asked(Method::GET, "/ui/dom.js", Some(&tag)).unwrap();
        assert_eq!(other.status(), StatusCode::OK);
    }

    #[test]
    fn unknown_ui_paths_return_not_found() {
        assert_eq!(got("/ui").headers()[header::LOCATION], "ui/");
        assert_eq!(got("/ui/../Cargo.toml").status(), StatusCode::NOT_FOUND);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            for path in ["/ui", "/ui/", "/ui/app.js", "/ui/nothing"] {
                let refused = asked(method.clone(), path, None).unwrap();
                assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
                assert_eq!(refused.headers()[header::ALLOW], "GET, HEAD");
            }
        }
        assert!(asked(Method::GET, "/metrics", None).is_none());
        assert!(asked(Method::GET, "/uix", None).is_none());
    }
}
