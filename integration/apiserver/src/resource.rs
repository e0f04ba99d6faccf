//! Table of the API resources that the fake API server serves.

/// Kind of a Kubernetes object, and of the collection with all objects of this kind.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Kind {
    /// A Node (`v1`).
    Node,
    /// A Service (`v1`).
    Service,
    /// An Event (`events.k8s.io/v1`).
    Event,
    /// An EndpointSlice (`discovery.k8s.io/v1`).
    EndpointSlice,
    /// A ServiceCIDR (`networking.k8s.io/v1`).
    ServiceCidr,
}

/// Names and properties of a [`Kind`] in the API.
#[derive(Debug)]
pub(crate) struct Resource {
    /// API group. Empty for the core group.
    pub(crate) group: &'static str,
    /// Value of the field `kind` in objects.
    pub(crate) kind: &'static str,
    /// Name of the collection in URL paths, such as `endpointslices`.
    pub(crate) plural: &'static str,
    pub(crate) namespaced: bool,
    /// Fields that field selectors may name, besides `metadata.name` and `metadata.namespace`.
    pub(crate) fields: &'static [&'static str],
    /// JSON after the metadata of a bookmark's object, which has no content: a Go server writes
    /// empty values for all fields without `omitempty`.
    pub(crate) empty: &'static str,
}

/// API version of every group that the fake API server serves.
pub(crate) const VERSION: &str = "v1";

const RESOURCES: &[(Kind, Resource)] = &[
    (
        Kind::Node,
        Resource {
            group: "",
            kind: "Node",
            plural: "nodes",
            namespaced: false,
            fields: &["spec.unschedulable"],
            empty: r#","spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"","systemUUID":"","bootID":"","kernelVersion":"","osImage":"","containerRuntimeVersion":"","kubeletVersion":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}"#,
        },
    ),
    (
        Kind::Service,
        Resource {
            group: "",
            kind: "Service",
            plural: "services",
            namespaced: true,
            fields: &["spec.clusterIP", "spec.type"],
            empty: r#","spec":{},"status":{"loadBalancer":{}}"#,
        },
    ),
    (
        Kind::Event,
        Resource {
            group: "events.k8s.io",
            kind: "Event",
            plural: "events",
            namespaced: true,
            fields: &[
                "regarding.kind",
                "regarding.namespace",
                "regarding.name",
                "regarding.uid",
                "reason",
                "reportingController",
                "type",
            ],
            empty: r#","eventTime":null,"regarding":{},"deprecatedSource":{},"deprecatedFirstTimestamp":null,"deprecatedLastTimestamp":null"#,
        },
    ),
    (
        Kind::EndpointSlice,
        Resource {
            group: "discovery.k8s.io",
            kind: "EndpointSlice",
            plural: "endpointslices",
            namespaced: true,
            fields: &[],
            empty: r#","addressType":"","endpoints":null,"ports":null"#,
        },
    ),
    (
        Kind::ServiceCidr,
        Resource {
            group: "networking.k8s.io",
            kind: "ServiceCIDR",
            plural: "servicecidrs",
            namespaced: false,
            fields: &[],
            empty: r#","spec":{},"status":{}"#,
        },
    ),
];

impl Kind {
    /// Returns each kind with its row of the table.
    pub(crate) fn all() -> impl Iterator<Item = (Self, &'static Resource)> {
        RESOURCES.iter().map(|(kind, resource)| (*kind, resource))
    }

    pub(crate) fn resource(self) -> &'static Resource {
        let row = RESOURCES.iter().find(|(kind, _)| *kind == self);
        &row.expect("every kind has a row").1
    }

    /// Returns the kind with this `apiVersion` and `kind`, or `None` if the fake API server does
    /// not serve it.
    pub(crate) fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::all()
            .find(|(_, row)| row.kind == kind && row.api_version() == api_version)
            .map(|(kind, _)| kind)
    }

    /// Returns the kind whose paths have this API group (empty for the core group) and this plural.
    pub(crate) fn at(group: &str, plural: &str) -> Option<Self> {
        Self::all()
            .find(|(_, row)| row.group == group && row.plural == plural)
            .map(|(kind, _)| kind)
    }
}

impl Resource {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            VERSION.to_owned()
        } else {
            format!("{}/{VERSION}", self.group)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookmarks_of_each_kind_are_valid_json() {
        for (kind, row) in Kind::all() {
            let text = format!("{{\"metadata\":{{}}{}}}", row.empty);
            assert!(
                serde_json::from_str::<serde_json::Value>(&text).is_ok(),
                "{kind:?}: {text}"
            );
            assert_eq!(Kind::of(&row.api_version(), row.kind), Some(kind));
            assert_eq!(Kind::at(row.group, row.plural), Some(kind));
        }
    }
}
