//! The messages of the API, as far as they are read or written here: one row for each field.
//!
//! Numbers and names: `generated.proto` of `k8s.io/api/{core,discovery,events,networking}/v1` and
//! of `k8s.io/apimachinery/pkg/apis/meta/v1`. What is written of an empty field: `types.go` there,
//! as a field that is no pointer is always on the wire.

use crate::resource::Kind;

/// The fields of a message: number on the wire, name in JSON, presence, content; by number.
pub(crate) type Schema = &'static [(u64, &'static str, Presence, Shape)];

/// When a field is on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Presence {
    /// Always: Go has a plain value, and writes its zero. JSON leaves that out.
    Always,
    /// If it is set: Go has a pointer or a map.
    Set,
    /// Once for each item.
    Each,
}

/// What a field holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Text,
    /// int32 and int64.
    Number,
    Bool,
    /// `metav1.Time`: whole seconds.
    Time,
    /// `metav1.MicroTime`
    MicroTime,
    IntOrString,
    /// A map of strings.
    Texts,
    /// A map of `resource.Quantity`.
    Quantities,
    /// `metav1.FieldsV1`: JSON as it is.
    Json,
    Message(Schema),
}

use Presence::{Always, Each, Set};
use Shape::{Bool, IntOrString, Json, Message, MicroTime, Number, Quantities, Text, Texts, Time};

/// The message that an object of this kind is.
pub(crate) fn of(kind: Kind) -> Schema {
    match kind {
        Kind::Node => NODE,
        Kind::Service => SERVICE,
        Kind::Event => EVENT,
        Kind::EndpointSlice => ENDPOINT_SLICE,
        Kind::ServiceCidr => SERVICE_CIDR,
    }
}

/// `resource.Quantity`
pub(super) const QUANTITY: Schema = &[(1, "string", Set, Text)];

const META: Schema = &[
    (1, "name", Always, Text),
    (2, "generateName", Always, Text),
    (3, "namespace", Always, Text),
    (4, "selfLink", Always, Text),
    (5, "uid", Always, Text),
    (6, "resourceVersion", Always, Text),
    (7, "generation", Always, Number),
    (8, "creationTimestamp", Always, Time),
    (9, "deletionTimestamp", Set, Time),
    (10, "deletionGracePeriodSeconds", Set, Number),
    (11, "labels", Set, Texts),
    (12, "annotations", Set, Texts),
    (13, "ownerReferences", Each, Message(OWNER)),
    (14, "finalizers", Each, Text),
    (17, "managedFields", Each, Message(MANAGED_FIELDS)),
];

const OWNER: Schema = &[
    (1, "kind", Always, Text),
    (3, "name", Always, Text),
    (4, "uid", Always, Text),
    (5, "apiVersion", Always, Text),
    (6, "controller", Set, Bool),
    (7, "blockOwnerDeletion", Set, Bool),
];

const MANAGED_FIELDS: Schema = &[
    (1, "manager", Always, Text),
    (2, "operation", Always, Text),
    (3, "apiVersion", Always, Text),
    (4, "time", Set, Time),
    (6, "fieldsType", Always, Text),
    (7, "fieldsV1", Set, Json),
    (8, "subresource", Always, Text),
];

/// `metav1.ListMeta`
pub(super) const LIST_META: Schema = &[
    (1, "selfLink", Always, Text),
    (2, "resourceVersion", Always, Text),
    (3, "continue", Always, Text),
    (4, "remainingItemCount", Set, Number),
];

/// `metav1.Status`
pub(super) const STATUS: Schema = &[
    (1, "metadata", Always, Message(LIST_META)),
    (2, "status", Always, Text),
    (3, "message", Always, Text),
    (4, "reason", Always, Text),
    (5, "details", Set, Message(STATUS_DETAILS)),
    (6, "code", Always, Number),
];

const STATUS_DETAILS: Schema = &[
    (1, "name", Always, Text),
    (2, "group", Always, Text),
    (3, "kind", Always, Text),
    (4, "causes", Each, Message(STATUS_CAUSE)),
    (5, "retryAfterSeconds", Always, Number),
    (6, "uid", Always, Text),
];

const STATUS_CAUSE: Schema = &[
    (1, "reason", Always, Text),
    (2, "message", Always, Text),
    (3, "field", Always, Text),
];

