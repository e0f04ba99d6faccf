//! Reads the documents of a manifest file, and the objects in them.
//!
//! - JSON is parsed as YAML.
//! - Each document is parsed twice: first its `apiVersion` and `kind`, which may come last in the
//!   document, and then the fields of that kind. So errors have an exact position, and documents of
//!   other kinds may have any content.
//! - This module splits the text into documents itself, because it parses each document as its own
//!   kind. A line that begins with `---`, alone or before white space, is always a boundary (YAML
//!   1.2, `c-forbidden`).

use std::fmt;

use proxy::Kind;
use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::kinds::complaint;
use crate::decode::{DecodedObject, Wire as _, wire};
use crate::yaml;

/// An object of a manifest file, and the line at which its document begins.
#[derive(Debug)]
pub(super) struct LocatedObject {
    pub(super) line: usize,
    /// The object, or the reason why the document is ignored.
    pub(super) object: Result<DecodedObject, String>,
}

/// Error of parsing a manifest file, with its line and column.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}, in {near:?}")]
pub(super) struct ParseError {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) message: String,
    /// Text around the error's position, from the same line.
    pub(super) near: String,
}

/// Decodes a file's objects of the kinds that the proxy uses. Fails at the first document with an
/// error.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<LocatedObject>, ParseError> {
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to()))?;
    let mut located = Vec::new();
    for (start, document) in documents(text) {
        let line = start + lines_before_content(document);
        let mut objects = Vec::new();
        read_document(document, &mut objects).map_err(|error| {
            let at = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
            let (line, column) = error.location().map_or((line, 1), |place| {
                (
                    (start - 1).saturating_add(at(place.line())),
                    at(place.column()),
                )
            });
            ParseError {
                line,
                column,
                message: yaml::message(&error),
                near: near(
                    text.lines().nth(line.saturating_sub(1)).unwrap_or_default(),
                    column,
                ),
            }
        })?;
        located.extend(
            objects
                .into_iter()
                .map(|object| LocatedObject { line, object }),
        );
    }
    Ok(located)
}

fn not_utf8(bytes: &[u8], at: usize) -> ParseError {
    let before = bytes.get(..at).unwrap_or_default();
    let line_start = before
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |i| i + 1);
    ParseError {
        line: before.split(|b| *b == b'\n').count(),
        column: 1 + at - line_start,
        message: "not UTF-8 text".to_owned(),
        near: String::from_utf8_lossy(before.get(line_start..).unwrap_or_default()).into_owned(),
    }
}

/// Returns the text around a column of a line. Columns are counted from 1, in characters.
fn near(line: &str, column: usize) -> String {
    const MOST: usize = 60;
    let skipped = column.saturating_sub(MOST / 2);
    let text: String = line.chars().skip(skipped).take(MOST).collect();
    text.trim().to_owned()
}

/// Splits the text of a manifest file into YAML documents.
pub(crate) fn of(text: &str) -> impl Iterator<Item = &str> {
    documents(text).map(|(_, document)| document)
}

/// Splits a text into documents, each with the number of its first line, counted from 1.
fn documents(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut starts = vec![(1, 0)];
    let mut offset = 0;
    for (i, line) in text.split_inclusive('\n').enumerate() {
        if offset > 0
            && let Some(rest) = line.strip_prefix("---")
            && rest.chars().next().is_none_or(char::is_whitespace)
        {
            starts.push((i + 1, offset));
        }
        offset += line.len();
    }
    let ends: Vec<usize> = starts
        .iter()
        .skip(1)
        .map(|(_, offset)| *offset)
        .chain([text.len()])
        .collect();
    starts
        .into_iter()
        .zip(ends)
        .filter_map(|((line, start), end)| Some((line, text.get(start..end)?)))
}

/// Returns the number of lines before a document's content: separators, comments and white space.
fn lines_before_content(document: &str) -> usize {
    document
        .lines()
        .take_while(|line| {
            let line = line.trim_start_matches('\u{feff}');
            let line = line.strip_prefix("---").unwrap_or(line).trim();
            line.is_empty() || line.starts_with('#')
        })
        .count()
}

fn read_document(
    text: &str,
    objects: &mut Vec<Result<DecodedObject, String>>,
) -> Result<(), serde_saphyr::Error> {
    // These limits admit a file with every object of a large cluster, and reject a YAML alias bomb.
    let options = || {
        serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_events: 100_000_000,
                max_nodes: 100_000_000,
                max_total_scalar_bytes: 1 << 30,
            },
        }
    };
    let header: Option<Header> = serde_saphyr::from_str_with_options(text, options())?;
    let Some(header) = header else {
        return Ok(());
    };
    let node = ObjectReader {
        header: &header,
        target: header.target(),
        objects,
    };
    serde_saphyr::with_deserializer_from_str_with_options(text, options(), |deserializer| {
        node.deserialize(deserializer)
    })
}

