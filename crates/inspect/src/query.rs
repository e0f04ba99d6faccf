//! Parser of the query string of a request for a list of Services.

use http::Uri;
use proxy::NamespacedName;

use super::RequestRefusal;

/// Number of Services on a page if the query has no parameter `limit`.
const LIMIT: usize = 500;
/// Maximum number of Services on a page.
const LIMIT_MAX: usize = 5_000;

/// Filter and page of a list of Services, and the details that it includes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    /// Namespace of the Services, or `None` for all namespaces.
    pub(super) namespace: Option<String>,
    /// Text in lower case that `NAMESPACE/NAME` must contain. An empty text matches every Service.
    pub(super) search: String,
    /// Last Service of the previous page, or `None` for the first page.
    pub(super) after: Option<NamespacedName>,
    pub(super) limit: usize,
    /// True to list endpoints, false to only count them.
    pub(super) has_endpoints: bool,
    /// True to include the counters of each Service.
    pub(super) has_counters: bool,
}

impl Query {
    /// Parses the query string of a request.
    ///
    /// # Errors
    ///
    /// Fails for an unknown parameter or an invalid value.
    pub(super) fn read(uri: &Uri) -> Result<Self, RequestRefusal> {
        let mut query = Self {
            namespace: None,
            search: String::new(),
            after: None,
            limit: LIMIT,
            has_endpoints: false,
            has_counters: false,
        };
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        for (name, value) in pairs {
            let wrong = |advice: &str| RequestRefusal::Wrong(format!("{name}={value}: {advice}"));
            match &*name {
                "namespace" => query.namespace = (!value.is_empty()).then(|| value.into_owned()),
                "search" => query.search = value.to_lowercase(),
                "after" if value.is_empty() => query.after = None,
                "after" => {
                    let parts = value.split_once('/');
                    let (namespace, name) = parts.ok_or_else(|| wrong("give NAMESPACE/NAME"))?;
                    query.after = Some(NamespacedName::new(namespace, name));
                }
                "limit" => {
                    let advice = || wrong(&format!("give 1 to {LIMIT_MAX}"));
                    let limit = value.parse().map_err(|_| advice())?;
                    if !(1..=LIMIT_MAX).contains(&limit) {
                        return Err(advice());
                    }
                    query.limit = limit;
                }
                "endpoints" => query.has_endpoints = switch(&value).ok_or_else(|| wrong(SWITCH))?,
                "counters" => query.has_counters = switch(&value).ok_or_else(|| wrong(SWITCH))?,
                _ => {
                    let known = "namespace, search, after, limit, endpoints, counters";
                    let why = format!("there is no parameter {name}; there are: {known}");
                    return Err(RequestRefusal::Wrong(why));
                }
            }
        }
        Ok(query)
    }

    /// Reports whether a Service matches the filter, on whichever page it is.
    pub(super) fn matches(&self, name: &NamespacedName) -> bool {
        let of = self.namespace.as_deref();
        of.is_none_or(|of| of == name.namespace())
            && (self.search.is_empty() || name.to_string().to_lowercase().contains(&self.search))
    }
}

const SWITCH: &str = "give true or false";

fn switch(value: &str) -> Option<bool> {
    match value {
        "true" | "1" | "" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Query, String> {
        let uri = format!("/api/v1/services{query}").parse().unwrap();
        Query::read(&uri).map_err(|error| error.to_string())
    }

    #[test]
    fn queries_are_parsed_and_invalid_parameters_are_rejected() {
        let all = "?namespace=default&search=We%2Fb&after=a/b&limit=5000&endpoints=true&counters=1";
        let query = read(all).unwrap();
        assert_eq!(
            query,
            Query {
                namespace: Some("default".to_owned()),
                search: "we/b".to_owned(),
                after: Some(NamespacedName::new("a", "b")),
                limit: 5_000,
                has_endpoints: true,
                has_counters: true,
            }
        );
        assert_eq!(read("").unwrap().limit, 500);
        assert_eq!(read("?after=&namespace=").unwrap(), read("").unwrap());
        for wrong in [
            "?limit=0",
            "?limit=5001",
            "?limit=x",
            "?after=b",
            "?endpoints=2",
            "?x=1",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_search_matches_the_namespace_and_the_name() {
        let matches = |query: &str, namespace: &str, name: &str| {
            read(query)
                .unwrap()
                .matches(&NamespacedName::new(namespace, name))
        };
        assert!(matches("", "a", "b"));
        assert!(matches("?search=DNS", "kube-system", "kube-dns"));
        assert!(matches("?search=system/kube", "kube-system", "kube-dns"));
        assert!(!matches("?search=web", "kube-system", "kube-dns"));
        assert!(!matches("?namespace=kube", "kube-system", "kube-dns"));
    }
}
