//! Label and field selectors.
//!
//! The label grammar is the whole of it: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`, `a>1`, `a<1`,
//! joined by commas. As in Kubernetes, `!=` and `notin` also match an object without the label.

use crate::object::Object;
use crate::resource::Kind;
use crate::status::Status;

/// What a list or a watch is about: a namespace, or all, and in it the objects that the selectors match.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(crate) namespace: Option<String>,
    labels: Vec<LabelTerm>,
    fields: Vec<FieldTerm>,
}

#[derive(Debug, PartialEq)]
struct LabelTerm {
    key: String,
    test: Test,
}

#[derive(Debug, PartialEq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
    Above(i64),
    Below(i64),
}

#[derive(Debug, PartialEq)]
struct FieldTerm {
    field: String,
    value: String,
    equal: bool,
}

impl Scope {
    pub(crate) fn new(
        kind: Kind,
        namespace: Option<String>,
        labels: &str,
        fields: &str,
    ) -> Result<Self, Status> {
        Ok(Self {
            namespace,
            labels: label_terms(labels)?,
            fields: field_terms(kind, fields)?,
        })
    }

    /// Whether selectors narrow the namespace down.
    pub(crate) fn selects(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    pub(crate) fn contains(&self, object: &Object) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| namespace == object.namespace())
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.contains(object)
            && self
                .fields
                .iter()
                .all(|term| (object.field(&term.field) == term.value) == term.equal)
            && self
                .labels
                .iter()
                .all(|term| term.matches(object.label(&term.key)))
    }
}

impl LabelTerm {
    fn matches(&self, label: Option<&str>) -> bool {
        let number = || label.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => {
                label.is_some_and(|label| values.iter().any(|value| value == label))
            }
            Test::NotIn(values) => {
                label.is_none_or(|label| values.iter().all(|value| value != label))
            }
            Test::Exists => label.is_some(),
            Test::Missing => label.is_none(),
            Test::Above(bound) => number().is_some_and(|number| number > *bound),
            Test::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

fn label_terms(text: &str) -> Result<Vec<LabelTerm>, Status> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut inside = false;
    text.split(|c| {
        inside = (inside || c == '(') && c != ')';
        c == ',' && !inside
    })
    .map(|term| label_term(term.trim()).ok_or_else(|| refused("labelSelector", text, term)))
    .collect()
}

fn label_term(term: &str) -> Option<LabelTerm> {
    if let Some(key) = term.strip_prefix('!') {
        return Some(LabelTerm {
            key: label_key(key.trim())?,
            test: Test::Missing,
        });
    }
    let end = term
        .find(|c: char| c.is_whitespace() || "=!<>(".contains(c))
        .unwrap_or(term.len());
    let (key, rest) = term.split_at(end);
    let rest = rest.trim_start();
    let number = |text: &str| text.trim().parse().ok();
    let test = if rest.is_empty() {
        Test::Exists
    } else if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
        Test::In(vec![label_value(value)?])
    } else if let Some(value) = rest.strip_prefix("!=") {
        Test::NotIn(vec![label_value(value)?])
    } else if let Some(value) = rest.strip_prefix('>') {
        Test::Above(number(value)?)
    } else if let Some(value) = rest.strip_prefix('<') {
        Test::Below(number(value)?)
    } else if let Some(values) = rest.strip_prefix("notin") {
        Test::NotIn(label_values(values)?)
    } else {
        Test::In(label_values(rest.strip_prefix("in")?)?)
    };
    Some(LabelTerm {
        key: label_key(key)?,
        test,
    })
}

fn label_values(text: &str) -> Option<Vec<String>> {
    text.trim()
        .strip_prefix('(')?
        .strip_suffix(')')?
        .split(',')
        .map(label_value)
        .collect()
}

fn label_key(key: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (!key.is_empty() && key.chars().all(fits)).then(|| key.to_owned())
}

fn label_value(value: &str) -> Option<String> {
    let value = value.trim();
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (value.len() <= 63 && value.chars().all(fits)).then(|| value.to_owned())
}