/// Fields of a document that determine its type.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
    items: Option<Vec<Header>>,
}

/// Type that a document is decoded as.
#[derive(Debug, Clone, Copy, PartialEq)]
enum DocumentType {
    Object(Kind),
    /// A list whose items have the given kind. If the kind is `None`, each item states its own
    /// kind.
    List(Option<Kind>),
    Other,
}

impl Header {
    fn target(&self) -> DocumentType {
        let core = self.api_version.as_deref() == Some("v1");
        let discovery = self.api_version.as_deref() == Some("discovery.k8s.io/v1");
        let networking = self.api_version.as_deref() == Some("networking.k8s.io/v1");
        match self.kind.as_deref().unwrap_or_default() {
            "Service" if core => DocumentType::Object(Kind::Service),
            "Node" if core => DocumentType::Object(Kind::Node),
            "EndpointSlice" if discovery => DocumentType::Object(Kind::EndpointSlice),
            "ServiceCIDR" if networking => DocumentType::Object(Kind::ServiceCidr),
            "List" if core => DocumentType::List(None),
            "ServiceList" if core => DocumentType::List(Some(Kind::Service)),
            "NodeList" if core => DocumentType::List(Some(Kind::Node)),
            "EndpointSliceList" if discovery => DocumentType::List(Some(Kind::EndpointSlice)),
            "ServiceCIDRList" if networking => DocumentType::List(Some(Kind::ServiceCidr)),
            _ => DocumentType::Other,
        }
    }
}

/// Reader that decodes a document as the type `target`, and adds its objects to `objects`.
struct ObjectReader<'a> {
    header: &'a Header,
    target: DocumentType,
    objects: &'a mut Vec<Result<DecodedObject, String>>,
}

impl<'de> DeserializeSeed<'de> for ObjectReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let object = match self.target {
            DocumentType::Object(kind) => match kind {
                Kind::Service => wire::Service::deserialize(deserializer)?.decode(),
                Kind::EndpointSlice => wire::EndpointSlice::deserialize(deserializer)?.decode(),
                Kind::Node => wire::Node::deserialize(deserializer)?.decode(),
                Kind::ServiceCidr => wire::ServiceCidr::deserialize(deserializer)?.decode(),
            },
            DocumentType::List(_) => return deserializer.deserialize_map(self),
            DocumentType::Other => {
                let Header {
                    api_version, kind, ..
                } = self.header;
                let complaint = complaint(api_version.as_deref(), kind.as_deref());
                self.objects.extend(complaint.map(Err));
                return IgnoredAny::deserialize(deserializer).map(drop);
            }
        };
        self.objects
            .push(object.map_err(|unnamed| unnamed.to_string()));
        Ok(())
    }
}

impl<'de> Visitor<'de> for ObjectReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let items = self.header.items.as_deref().unwrap_or_default();
        let of = match self.target {
            DocumentType::List(of) => of,
            _ => None,
        };
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" && self.header.items.is_some() {
                map.next_value_seed(Items {
                    headers: items,
                    of,
                    objects: &mut *self.objects,
                })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Reader of a list's items, each with its own header.
