//! Tests that JSON and protobuf decode to equal objects, and that decoding ends for any bytes.

use proptest::prelude::*;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::{Map, Value, json};

use super::*;
use crate::decode::json::{event as json_event, object as from_json, status as json_status};

/// Type of a protobuf message's field in these tests.
enum Shape {
    Text,
    Number,
    Flag,
    /// Time in the format of RFC 3339, in whole seconds.
    Time,
    /// A map of texts.
    Map,
    Texts,
    Message(Schema),
    Messages(Schema),
}

/// Fields of a message, each with its number, name, presence, and type. The presence states whether
/// Go writes an empty value.
type Schema = &'static [(u32, &'static str, Presence, Shape)];

#[derive(PartialEq)]
enum Presence {
    Always,
    IfGiven,
}

use Presence::{Always, IfGiven};
use Shape::{Flag, Message as One, Messages as Many, Number, Text as Words, Texts, Time};

/// Fields of `metadata`, including fields that the decoder ignores.
const METADATA: Schema = &[
    (1, "name", Always, Words),
    (2, "generateName", Always, Words),
    (3, "namespace", Always, Words),
    (5, "uid", Always, Words),
    (6, "resourceVersion", Always, Words),
    (7, "generation", Always, Number),
    (8, "creationTimestamp", Always, Time),
    (9, "deletionTimestamp", IfGiven, Time),
    (11, "labels", IfGiven, Shape::Map),
    (12, "annotations", IfGiven, Shape::Map),
    (14, "finalizers", IfGiven, Texts),
];
const NAME: Schema = &[(1, "name", Always, Words)];

const SERVICE: Schema = &[
    (1, "metadata", Always, One(METADATA)),
    (
        2,
        "spec",
        Always,
        One(&[
            (
                1,
                "ports",
                IfGiven,
                Many(&[
                    (1, "name", Always, Words),
                    (2, "protocol", Always, Words),
                    (3, "port", Always, Number),
                    (5, "nodePort", Always, Number),
                    (6, "appProtocol", IfGiven, Words),
                ]),
            ),
            (2, "selector", IfGiven, Shape::Map),
            (3, "clusterIP", Always, Words),
            (4, "type", Always, Words),
            (5, "externalIPs", IfGiven, Texts),
            (7, "sessionAffinity", Always, Words),
            (9, "loadBalancerSourceRanges", IfGiven, Texts),
            (11, "externalTrafficPolicy", Always, Words),
            (12, "healthCheckNodePort", Always, Number),
            (13, "publishNotReadyAddresses", Always, Flag),
            (
                14,
                "sessionAffinityConfig",
                IfGiven,
                One(&[(
                    1,
                    "clientIP",
                    IfGiven,
                    One(&[(1, "timeoutSeconds", IfGiven, Number)]),
                )]),
            ),
            (18, "clusterIPs", IfGiven, Texts),
            (19, "ipFamilies", IfGiven, Texts),
            (22, "internalTrafficPolicy", IfGiven, Words),
        ]),
    ),
    (
        3,
        "status",
        Always,
        One(&[(
            1,
            "loadBalancer",
            Always,
            One(&[(
                1,
                "ingress",
                IfGiven,
                Many(&[
                    (1, "ip", Always, Words),
                    (2, "hostname", Always, Words),
                    (3, "ipMode", IfGiven, Words),
                ]),
            )]),
        )]),
    ),
];

const ENDPOINT_SLICE: Schema = &[
    (1, "metadata", Always, One(METADATA)),
    (
        2,
        "endpoints",
        IfGiven,
        Many(&[
            (1, "addresses", IfGiven, Texts),
            (
                2,
                "conditions",
                Always,
                One(&[
                    (1, "ready", IfGiven, Flag),
                    (2, "serving", IfGiven, Flag),
                    (3, "terminating", IfGiven, Flag),
                ]),
            ),
            (5, "deprecatedTopology", IfGiven, Shape::Map),
            (6, "nodeName", IfGiven, Words),
            (7, "zone", IfGiven, Words),
            (
                8,
                "hints",
                IfGiven,
                One(&[
                    (1, "forZones", IfGiven, Many(NAME)),
                    (2, "forNodes", IfGiven, Many(NAME)),
                ]),
            ),
        ]),
    ),
    (
        3,
        "ports",
        IfGiven,
        Many(&[
            (1, "name", IfGiven, Words),
            (2, "protocol", IfGiven, Words),
            (3, "port", IfGiven, Number),
        ]),
    ),
    (4, "addressType", Always, Words),
];

