//! Parses the paths and queries of URLs.

use crate::resource::{Kind, VERSION};
use crate::status::Status;

/// Object or collection of objects that a URL's path names.
#[derive(Debug, PartialEq)]
pub(crate) enum Target {
    /// All objects of a kind, in all namespaces or in one namespace.
    Collection {
        kind: Kind,
        namespace: Option<String>,
    },
    /// A single object of a kind.
    Object {
        kind: Kind,
        namespace: String,
        name: String,
    },
}

impl Target {
    pub(crate) fn parse(path: &str) -> Result<Self, Status> {
        let unknown = || Status::no_such_path(path);
        let segments: Option<Vec<String>> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| decode(segment, false))
            .collect();
        let segments = segments.ok_or_else(unknown)?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (group, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] if *version == VERSION => ("", rest),
            ["apis", group, version, rest @ ..] if *version == VERSION => (*group, rest),
            _ => return Err(unknown()),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (plural, rest) = rest.split_first().ok_or_else(unknown)?;
        let kind = Kind::at(group, plural).ok_or_else(unknown)?;
        let row = kind.resource();
        if namespace.is_some() && !row.namespaced {
            return Err(unknown());
        }
        let name = match rest {
            [] => {
                return Ok(Self::Collection {
                    kind,
                    namespace: namespace.map(str::to_owned),
                });
            }
            [name] => *name,
            _ => return Err(unknown()),
        };
        if row.namespaced && namespace.is_none() {
            return Err(unknown());
        }
        Ok(Self::Object {
            kind,
            namespace: namespace.unwrap_or_default().into(),
            name: name.into(),
        })
    }
}

/// Decoded parameters of a URL's query. If a parameter is repeated, its first value counts, as in
/// Go.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Self, Status> {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name, true)?, decode(value, true)?))
        });
        let pairs: Option<Vec<_>> = pairs.collect();
        pairs
            .map(Self)
            .ok_or_else(|| Status::bad_request(format!("query {text:?}: broken percent-encoding")))
    }

    /// Returns the value of a parameter, or an empty string if the query lacks it.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0
            .iter()
            .find(|(given, _)| given == name)
            .map_or("", |(_, value)| value)
    }

    /// Parses a parameter as a number. Returns `None` if the query lacks it or its value is empty.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Status> {
        match self.text(name) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| Status::bad_request(format!("{name}: {text:?} is no number"))),
        }
    }

    /// Parses a parameter as a boolean, as Kubernetes converts query parameters: a parameter
    /// without a value is true. Returns `None` if the query lacks it.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        let (_, value) = self.0.iter().find(|(given, _)| given == name)?;
        Some(!matches!(
            value.to_ascii_lowercase().as_str(),
            "false" | "0"
        ))
    }
}

fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' if plus_is_space => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn request_paths_name_a_collection_or_an_object() {
        let all = |kind| Target::Collection {
            kind,
            namespace: None,
        };
        let one = |kind, namespace: &str, name: &str| Target::Object {
            kind,
            namespace: namespace.into(),
            name: name.into(),
        };
        for (path, target) in [
            ("/api/v1/services", all(Kind::Service)),
            (
                "/api/v1/namespaces/a/services/b",
                one(Kind::Service, "a", "b"),
            ),
            ("/api/v1/nodes/n%31", one(Kind::Node, "", "n1")),
            (
                "/apis/networking.k8s.io/v1/servicecidrs",
                all(Kind::ServiceCidr),
            ),
        ] {
            assert_eq!(Target::parse(path), Ok(target), "{path}");
        }
        for path in [
            "/",
            "/version",
            "/api/v1",
            "/api/v1/namespaces/a",
            "/api/v2",
            "/api/v1/pods",
            "/api/v1/services/web",
            "/api/v1/namespaces/a/nodes",
            "/apis/x/v1/services",
            "/api/v1/namespaces/a/services/b/status",
            "/api/v1/nodes/%zz",
            "/api/v1/nodes/a/b",
        ] {
            assert_eq!(
                Target::parse(path).map_err(|status| status.code),
                Err(404),
                "{path}"
            );
        }
    }

    #[test]
    fn query_parameters_are_decoded_and_typed() {
        let query = Query::parse("a=%21x%2Cb+c&limit=5&watch&off=false&limit=6").unwrap();
        assert_eq!(query.text("a"), "!x,b c");
        assert_eq!(query.number("limit"), Ok(Some(5)));
        assert_eq!(
            (query.flag("watch"), query.flag("off"), query.flag("none")),
            (Some(true), Some(false), None)
        );
        assert_eq!(query.number("a").map_err(|status| status.code), Err(400));
    }

    proptest! {
        #[test]
        fn arbitrary_paths_and_queries_never_panic_the_parsers(text in "[a-z0-9/%&=+é]{0,32}") {
            let _ = Target::parse(&text);
            let _ = Query::parse(&text);
        }
    }
}