struct Items<'a> {
    headers: &'a [Header],
    of: Option<Kind>,
    objects: &'a mut Vec<Result<DecodedObject, String>>,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        for header in self.headers {
            let target = match self.of {
                Some(kind) if header.kind.is_none() => DocumentType::Object(kind),
                _ => header.target(),
            };
            let item = ObjectReader {
                header,
                target,
                objects: &mut *self.objects,
            };
            if seq.next_element_seed(item)?.is_none() {
                return Err(A::Error::custom("the list ends early"));
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn objects(text: &str) -> Vec<String> {
        read(text.as_bytes())
            .unwrap()
            .into_iter()
            .map(|located| format!("{} {}", located.line, located.object.unwrap().key))
            .collect()
    }

    fn broken(text: &str) -> ParseError {
        read(text.as_bytes()).unwrap_err()
    }

    const SERVICE: &str =
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1}\n";

    #[test]
    fn manifest_documents_keep_their_line_numbers() {
        let text = format!("# one\n---\n{SERVICE}---\n\n# two\n--- # three\n{SERVICE}...\n");
        assert_eq!(
            objects(&text),
            ["3 Service default/web", "11 Service default/web"]
        );
        assert_eq!(objects(""), [""; 0]);
        assert_eq!(objects("---\n---\n# nothing\n"), [""; 0]);
        assert_eq!(
            objects(&SERVICE.replace('\n', "\r\n")),
            ["1 Service default/web"]
        );
        assert_eq!(
            objects(&format!("\u{feff}{SERVICE}")),
            ["1 Service default/web"]
        );
    }

    #[test]
    fn manifests_of_unrelated_kinds_may_have_any_fields() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nspec: {ports: x, clusterIP: [1]}\nstatus: 5\n---\n\
                    apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: x}\nspec: 7\n---\n\
                    apiVersion: v1\nkind: ConfigMap\n---\n";
        assert_eq!(
            objects(&format!("{text}{SERVICE}")),
            ["14 Service default/web"]
        );
    }

    /// Checks that a misspelled kind such as `Servise` is not ignored silently.
    #[test]
    fn a_misspelled_kind_is_reported() {
        let told = |text: &str| -> Vec<String> {
            let located = read(text.as_bytes()).unwrap().into_iter();
            located
                .filter_map(|located| Some(format!("{}: {}", located.line, located.object.err()?)))
                .collect()
        };
        let wrong = SERVICE.replace("Service", "Servise");
        assert_eq!(
            told(&format!("{SERVICE}---\n{wrong}")),
            ["6: kind Servise of v1 is ignored: did you mean Service?"]
        );
        let listed = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: discovery.k8s.io/v1, kind: Endpointslice}\n";
        assert_eq!(
            told(listed),
            [
                "1: kind Endpointslice of discovery.k8s.io/v1 is ignored: did you mean EndpointSlice?"
            ]
        );
        assert_eq!(
            told("kind: Service\nmetadata: {name: web}\n"),
            ["1: a document without apiVersion is ignored: Service is of v1"]
        );
        assert_eq!(
            told("just: text\n"),
            ["1: a document without apiVersion and kind is ignored: it is no object of Kubernetes"]
        );
    }

    #[test]
    fn manifest_lists_are_parsed_with_kind_before_or_after_items() {
        let list = "items:\n- metadata: {name: web}\n  apiVersion: v1\n  kind: Service\n\
                    - {apiVersion: v1, kind: ConfigMap, spec: 5}\n\
                    - {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Node, metadata: {name: n}}]}\n\
                    kind: List\napiVersion: v1\n";
        assert_eq!(objects(list), ["1 Service default/web", "1 Node n"]);
        let typed = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems: [{metadata: {name: a}}]\n";
        assert_eq!(objects(typed), ["1 EndpointSlice default/a"]);
        assert_eq!(
            objects("apiVersion: v1\nkind: List\nitems: null\n"),
            [""; 0]
        );
    }

    #[test]
    fn json_manifests_are_parsed() {
        let json = "{\n\t\"kind\": \"Service\",\n\t\"apiVersion\": \"v1\",\n\t\"metadata\": {\n\t\t\"name\": \"web\"\n\t},\n\
                    \t\"spec\": {\"clusterIP\": \"10.96.0.1\", \"ports\": [{\"port\": 80, \"name\": \"\\u0061\"}]}\n}\n";
        assert_eq!(objects(json), ["1 Service default/web"]);
        let long = format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"web\",\"annotations\":{{\"a\":\"{}\"}}}}}}",
            "x".repeat(5000)
        );
        assert_eq!(objects(&long), ["1 Service default/web"]);
    }

    #[test]
    fn a_manifest_error_has_its_line_and_column() {
        let at = |broken: ParseError| (broken.line, broken.column);
        let typed = "spec:\n  clusterIP: 10.96.0.1\n  ports:\n  - port: http\n";
        let text =
            format!("{SERVICE}---\napiVersion: v1\nkind: Service\nmetadata: {{name: b}}\n{typed}");
        let error = broken(&text);
        assert_eq!((error.line, error.column), (12, 11), "{error}");
        assert_eq!(error.near, "- port: http");
        assert!(!error.message.contains("line"), "{error}");
        assert_eq!(at(broken(&format!("{SERVICE}---\nkind: [\n"))).0, 6);
        assert_eq!(
            at(broken(&format!("{SERVICE}---\nkind: a\nkind: b\n"))).0,
            7
        );
        assert_eq!(at(broken("a: b\n  c: d\n")).0, 2);
        assert_eq!(
            read(b"a: b\nc: \xff\n").unwrap_err().to_string(),
            "2:4: not UTF-8 text, in \"c: \""
        );
        let json = "{\"apiVersion\": \"v1\",\n \"kind\": \"Service\",\n \"spec\": {\"ports\": [{\"port\": \"x\"}]}}";
        assert_eq!(at(broken(json)), (3, 30));
    }

    #[test]
    fn a_yaml_alias_bomb_is_rejected() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..12 {
            let alias = vec![format!("*a{}", i - 1); 10].join(", ");
            text = format!("{text}a{i}: &a{i} [{alias}]\n");
        }
        assert!(read(text.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_manifest_text_never_panics_the_parser(text in "(\\PC|\n|---\n|kind: List\n|apiVersion: v1\n|items:\n|- ){0,40}") {
            let _ = read(text.as_bytes());
        }

        #[test]
        fn damaged_manifests_never_panic_the_parser(at in 0..SERVICE.len(), with in "\\PC{0,3}") {
            let mut text = SERVICE.to_owned();
            text.replace_range(at..=at, &with);
            let _ = read(text.as_bytes());
        }
    }
}