const CONDITION: Schema = &[
    (1, "type", Always, Text),
    (2, "status", Always, Text),
    (3, "observedGeneration", Always, Number),
    (4, "lastTransitionTime", Always, Time),
    (5, "reason", Always, Text),
    (6, "message", Always, Text),
];

const REFERENCE: Schema = &[
    (1, "kind", Always, Text),
    (2, "namespace", Always, Text),
    (3, "name", Always, Text),
    (4, "uid", Always, Text),
    (5, "apiVersion", Always, Text),
    (6, "resourceVersion", Always, Text),
    (7, "fieldPath", Always, Text),
];

const SERVICE: Schema = &[
    (1, "metadata", Always, Message(META)),
    (2, "spec", Always, Message(SERVICE_SPEC)),
    (3, "status", Always, Message(SERVICE_STATUS)),
];

const SERVICE_SPEC: Schema = &[
    (1, "ports", Each, Message(SERVICE_PORT)),
    (2, "selector", Set, Texts),
    (3, "clusterIP", Always, Text),
    (4, "type", Always, Text),
    (5, "externalIPs", Each, Text),
    (7, "sessionAffinity", Always, Text),
    (8, "loadBalancerIP", Always, Text),
    (9, "loadBalancerSourceRanges", Each, Text),
    (10, "externalName", Always, Text),
    (11, "externalTrafficPolicy", Always, Text),
    (12, "healthCheckNodePort", Always, Number),
    (13, "publishNotReadyAddresses", Always, Bool),
    (14, "sessionAffinityConfig", Set, Message(SESSION_AFFINITY)),
    (17, "ipFamilyPolicy", Set, Text),
    (18, "clusterIPs", Each, Text),
    (19, "ipFamilies", Each, Text),
    (20, "allocateLoadBalancerNodePorts", Set, Bool),
    (21, "loadBalancerClass", Set, Text),
    (22, "internalTrafficPolicy", Set, Text),
    (23, "trafficDistribution", Set, Text),
];

const SERVICE_PORT: Schema = &[
    (1, "name", Always, Text),
    (2, "protocol", Always, Text),
    (3, "port", Always, Number),
    (4, "targetPort", Always, IntOrString),
    (5, "nodePort", Always, Number),
    (6, "appProtocol", Set, Text),
];

const SESSION_AFFINITY: Schema = &[(1, "clientIP", Set, Message(CLIENT_IP))];

const CLIENT_IP: Schema = &[(1, "timeoutSeconds", Set, Number)];

const SERVICE_STATUS: Schema = &[
    (1, "loadBalancer", Always, Message(LOAD_BALANCER)),
    (2, "conditions", Each, Message(CONDITION)),
];

const LOAD_BALANCER: Schema = &[(1, "ingress", Each, Message(INGRESS))];

const INGRESS: Schema = &[
    (1, "ip", Always, Text),
    (2, "hostname", Always, Text),
    (3, "ipMode", Set, Text),
    (4, "ports", Each, Message(INGRESS_PORT)),
];

const INGRESS_PORT: Schema = &[
    (1, "port", Always, Number),
    (2, "protocol", Always, Text),
    (3, "error", Set, Text),
];

const ENDPOINT_SLICE: Schema = &[
    (1, "metadata", Always, Message(META)),
    (2, "endpoints", Each, Message(ENDPOINT)),
    (3, "ports", Each, Message(ENDPOINT_PORT)),
    (4, "addressType", Always, Text),
];

const ENDPOINT: Schema = &[
    (1, "addresses", Each, Text),
    (2, "conditions", Always, Message(ENDPOINT_CONDITIONS)),
    (3, "hostname", Set, Text),
    (4, "targetRef", Set, Message(REFERENCE)),
    (5, "deprecatedTopology", Set, Texts),
    (6, "nodeName", Set, Text),
    (7, "zone", Set, Text),
    (8, "hints", Set, Message(ENDPOINT_HINTS)),
];

const ENDPOINT_CONDITIONS: Schema = &[
    (1, "ready", Set, Bool),
    (2, "serving", Set, Bool),
    (3, "terminating", Set, Bool),
];

const ENDPOINT_HINTS: Schema = &[
    (1, "forZones", Each, Message(NAMED)),
    (2, "forNodes", Each, Message(NAMED)),
];

