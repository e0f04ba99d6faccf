//! Parses names of Services as users of kubectl type them.

use std::time::Duration;

use view::{ServiceList, ServiceName};

use super::{Failure, socket};

/// Words that may precede the name of a Service, as in `svc/web`.
const KINDS: [&str; 3] = ["svc", "service", "services"];
/// Maximum number of Services to request, to find a missing Service in other namespaces.
const SEARCH_LIMIT: usize = 500;

/// Removes the word `svc`, `service` or `services` in front of a name. For example, `svc/web`
/// becomes `web`, and `svc/shop/web` becomes `shop/web`.
pub(super) fn without_kind(text: &str) -> &str {
    match text.split_once('/') {
        Some((kind, name)) if KINDS.contains(&kind) => name,
        _ => text,
    }
}

/// Splits the name of a Service into its namespace and name. `namespace` is the value of `-n`.
///
/// # Errors
///
/// Fails if no Service can have this name, or if `-n` names another namespace.
pub(super) fn qualified<'a>(
    text: &'a str,
    namespace: Option<&'a str>,
) -> Result<(&'a str, &'a str), Failure> {
    if let Some(namespace) = namespace {
        check_namespace(namespace)?;
    }
    let bare = without_kind(text);
    let unqualified = (namespace.unwrap_or("default"), bare);
    let (of, name) = bare.split_once('/').unwrap_or(unqualified);
    if !is_name(of) || !is_name(name) {
        let why = format!(
            "`{text}` is not the name of a Service: give NAMESPACE/NAME, or NAME with -n NAMESPACE"
        );
        return Err(Failure::Unreadable(why));
    }
    if namespace.is_some_and(|namespace| namespace != of) {
        let why = format!("{text} is not in the namespace of -n; give one of them");
        return Err(Failure::Unreadable(why));
    }
    Ok((of, name))
}

/// Checks that the value of `-n` can be the name of a namespace.
pub(super) fn check_namespace(namespace: &str) -> Result<(), Failure> {
    if is_name(namespace) {
        return Ok(());
    }
    let why = format!("`{namespace}` is not the name of a namespace: give one name with -n");
    Err(Failure::Unreadable(why))
}

/// Returns true if all characters may occur in a Kubernetes name. The API server is stricter.
fn is_name(text: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    !text.is_empty() && text.bytes().all(is_usual)
}

/// Percent-encodes a text for the path or query of a URL.
pub(super) fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Returns the error for a Service that does not exist, with a suggestion of what the user meant.
/// `why` is the daemon's error.
pub(super) fn not_found(why: &str, name: &str, timeout: Duration) -> Failure {
    let list = |query: String| {
        let path = format!("/api/v1/services?endpoints=false&counters=false&{query}");
        socket::get::<ServiceList>(&path, timeout).unwrap_or_default()
    };
    let in_namespace = list(format!("namespace={}&limit=1", encoded(name))).total;
    let search = encoded(&format!("/{name}"));
    let named = list(format!("search={search}&limit={SEARCH_LIMIT}")).items;
    let named = named.into_iter().map(|service| service.name);
    let named: Vec<ServiceName> = named.filter(|of| of.name == name).collect();
    Failure::NotFound(match advice(name, in_namespace, &named) {
        Some(advice) => format!("{why}; {advice}"),
        None => why.to_owned(),
    })
}

/// Suggests what the user meant by `name`, for which no Service exists: the namespace `name`, or a
/// Service in `named`, which lists Services of this name in other namespaces. `in_namespace` is the
/// number of Services in the namespace `name`. Returns `None` if nothing fits.
fn advice(name: &str, in_namespace: usize, named: &[ServiceName]) -> Option<String> {
    if in_namespace > 0 {
        return Some(format!(
            "is the namespace {name} meant? kube-proxy services -n {name}"
        ));
    }
    match named {
        [] => None,
        [first, others @ ..] => {
            let more = match others.len() {
                0 => String::new(),
                count => format!(" (and {count} more)"),
            };
            Some(format!("is {first} meant{more}?"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_svc_of_a_service_name_is_removed() {
        for (text, name) in [
            ("svc/web", "web"),
            ("service/web:http", "web:http"),
            ("services/shop/web", "shop/web"),
            ("shop/web", "shop/web"),
            ("web", "web"),
        ] {
            assert_eq!(without_kind(text), name);
        }
    }

    #[test]
    fn names_that_no_service_can_have_are_rejected_with_advice() {
        let told = |text, namespace| qualified(text, namespace).map_err(|why| why.to_string());
        assert_eq!(told("web", None), Ok(("default", "web")));
        assert_eq!(told("shop/web", Some("shop")), Ok(("shop", "web")));
        assert_eq!(told("web", Some("shop")), Ok(("shop", "web")));
        for text in ["a/b/c", "svc/", "/web", "shop/", "shop/web:80"] {
            let why = told(text, None).unwrap_err();
            let start = format!("`{text}` is not the name of a Service: give NAMESPACE/NAME");
            assert!(why.starts_with(&start), "{why}");
        }
        let other = told("shop/web", Some("other")).unwrap_err();
        assert!(other.contains("not in the namespace of -n"), "{other}");
        for namespace in ["a/b", ""] {
            let why = told("web", Some(namespace)).unwrap_err();
            assert!(why.contains("not the name of a namespace"), "{why}");
        }
    }

    #[test]
    fn a_search_for_a_missing_service_suggests_other_namespaces() {
        let of = |namespace: &str| ServiceName {
            namespace: namespace.to_owned(),
            name: "web".to_owned(),
        };
        assert_eq!(advice("web", 0, &[]), None);
        let namespace = advice("shop", 3, &[]).unwrap();
        assert!(
            namespace.ends_with("kube-proxy services -n shop"),
            "{namespace}"
        );
        assert_eq!(
            advice("web", 0, &[of("shop")]).unwrap(),
            "is shop/web meant?"
        );
        let several = advice("web", 0, &[of("a"), of("b"), of("c")]).unwrap();
        assert_eq!(several, "is a/web meant (and 2 more)?");
    }
}