fn field_terms(kind: Kind, text: &str) -> Result<Vec<FieldTerm>, Status> {
    let resource = kind.resource();
    unescaped_split(text)
        .into_iter()
        .filter(|term| !term.is_empty())
        .map(|term| {
            let (field, value, equal) =
                split_field(term).ok_or_else(|| refused("fieldSelector", text, term))?;
            let known = field == "metadata.name"
                || (field == "metadata.namespace" && resource.namespaced)
                || resource.fields.contains(&field);
            if !known {
                let message = format!(
                    "fieldSelector: {field:?} is not selectable in {}",
                    resource.plural
                );
                return Err(Status::bad_request(message));
            }
            Ok(FieldTerm {
                field: field.to_owned(),
                value: unescape(value),
                equal,
            })
        })
        .collect()
}

/// Splits at commas that no backslash precedes.
fn unescaped_split(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|c| {
        let split = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        split
    })
    .collect()
}

fn split_field(term: &str) -> Option<(&str, &str, bool)> {
    let (field, value) = term.split_once('=')?;
    Some(match field.strip_suffix('!') {
        Some(field) => (field, value, false),
        None => (field, value.strip_prefix('=').unwrap_or(value), true),
    })
}

fn unescape(value: &str) -> String {
    let mut escaped = false;
    let plain = |c: &char| {
        escaped = *c == '\\' && !escaped;
        !escaped
    };
    value.chars().filter(plain).collect()
}

fn refused(selector: &str, text: &str, term: &str) -> Status {
    Status::bad_request(format!("{selector} {text:?}: cannot read {term:?}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn selected(labels: &str, fields: &str) -> Result<bool, Status> {
        let object = Object::new(
            Kind::Service,
            1,
            &json!({
                "metadata": { "name": "web", "namespace": "default", "labels": { "app": "web", "x.io/n": "5", "e": "" } },
                "spec": { "clusterIP": "10.0.0.1" },
            }),
        )
        .unwrap();
        Ok(Scope::new(Kind::Service, None, labels, fields)?.matches(&object))
    }

    #[test]
    fn labels() {
        for yes in [
            "",
            " ",
            "app",
            "app=web",
            "app == web",
            "app!=api",
            "none!=x",
            "app in (api, web)",
            "app in(web)",
            "none notin (a)",
            "app notin (a,b),x.io/n",
            "!none",
            "! none",
            "e=",
            "e in ()",
            "x.io/n>4",
            "x.io/n < 6",
            "app,!none,app in (web,x),e",
        ] {
            assert_eq!(selected(yes, ""), Ok(true), "{yes:?}");
        }
        for no in [
            "none",
            "app=api",
            "app!=web",
            "!app",
            "app in (api)",
            "app notin (web)",
            "app>1",
            "x.io/n>5",
            "x.io/n<5",
            "app,none",
            "none in (a)",
            "none=",
        ] {
            assert_eq!(selected(no, ""), Ok(false), "{no:?}");
        }
        for bad in [
            ",",
            "app,",
            "=web",
            "app in web",
            "app in (web",
            "app between (a)",
            "app=a b",
            "app>x",
            "!",
            "a!b",
        ] {
            assert_eq!(
                selected(bad, "").map_err(|status| status.code),
                Err(400),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn fields() {
        for yes in [
            "",
            "metadata.name=web",
            "metadata.name==web,metadata.namespace=default",
            "spec.clusterIP!=None",
            "spec.clusterIP=10.0.0.1",
            "spec.type=",
        ] {
            assert_eq!(selected("", yes), Ok(true), "{yes:?}");
        }
        for no in [
            "metadata.name!=web",
            "metadata.name=a\\,b",
            "spec.clusterIP=None",
            "metadata.namespace=x",
        ] {
            assert_eq!(selected("", no), Ok(false), "{no:?}");
        }
        for bad in ["metadata.name", "spec.ports=1", "metadata.uid=1"] {
            assert_eq!(
                selected("", bad).map_err(|status| status.code),
                Err(400),
                "{bad:?}"
            );
        }
        let terms = field_terms(Kind::Service, "metadata.name=a\\,b\\=\\\\c,spec.type!=x")
            .map(|terms| terms.len());
        assert_eq!(terms, Ok(2));
        assert_eq!(unescape("a\\,b\\=\\\\c"), "a,b=\\c");
    }

    proptest! {
        #[test]
        fn whatever_comes_gets_an_answer(text in "[a-z!=<>(), \\\\/.é]{0,24}") {
            let _ = selected(&text, "");
            let _ = selected("", &text);
        }
    }
}
