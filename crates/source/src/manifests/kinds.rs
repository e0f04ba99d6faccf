//! Finds kinds that look like a misspelt `Service` or another kind that the proxy reads.
//!
//! A directory may contain manifests of any kind, and the proxy silently ignores other kinds. But
//! it reports a misspelt kind, because the author expects the proxy to serve the object.

/// Kinds that the proxy reads, each with its `apiVersion`.
const PROXIED: [(&str, &str); 9] = [
    ("v1", "Service"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("v1", "Node"),
    ("networking.k8s.io/v1", "ServiceCIDR"),
    ("v1", "List"),
    ("v1", "ServiceList"),
    ("discovery.k8s.io/v1", "EndpointSliceList"),
    ("v1", "NodeList"),
    ("networking.k8s.io/v1", "ServiceCIDRList"),
];
/// Maximum number of letters in which a misspelt kind may differ from a known kind. If the known
/// kind has at most `SHORT` letters, only one letter may differ.
const TYPING_ERRORS: usize = 2;
const SHORT: usize = 5;
/// Maximum length of compared names, in letters.
const LONGEST: usize = 24;

/// Returns the reason why a document is ignored, if its kind looks like a misspelt known kind.
pub(super) fn complaint(api_version: Option<&str>, kind: Option<&str>) -> Option<String> {
    let (version, kind) = match (api_version, kind) {
        (Some(version), Some(kind)) => (version, kind),
        (None, Some(kind)) => {
            let (version, kind) = PROXIED.into_iter().find(|(_, known)| *known == kind)?;
            return Some(format!(
                "a document without apiVersion is ignored: {kind} is of {version}"
            ));
        }
        (Some(_), None) => return Some("a document without kind is ignored".to_owned()),
        (None, None) => {
            let said =
                "a document without apiVersion and kind is ignored: it is no object of Kubernetes";
            return Some(said.to_owned());
        }
    };
    let ignored = format!("kind {kind} of {version} is ignored");
    if (version, kind) == ("v1", "Endpoints") {
        return Some(format!(
            "{ignored}: give EndpointSlices of discovery.k8s.io/v1 instead"
        ));
    }
    let group = group_of(version);
    if !PROXIED.iter().any(|(known, _)| group_of(known) == group) {
        return None;
    }
    if let Some((known, _)) = PROXIED.iter().find(|(_, known)| *known == kind) {
        return Some(format!("{ignored}: it is of {known}"));
    }
    let meant = PROXIED.iter().find(|(_, known)| is_near(kind, known))?.1;
    Some(format!("{ignored}: did you mean {meant}?"))
}

/// Returns the API group: `discovery.k8s.io` for `discovery.k8s.io/v1`, and an empty text for `v1`.
fn group_of(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

fn is_near(given: &str, known: &str) -> bool {
    let allowed = if known.len() <= SHORT {
        1
    } else {
        TYPING_ERRORS
    };
    let (given, known) = (given.to_ascii_lowercase(), known.to_ascii_lowercase());
    // Compares the first letters. Otherwise, a PodList would look like a misspelt NodeList.
    let is_begun_alike = given.chars().next() == known.chars().next();
    given.len() <= LONGEST && is_begun_alike && distance(&given, &known) <= allowed
}

/// Returns the Levenshtein distance of two short names.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut next = vec![at + 1];
        for ((before, pair), same) in row.iter().zip(row.iter().skip(1)).zip(&other) {
            let replaced = before + usize::from(letter != *same);
            let inserted = next.last().copied().unwrap_or_default() + 1;
            next.push(replaced.min(inserted).min(pair + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edit_distance_counts_inserted_removed_and_replaced_letters() {
        for (one, other, wanted) in [
            ("service", "service", 0),
            ("servise", "service", 1),
            ("sevice", "service", 1),
            ("services", "service", 1),
            ("", "node", 4),
            ("node", "", 4),
            ("endpoints", "endpointslice", 4),
        ] {
            assert_eq!(distance(one, other), wanted, "{one} {other}");
        }
    }

    #[test]
    fn unrelated_kinds_are_ignored_silently() {
        for (version, kind) in [
            ("v1", "ServiceAccount"),
            ("v1", "Pod"),
            ("v1", "Secret"),
            ("v1", "ConfigMap"),
            ("v1", "PodList"),
            ("apps/v1", "Deployment"),
            ("networking.k8s.io/v1", "Ingress"),
            ("networking.k8s.io/v1", "IPAddress"),
            ("serving.knative.dev/v1", "Service"),
        ] {
            assert_eq!(
                complaint(Some(version), Some(kind)),
                None,
                "{version} {kind}"
            );
        }
        assert_eq!(complaint(None, Some("Values")), None);
        for (version, kind, end) in [
            ("v1", "service", "did you mean Service?"),
            ("v1", "Sevice", "did you mean Service?"),
            ("v1", "Endpoints", "discovery.k8s.io/v1 instead"),
            ("v1", "EndpointSlice", "it is of discovery.k8s.io/v1"),
            (
                "discovery.k8s.io/v1beta1",
                "EndpointSlice",
                "it is of discovery.k8s.io/v1",
            ),
            (
                "networking.k8s.io/v1",
                "ServiceCIDRs",
                "did you mean ServiceCIDR?",
            ),
            ("v1", "Nodes", "did you mean Node?"),
        ] {
            let told = complaint(Some(version), Some(kind)).unwrap();
            assert!(told.ends_with(end), "{told}");
        }
    }
}
