//! Objects as the fake API server stores them: encoded bytes, and the values that selectors
//! compare.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::media::Media;
use crate::protobuf::{self, TypeMismatch};
use crate::resource::Kind;

/// Key of an object: its namespace (empty for cluster-scoped kinds) and its name. Lists are sorted
/// by this key.
pub(crate) type Key = (Box<str>, Box<str>);

/// One version of a Kubernetes object, which never changes.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) key: Key,
    pub(crate) version: u64,
    /// Labels of the object as (key, value), sorted by key.
    labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the fields that field selectors of this kind can name, in the order of [`Kind`]'s
    /// table row.
    fields: Box<[(&'static str, Box<str>)]>,
    json: EncodedObject,
    protobuf: EncodedObject,
}

/// An object's bytes in JSON or in protobuf. All readers share these bytes, so the fake API server
/// encodes each version once.
#[derive(Debug)]
struct EncodedObject {
    /// Object with `kind` and `apiVersion`, as a single-object response or a watch event contains
    /// it.
    whole: Bytes,
    /// Range in `whole` of the object without `kind` and `apiVersion`, because a Go server's list
    /// items omit both.
    body: Range<usize>,
}

/// A change of one object, as the history of its kind records it.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    /// The object before the change, or `None` if the change created the object.
    pub(crate) before: Option<Arc<Object>>,
    /// The object after the change. After a deletion: its last content, with the resource version
    /// of the deletion.
    pub(crate) object: Arc<Object>,
    pub(crate) deleted: bool,
}

impl Object {
    /// Encodes the object `value` in JSON and in protobuf. Its `metadata.resourceVersion` must be
    /// `version`.
    ///
    /// # Errors
    ///
    /// Returns [`TypeMismatch`] with the first field whose value has the wrong type.
    pub(crate) fn new(kind: Kind, version: u64, value: &Value) -> Result<Self, TypeMismatch> {
        let text = |path: &str| -> Box<str> {
            match path.split('.').try_fold(value, |at, name| at.get(name)) {
                None | Some(Value::Null) => "".into(),
                Some(Value::String(text)) => text.as_str().into(),
                Some(other) => other.to_string().into(),
            }
        };
        let labels = value.pointer("/metadata/labels").and_then(Value::as_object);
        let labels = labels
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into())));
        let body: BTreeMap<&String, &Value> = value
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| *key != "kind" && *key != "apiVersion")
            .collect();
        let resource = kind.resource();
        let head = format!(
            r#"{{"kind":"{}","apiVersion":"{}","#,
            resource.kind,
            resource.api_version()
        );
        let body = serde_json::to_vec(&body).expect("a map of JSON values is JSON");
        // Drops the JSON's opening brace, because `head` already contains one.
        let body = body.get(1..).unwrap_or_default();
        let json = [head.as_bytes(), body].concat();
        let message = protobuf::encode(kind, value)?;
        let envelope = protobuf::envelope(&resource.api_version(), resource.kind, &message);
        let end = envelope.len() - protobuf::TAIL.len();
        Ok(Self {
            key: (text("metadata.namespace"), text("metadata.name")),
            version,
            labels: labels.collect(),
            fields: kind
                .resource()
                .fields
                .iter()
                .map(|field| (*field, text(field)))
                .collect(),
            json: EncodedObject {
                body: head.len()..json.len(),
                whole: json.into(),
            },
            protobuf: EncodedObject {
                body: end - message.len()..end,
                whole: envelope.into(),
            },
        })
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.key.0
    }

    pub(crate) fn name(&self) -> &str {
        &self.key.1
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(name, _)| **name == *key)
            .map(|(_, value)| &**value)
    }

    /// Returns the value of a selectable field, or an empty string if the object lacks the field.
    pub(crate) fn field(&self, name: &str) -> &str {
        match name {
            "metadata.name" => self.name(),
            "metadata.namespace" => self.namespace(),
            _ => self
                .fields
                .iter()
                .find(|(field, _)| *field == name)
                .map_or("", |(_, value)| value),
        }
    }

    /// Returns the encoded object with `kind` and `apiVersion`, for a single-object response or a
    /// watch event.
    pub(crate) fn bytes(&self, media: Media) -> &Bytes {
        &self.encoded(media).whole
    }

    /// Returns the encoded object as a list item: without `kind` and `apiVersion`, and in JSON
    /// without the opening brace.
    pub(crate) fn item(&self, media: Media) -> &[u8] {
        let encoded = self.encoded(media);
        encoded.whole.get(encoded.body.clone()).unwrap_or_default()
    }

    fn encoded(&self, media: Media) -> &EncodedObject {
        match media {
            Media::Json => &self.json,
            Media::Protobuf => &self.protobuf,
        }
    }

    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.json.whole).expect("an object is stored as JSON that we wrote")
    }

    /// Returns this object with another resource version. `json` and `protobuf` must encode the
    /// same object at this version.
    fn with(&self, version: u64, json: Bytes, protobuf: Bytes) -> Self {
        let encoded = |whole, as_in: &EncodedObject| EncodedObject {
            whole,
            body: as_in.body.clone(),
        };
        Self {
            key: self.key.clone(),
            version,
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            json: encoded(json, &self.json),
            protobuf: encoded(protobuf, &self.protobuf),
        }
    }

    /// Returns a copy of the object with the resource version `version`, encoded again.
    pub(crate) fn at_version(&self, kind: Kind, version: u64) -> Self {
        let mut value = self.value();
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".into(), version.to_string().into());
        }
        Self::new(kind, version, &value).expect("only its version is another")
    }
}