const NODE: Schema = &[
    (1, "metadata", Always, One(METADATA)),
    (
        2,
        "spec",
        Always,
        One(&[
            (1, "podCIDR", Always, Words),
            (4, "unschedulable", Always, Flag),
            (
                5,
                "taints",
                IfGiven,
                Many(&[(1, "key", Always, Words), (3, "effect", Always, Words)]),
            ),
            (7, "podCIDRs", IfGiven, Texts),
        ]),
    ),
    (
        3,
        "status",
        Always,
        One(&[(
            5,
            "addresses",
            IfGiven,
            Many(&[(1, "type", Always, Words), (2, "address", Always, Words)]),
        )]),
    ),
];

const SERVICE_CIDR: Schema = &[
    (1, "metadata", Always, One(METADATA)),
    (2, "spec", Always, One(&[(1, "cidrs", IfGiven, Texts)])),
];

fn schema(kind: Kind) -> Schema {
    match kind {
        Kind::Service => SERVICE,
        Kind::EndpointSlice => ENDPOINT_SLICE,
        Kind::Node => NODE,
        Kind::ServiceCidr => SERVICE_CIDR,
    }
}

fn put(number: u32, content: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn put_number(number: u32, value: u64, out: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value, out);
}

fn words(value: &Value) -> &[u8] {
    value.as_str().unwrap_or_default().as_bytes()
}

/// Encodes an object in protobuf, as Kubernetes' Go code does.
fn encoded(schema: Schema, object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, name, presence, shape) in schema {
        let value = object.get(*name).unwrap_or(&Value::Null);
        if value.is_null() && *presence == IfGiven {
            continue;
        }
        let elements = value.as_array().into_iter().flatten();
        match shape {
            Words => put(*number, words(value), &mut out),
            Number => {
                let value = value.as_i64().unwrap_or_default().cast_unsigned();
                put_number(*number, value, &mut out);
            }
            Flag => put_number(
                *number,
                value.as_bool().unwrap_or_default().into(),
                &mut out,
            ),
            Time => {
                let mut time = Vec::new();
                if let Some(text) = value.as_str() {
                    let seconds = text.parse::<jiff::Timestamp>().unwrap();
                    put_number(1, seconds.as_second().cast_unsigned(), &mut time);
                    put_number(2, 0, &mut time);
                }
                put(*number, &time, &mut out);
            }
            Shape::Map => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let mut entry = Vec::new();
                    put(1, key.as_bytes(), &mut entry);
                    put(2, words(value), &mut entry);
                    put(*number, &entry, &mut out);
                }
            }
            Texts => elements.for_each(|text| put(*number, words(text), &mut out)),
            One(schema) => put(*number, &encoded(schema, value), &mut out),
            Many(schema) => {
                elements.for_each(|one| put(*number, &encoded(schema, one), &mut out));
            }
        }
    }
    out
}

/// Generates a text that is usually valid for its field.
fn any_words() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        "",
        "a",
        "web",
        "default",
        "IPv4",
        "IPv6",
        "FQDN",
        "TCP",
        "UDP",
        "SCTP",
        "ICMP",
        "ClusterIP",
        "NodePort",
        "LoadBalancer",
        "ExternalName",
        "None",
        "Local",
        "Cluster",
        "ClientIP",
        "VIP",
        "Proxy",
        "10.0.0.1",
        "10.0.0.2",
        "010.1.0.1",
        "fd00::1",
        "127.0.0.1",
        "10.0.0.0/8",
        "fd00::/64",
        "0.0.0.0/0",
        "InternalIP",
        "ExternalIP",
        "ToBeDeletedByClusterAutoscaler",
        "sh",
        "ü",
        "true",
    ])
    .prop_map(Value::from)
}

