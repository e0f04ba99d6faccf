//! Label and field selectors in the forms that kube-proxy uses: terms `a`, `!a`, `a=b`, `a==b` and
//! `a!=b`, joined by commas. Field selectors have no terms `a` and `!a`. As in Kubernetes, `a!=b`
//! also matches an object without the label `a`.

use crate::object::Object;
use crate::resource::Kind;
use crate::status::Status;

/// Objects that a list or a watch selects: those of a namespace (or of all), restricted by
/// selectors.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(crate) namespace: Option<String>,
    labels: Vec<Term>,
    fields: Vec<Term>,
}

#[derive(Debug)]
struct Term {
    name: String,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Exists,
    Missing,
    Is(String),
    IsNot(String),
}

impl Scope {
    pub(crate) fn new(
        kind: Kind,
        namespace: Option<String>,
        labels: &str,
        fields: &str,
    ) -> Result<Self, Status> {
        let of =
            |selector: &str, text: &str| terms(text).map_err(|term| refused(selector, text, term));
        let scope = Self {
            namespace,
            labels: of("labelSelector", labels)?,
            fields: of("fieldSelector", fields)?,
        };
        let resource = kind.resource();
        let unknown = scope.fields.iter().find(|Term { name, test }| {
            let is_known = name == "metadata.name"
                || (name == "metadata.namespace" && resource.namespaced)
                || resource.fields.contains(&&**name);
            !is_known || matches!(test, Test::Exists | Test::Missing)
        });
        match unknown {
            Some(Term { name, .. }) => Err(Status::bad_request(format!(
                "fieldSelector: {name:?} is not selectable so in {}",
                resource.plural
            ))),
            None => Ok(scope),
        }
    }

    /// Returns true if the request has label or field selectors.
    pub(crate) fn selects(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    pub(crate) fn contains(&self, object: &Object) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| namespace == object.namespace())
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        let field = |term: &Term| term.matches(Some(object.field(&term.name)));
        let label = |term: &Term| term.matches(object.label(&term.name));
        self.contains(object) && self.fields.iter().all(field) && self.labels.iter().all(label)
    }
}

impl Term {
    fn matches(&self, value: Option<&str>) -> bool {
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
            Test::Is(wanted) => value == Some(wanted),
            Test::IsNot(unwanted) => value != Some(unwanted),
        }
    }
}

/// Parses a selector into its terms. Returns the first invalid term as the error.
fn terms(text: &str) -> Result<Vec<Term>, &str> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let terms = text.split(',').map(|text| term(text.trim()).ok_or(text));
    terms.collect()
}

fn term(text: &str) -> Option<Term> {
    let (name, test) = if let Some(name) = text.strip_prefix('!') {
        (name, Test::Missing)
    } else if let Some((name, value)) = text.split_once("!=") {
        (name, Test::IsNot(word(value)?))
    } else if let Some((name, value)) = text.split_once('=') {
        (
            name,
            Test::Is(word(value.strip_prefix('=').unwrap_or(value))?),
        )
    } else {
        (text, Test::Exists)
    };
    let name = word(name).filter(|name| !name.is_empty())?;
    Some(Term { name, test })
}

fn word(text: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
    let text = text.trim();
    text.chars().all(fits).then(|| text.to_owned())
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
    fn label_selectors_match_as_in_kubernetes() {
        for yes in [
            "",
            " ",
            "app",
            "app=web",
            "app == web",
            "app!=api",
            "none!=x",
            "!none",
            "! none",
            "e=",
            "app,!none,app=web,x.io/n=5,e",
        ] {
            assert_eq!(selected(yes, ""), Ok(true), "{yes:?}");
        }
        for no in ["none", "app=api", "app!=web", "!app", "app,none", "none="] {
            assert_eq!(selected(no, ""), Ok(false), "{no:?}");
        }
        for bad in [
            ",",
            "app,",
            "=web",
            "app in (web)",
            "app=a b",
            "app>1",
            "!",
            "a!b",
        ] {
            let code = selected(bad, "").map_err(|status| status.code);
            assert_eq!(code, Err(400), "{bad:?}");
        }
    }

    #[test]
    fn field_selectors_match_as_in_kubernetes() {
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
            "spec.clusterIP=None",
            "metadata.namespace=x",
        ] {
            assert_eq!(selected("", no), Ok(false), "{no:?}");
        }
        for bad in [
            "metadata.name",
            "!metadata.name",
            "spec.ports=1",
            "metadata.uid=1",
        ] {
            let code = selected("", bad).map_err(|status| status.code);
            assert_eq!(code, Err(400), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_selectors_never_panic_the_evaluation(text in "[a-z!=<>(), \\\\/.é]{0,24}") {
            let _ = selected(&text, "");
            let _ = selected("", &text);
        }
    }
}