const NAMED: Schema = &[(1, "name", Always, Text)];

const ENDPOINT_PORT: Schema = &[
    (1, "name", Set, Text),
    (2, "protocol", Set, Text),
    (3, "port", Set, Number),
    (4, "appProtocol", Set, Text),
];

const NODE: Schema = &[
    (1, "metadata", Always, Message(META)),
    (2, "spec", Always, Message(NODE_SPEC)),
    (3, "status", Always, Message(NODE_STATUS)),
];

const NODE_SPEC: Schema = &[
    (1, "podCIDR", Always, Text),
    (2, "externalID", Always, Text),
    (3, "providerID", Always, Text),
    (4, "unschedulable", Always, Bool),
    (5, "taints", Each, Message(TAINT)),
    (7, "podCIDRs", Each, Text),
];

const TAINT: Schema = &[
    (1, "key", Always, Text),
    (2, "value", Always, Text),
    (3, "effect", Always, Text),
    (4, "timeAdded", Set, Time),
];

const NODE_STATUS: Schema = &[
    (1, "capacity", Set, Quantities),
    (2, "allocatable", Set, Quantities),
    (3, "phase", Always, Text),
    (4, "conditions", Each, Message(NODE_CONDITION)),
    (5, "addresses", Each, Message(NODE_ADDRESS)),
    (6, "daemonEndpoints", Always, Message(DAEMON_ENDPOINTS)),
    (7, "nodeInfo", Always, Message(NODE_INFO)),
    (8, "images", Each, Message(IMAGE)),
];

const NODE_CONDITION: Schema = &[
    (1, "type", Always, Text),
    (2, "status", Always, Text),
    (3, "lastHeartbeatTime", Always, Time),
    (4, "lastTransitionTime", Always, Time),
    (5, "reason", Always, Text),
    (6, "message", Always, Text),
];

const NODE_ADDRESS: Schema = &[(1, "type", Always, Text), (2, "address", Always, Text)];

const DAEMON_ENDPOINTS: Schema = &[(1, "kubeletEndpoint", Always, Message(DAEMON_ENDPOINT))];

const DAEMON_ENDPOINT: Schema = &[(1, "Port", Always, Number)];

const NODE_INFO: Schema = &[
    (1, "machineID", Always, Text),
    (2, "systemUUID", Always, Text),
    (3, "bootID", Always, Text),
    (4, "kernelVersion", Always, Text),
    (5, "osImage", Always, Text),
    (6, "containerRuntimeVersion", Always, Text),
    (7, "kubeletVersion", Always, Text),
    (8, "kubeProxyVersion", Always, Text),
    (9, "operatingSystem", Always, Text),
    (10, "architecture", Always, Text),
];

const IMAGE: Schema = &[(1, "names", Each, Text), (2, "sizeBytes", Always, Number)];

const SERVICE_CIDR: Schema = &[
    (1, "metadata", Always, Message(META)),
    (2, "spec", Always, Message(SERVICE_CIDR_SPEC)),
    (3, "status", Always, Message(SERVICE_CIDR_STATUS)),
];

const SERVICE_CIDR_SPEC: Schema = &[(1, "cidrs", Each, Text)];

const SERVICE_CIDR_STATUS: Schema = &[(1, "conditions", Each, Message(CONDITION))];

const SOURCE: Schema = &[(1, "component", Always, Text), (2, "host", Always, Text)];

const SERIES: Schema = &[
    (1, "count", Always, Number),
    (2, "lastObservedTime", Always, MicroTime),
];

const EVENT: Schema = &[
    (1, "metadata", Always, Message(META)),
    (2, "eventTime", Always, MicroTime),
    (3, "series", Set, Message(SERIES)),
    (4, "reportingController", Always, Text),
    (5, "reportingInstance", Always, Text),
    (6, "action", Always, Text),
    (7, "reason", Always, Text),
    (8, "regarding", Always, Message(REFERENCE)),
    (9, "related", Set, Message(REFERENCE)),
    (10, "note", Always, Text),
    (11, "type", Always, Text),
    (12, "deprecatedSource", Always, Message(SOURCE)),
    (13, "deprecatedFirstTimestamp", Always, Time),
    (14, "deprecatedLastTimestamp", Always, Time),
    (15, "deprecatedCount", Always, Number),
];
