//! A page of a list, as it is sent.
//!
//! Each object is read where it stands, in the one pass that finds where it ends. If one of them does not decode, that pass fails
//! as a whole; then they are told apart first, and read one by one, so that one that is wrong costs no other.

use std::borrow::Cow;
use std::marker::PhantomData;

use proxy::Kind;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::value::RawValue;

use crate::decode::{Decoded, Unnamed, Wire, json, wire};

/// A page.
#[derive(Debug)]
pub(super) struct Page {
    /// Its `kind`, such as `ServiceList`; empty if it has none.
    pub(super) kind: String,
    /// `metadata.resourceVersion`, if it is not empty.
    pub(super) version: Option<String>,
    /// `metadata.continue`, if it is not empty: there are further pages.
    pub(super) continue_token: Option<String>,
    /// All objects, in their order.
    pub(super) objects: Vec<Result<Decoded, Unnamed>>,
}

impl Page {
    /// Reads a page whose objects are of this kind. The error is about the page; what is wrong with an object stays with it.
    pub(super) fn read(kind: Kind, body: &[u8]) -> serde_json::Result<Self> {
        // Once, as a whole: texts that are skipped are not looked at again.
        let body = str::from_utf8(body).map_err(serde_json::Error::custom)?;
        let at_once = match kind {
            Kind::Service => at_once::<wire::Service<'_>>(body),
            Kind::EndpointSlice => at_once::<wire::EndpointSlice<'_>>(body),
            Kind::Node => at_once::<wire::Node<'_>>(body),
        };
        at_once.or_else(|_| {
            let sent: Sent<'_, &RawValue> = serde_json::from_str(body)?;
            Ok(sent.page(|object| json::object(kind, object.get())))
        })
    }
}

fn at_once<'a, W: Wire<'a>>(body: &'a str) -> serde_json::Result<Page> {
    let sent: Sent<'_, Read<W>> = serde_json::from_str(body)?;
    Ok(sent.page(|read| read.0))
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct Sent<'a, T> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    resource_version: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "continue")]
    continue_token: Option<Cow<'a, str>>,
}

impl<T> Sent<'_, T> {
    fn page(self, decode: impl FnMut(T) -> Result<Decoded, Unnamed>) -> Page {
        let text = |text: Option<Cow<'_, str>>| {
            let text = text.filter(|text| !text.is_empty());
            text.map(Cow::into_owned)
        };
        Page {
            kind: text(self.kind).unwrap_or_default(),
            version: text(self.metadata.resource_version),
            continue_token: text(self.metadata.continue_token),
            objects: self.items.into_iter().flatten().map(decode).collect(),
        }
    }
}

/// An object that is taken out of its JSON shape `W` as soon as it is read: that takes several times the room.
struct Read<W>(Result<Decoded, Unnamed>, PhantomData<W>);

impl<'de, W: Wire<'de>> Deserialize<'de> for Read<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(W::deserialize(deserializer)?.decode(), PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::decode::Content;

    fn page(items: &Value) -> Page {
        let page = json!({
            "kind": "ServiceList", "apiVersion": "v1", "items": items,
            "metadata": { "resourceVersion": "7", "continue": "on" },
        });
        Page::read(Kind::Service, page.to_string().as_bytes()).unwrap()
    }

    fn service(name: &str, port: &Value) -> Value {
        json!({
            "metadata": { "name": name },
            "spec": { "clusterIP": "10.96.0.1", "ports": [{ "port": port }] },
        })
    }

    #[test]
    fn an_object_that_does_not_decode_costs_no_other() {
        let right = |name| service(name, &80.into());
        let wrong = service("b", &"http".into());
        let read = page(&json!([right("a"), wrong, {}, right("c")]));
        let [Ok(a), Ok(b), Err(_), Ok(c)] = &read.objects[..] else {
            panic!("{read:?}");
        };
        assert_eq!(b.content, Content::Unusable);
        assert!(b.problems[0].to_string().contains("Service default/b"));
        let alone = page(&json!([right("a"), right("c")]));
        assert_eq!(
            [&Ok(a.clone()), &Ok(c.clone())],
            [&alone.objects[0], &alone.objects[1]]
        );
        for page in [read, alone] {
            assert_eq!(page.kind, "ServiceList");
            assert_eq!(page.version.as_deref(), Some("7"));
            assert_eq!(page.continue_token.as_deref(), Some("on"));
        }
    }

    #[test]
    fn what_is_not_json_is_no_page() {
        let text = r#"{"kind":"ServiceList","metadata":{},"items":[{"metadata":{"name":"a","labels":{"x":"?"}}}]}"#;
        assert!(Page::read(Kind::Service, text.as_bytes()).is_ok());
        let no_text: Vec<u8> = text
            .bytes()
            .map(|byte| if byte == b'?' { 0xff } else { byte })
            .collect();
        for wrong in [
            &no_text[..],
            &text.as_bytes()[..text.len() - 1],
            b"",
            b"<html>",
        ] {
            assert!(Page::read(Kind::Service, wrong).is_err());
        }
        let twice = format!("{text}{text}");
        assert!(Page::read(Kind::Service, twice.as_bytes()).is_err());
    }

    #[test]
    fn an_empty_page_has_a_kind() {
        for items in [json!([]), Value::Null] {
            assert_eq!(page(&items).objects.len(), 0);
            assert_eq!(page(&items).kind, "ServiceList");
        }
        let nothing = Page::read(Kind::Service, b"{}").unwrap();
        assert_eq!((&*nothing.kind, nothing.version), ("", None));
    }
}