/// An EndpointSlice that a test stores many times, each time at a new resource version: see
/// [`crate::Cluster::replay`]. Replaces only the version's digits in the encoded bytes, and encodes
/// the object again only if the number of digits changes.
#[derive(Debug)]
pub struct Recording {
    kind: Kind,
    object: Object,
    /// Range of the resource version's digits in the encoded JSON.
    in_json: Range<usize>,
    in_protobuf: Range<usize>,
}

impl Recording {
    pub(crate) fn new(kind: Kind, object: &Object) -> Self {
        Self::of_digits(kind, object, object.version.to_string().len())
    }

    /// Finds the digits of `resourceVersion` in the encoded object. Encodes the object at the
    /// versions 11…1 and 22…2, and takes the bytes that differ. As in etcd, a version has 63 bits,
    /// so at most 19 digits.
    fn of_digits(kind: Kind, object: &Object, digits: usize) -> Self {
        let of = |digit: u64| (0..digits).fold(0, |number, _| 10 * number + digit);
        let (ones, twos) = (
            object.at_version(kind, of(1)),
            object.at_version(kind, of(2)),
        );
        let place = |ones: &EncodedObject, twos: &EncodedObject| {
            let mut pairs = ones.whole.iter().zip(&twos.whole);
            let first = pairs.position(|(one, two)| one != two);
            let first = first.expect("what is stored says its version");
            first..first + digits
        };
        Self {
            kind,
            in_json: place(&ones.json, &twos.json),
            in_protobuf: place(&ones.protobuf, &twos.protobuf),
            object: ones,
        }
    }

    pub(crate) fn at_version(&mut self, version: u64) -> Object {
        let text = version.to_string();
        if text.len() != self.in_json.len() {
            *self = Self::of_digits(self.kind, &self.object, text.len());
        }
        let with = |encoded: &EncodedObject, at: &Range<usize>| {
            let mut bytes = encoded.whole.to_vec();
            let place = bytes.get_mut(at.clone()).expect("it is of these bytes");
            place.copy_from_slice(text.as_bytes());
            Bytes::from(bytes)
        };
        self.object.with(
            version,
            with(&self.object.json, &self.in_json),
            with(&self.object.protobuf, &self.in_protobuf),
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn list_items_omit_kind_and_api_version() {
        let given = json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": { "name": "a", "namespace": "b", "resourceVersion": "7" },
        });
        let object = Object::new(Kind::EndpointSlice, 7, &given).unwrap();
        let item = [b"{", object.item(Media::Json)].concat();
        let item: Value = serde_json::from_slice(&item).unwrap();
        assert_eq!((item.get("kind"), item.get("apiVersion")), (None, None));
        assert_eq!(object.value(), given);
        let later = object.at_version(Kind::EndpointSlice, 9);
        assert_eq!(
            (later.version, later.key.clone()),
            (9, ("b".into(), "a".into()))
        );
        assert_eq!(
            later.value().pointer("/metadata/resourceVersion"),
            Some(&json!("9"))
        );
    }

    #[test]
    fn a_recorded_object_equals_the_stored_object_at_every_resource_version() {
        // These fields contain the same digits as the resource version, which must not confuse the
        // search for the version.
        let given = json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {
                "name": "a-7", "namespace": "b", "resourceVersion": "7", "labels": { "c": "7" },
                "annotations": { "resourceVersion": "7", "d": "\"resourceVersion\":\"7\"" },
            },
            "ports": [{ "name": "", "protocol": "TCP", "port": 7 }],
            "endpoints": [{ "addresses": ["10.0.0.7"], "conditions": {} }],
        });
        let kind = Kind::EndpointSlice;
        let object = Object::new(kind, 7, &given).unwrap();
        let mut recording = Recording::new(kind, &object);
        for version in [
            8,
            1,
            9,
            10,
            99,
            12_345,
            3,
            1_000_000,
            1_234_567,
            u64::MAX >> 1,
        ] {
            let (is, wanted) = (
                recording.at_version(version),
                object.at_version(kind, version),
            );
            assert_eq!(format!("{is:?}"), format!("{wanted:?}"));
        }
    }
}