fn any_map() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "a",
        "service.kubernetes.io/service-proxy-name",
        "service.kubernetes.io/headless",
        "kubernetes.io/service-name",
        "kubernetes.io/service-name",
        "topology.kubernetes.io/zone",
        "endpoints.kubernetes.io/last-change-trigger-time",
        "k8s.io/initial-events-end",
        "kube-proxy-ipvs/scheduler",
        "kube-proxy-ipvs/scheduler",
        "kube-proxy-ipvs/other",
    ]);
    let time = Just(Value::from("2023-11-14T22:13:20.5Z"));
    prop::collection::btree_map(key, prop_oneof![4 => any_words(), 1 => time], 0..4).prop_map(
        |map| {
            map.into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()
        },
    )
}

/// Generates any value of this type.
fn any_of(shape: &'static Shape) -> BoxedStrategy<Value> {
    match shape {
        Words => any_words().boxed(),
        Number => prop_oneof![
            4 => prop::sample::select(vec![-1, 0, 1, 53, 80, 443, 30_080, 65_535, 65_536, 86_401]),
            1 => any::<i32>().prop_map(i64::from),
        ]
        .prop_map(Value::from)
        .boxed(),
        Flag => any::<bool>().prop_map(Value::from).boxed(),
        Time => (0..4_000_000_000_i64)
            .prop_map(|seconds| {
                let time = jiff::Timestamp::from_second(seconds).unwrap();
                Value::from(time.to_string())
            })
            .boxed(),
        Shape::Map => any_map().boxed(),
        Texts => prop::collection::vec(any_words(), 0..3)
            .prop_map(Value::from)
            .boxed(),
        One(schema) => any_object(schema),
        Many(schema) => prop::collection::vec(any_object(schema), 0..3)
            .prop_map(Value::from)
            .boxed(),
    }
}

fn any_object(schema: Schema) -> BoxedStrategy<Value> {
    let fields: Vec<_> = schema
        .iter()
        .map(|(_, name, presence, shape)| {
            let given = any_of(shape);
            let field = match (presence, shape) {
                (_, Words | Number | Flag | Time | Shape::Map | Texts) => {
                    prop_oneof![4 => given.prop_map(Some), 1 => Just(None)].boxed()
                }
                (_, One(_) | Many(_)) => {
                    prop_oneof![9 => given.prop_map(Some), 1 => Just(None)].boxed()
                }
            };
            field.prop_map(move |value| Some(((*name).to_owned(), value?)))
        })
        .collect();
    fields
        .prop_map(|fields| Value::Object(fields.into_iter().flatten().collect::<Map<_, _>>()))
        .boxed()
}

/// Generates an object of any kind.
fn any_kind() -> impl Strategy<Value = (Kind, Value)> {
    prop::sample::select(Kind::ALL.to_vec())
        .prop_flat_map(|kind| any_object(schema(kind)).prop_map(move |object| (kind, object)))
}

/// Encodes an object as JSON. As in Go, missing numbers are 0 unless their field is `omitempty`.
fn as_json(kind: Kind, mut object: Value) -> String {
    if kind == Kind::Service
        && let Some(ports) = object
            .pointer_mut("/spec/ports")
            .and_then(Value::as_array_mut)
    {
        for port in ports {
            port.as_object_mut()
                .unwrap()
                .entry("port")
                .or_insert(json!(0));
        }
    }
    object.to_string()
}

fn envelope(kind: &str, raw: &[u8]) -> Vec<u8> {
    let (mut meta, mut unknown) = (Vec::new(), MAGIC.to_vec());
    put(1, b"v1", &mut meta);
    put(2, kind.as_bytes(), &mut meta);
    put(1, &meta, &mut unknown);
    put(2, raw, &mut unknown);
    put(3, b"", &mut unknown);
    unknown
}

fn framed(what: &str, object: &[u8]) -> Vec<u8> {
    let (mut raw, mut event) = (Vec::new(), Vec::new());
    put(1, object, &mut raw);
    put(1, what.as_bytes(), &mut event);
    put(2, &raw, &mut event);
    event
}

proptest! {
    #[test]
    fn json_and_protobuf_objects_decode_equally((kind, object) in any_kind()) {
        let bytes = encoded(schema(kind), &object);
        let text = as_json(kind, object);
        prop_assert_eq!(item(kind, &bytes), from_json(kind, &text), "{}", text);
    }

    #[test]
    fn json_and_protobuf_events_decode_equally((kind, object) in any_kind(), what in prop::sample::select(vec!["ADDED", "MODIFIED", "DELETED", "BOOKMARK"])) {
        let frame = framed(what, &envelope(kind_name(kind), &encoded(schema(kind), &object)));
        let object: Value = serde_json::from_str(&as_json(kind, object)).unwrap();
        let line = json!({"type": what, "object": object}).to_string();
        match (event(kind, &frame), json_event(kind, line.as_bytes())) {
            (Ok(read), Ok(wanted)) => prop_assert_eq!(read, wanted),
            (read, wanted) => prop_assert_eq!(read.is_err(), wanted.is_err(), "{}", line),
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_protobuf_decoder(bytes: Vec<u8>) {
        for kind in Kind::ALL {
            let _ = item(kind, &bytes);
            let _ = event(kind, &bytes);
            let _ = event(kind, &framed("ADDED", &envelope("Service", &bytes)));
        }
        let _ = status(&[MAGIC, &bytes[..]].concat());
    }

    #[test]
    fn mutated_protobuf_objects_never_panic_the_decoder((kind, object) in any_kind(), at: prop::sample::Index, byte: u8, end: prop::sample::Index) {
        let mut bytes = encoded(schema(kind), &object);
        let place = at.index(bytes.len());
        bytes[place] = byte;
        if let Ok(decoded) = item(kind, &bytes) {
            for problem in &decoded.problems {
                prop_assert!(problem.to_string().starts_with(&decoded.key.to_string()));
            }
        }
        bytes.truncate(end.index(bytes.len()));
        let _ = item(kind, &bytes);
    }
}

#[test]
fn an_invalid_protobuf_message_affects_only_its_own_object() {
    let mut service = encoded(
        SERVICE,
        &json!({"metadata": {"name": "web", "namespace": "a"}}),
    );
    // The spec ends in the middle of a text.
    put(2, &[0x1a, 9, b'1'], &mut service);
    let decoded = item(Kind::Service, &service).unwrap();
    assert_eq!(decoded.key.to_string(), "Service a/web");
    let [problem] = &decoded.problems[..] else {
        panic!("{:?}", decoded.problems);
    };
    assert_eq!(
        problem.to_string(),
        "Service a/web: the object is unreadable: a length of 9 is beyond the end; its last known \
         state stays until it is corrected"
    );
    for (wrong, why) in [
        (&[0x10, 1][..], "a field is not a text or message"),
        (&[0x12, 4, 0x22, 2, 0xff, 0xfe], "a text is not UTF-8"),
        (&[0x12, 4, 0x0a, 2, 0x1a, 0], "a field is not a number"),
    ] {
        let mut service = encoded(SERVICE, &json!({"metadata": {"name": "web"}}));
        service.extend_from_slice(wrong);
        let decoded = item(Kind::Service, &service).unwrap();
        assert!(decoded.problems[0].advice.starts_with(why), "{decoded:?}");
    }
    // An object with an unreadable name cannot be reported by name.
    assert!(item(Kind::Service, &service[1..]).is_err());
}

#[test]
fn an_object_of_an_unrequested_kind_is_ignored() {
    let node = encoded(NODE, &json!({"metadata": {"name": "node1"}}));
    let read = event(Kind::Service, &framed("ADDED", &envelope("Node", &node)));
    let Ok(WatchEvent::Applied(Ok(decoded))) = read else {
        panic!("{read:?}");
    };
    assert_eq!(decoded.problems[0].field, "kind");
}

#[test]
fn an_api_status_is_decoded() {
    for (bytes, json) in [
        (
            &include_bytes!("../../../tests/data/vectors/too-large.pb")[..],
            include_str!("../../../tests/data/vectors/too-large.json"),
        ),
        (
            include_bytes!("../../../tests/data/vectors/expired.pb"),
            include_str!("../../../tests/data/vectors/expired.json"),
        ),
    ] {
        let read = status(bytes).unwrap();
        assert_eq!(Some(&read), json_status(json.as_bytes()).as_ref());
        assert_eq!(read.is_ahead(), read.code == 504, "{read:?}");
    }
    assert_eq!(status(b"no"), None);
}
