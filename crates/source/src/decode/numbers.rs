//! Field numbers of the protobuf messages, without unused fields. Sources: the `generated.proto` of
//! `k8s.io/api/core/v1`, `k8s.io/api/discovery/v1`, and
//! `k8s.io/apimachinery/pkg/{apis/meta/v1,runtime}`.

use proxy::options;
use serde::de::IgnoredAny;

use super::message::{Malformed, Message, Value, read};
use super::status::{Cause, Details, Status};
use super::wire::{
    AffinityConfig, ClientIpConfig, Conditions, Endpoint, EndpointPort, EndpointSlice,
    FirstAddress, Hints, Ingress, LoadBalancerStatus, Metadata, MetadataOnly, Named, Node,
    NodeAddress, NodeSpec, NodeStatus, Service, ServiceCidr, ServiceCidrSpec, ServicePort,
    ServiceSpec, ServiceStatus, Taint, Time,
};

/// Declares how messages are decoded: `message SHAPE { NUMBER => store the field; … }`. `m` is the
/// message, and `v` is the field's value.
macro_rules! numbers {
    ($($shape:ident $(<$life:lifetime>)? |$m:ident, $v:ident| { $($number:literal => $take:expr;)+ })+) => {$(
        impl<'a> Message<'a> for $shape $(<$life>)? {
            #[inline]
            fn take(&mut self, number: u32, $v: Value<'a>) -> Result<(), Malformed> {
                let $m = self;
                match number {
                    $($number => $take,)+
                    _ => return Ok(()),
                }
                Ok(())
            }
        }
    )+};
}

numbers! {
    Metadata<'a> |m, v| {
        1 => m.name = Some(v.text()?);
        3 => m.namespace = Some(v.text()?);
        5 => m.uid = Some(v.text()?);
        6 => m.resource_version = Some(v.text()?);
        8 => m.creation_timestamp = time(v.bytes()?)?;
        9 => m.deletion_timestamp = time(v.bytes()?)?.map(|_| IgnoredAny);
        11 => {
            let Entry { key, value } = read(v.bytes()?)?;
            let labels = m.labels.get_or_insert_default();
            match key {
                b"service.kubernetes.io/service-proxy-name" => labels.proxy_name = Some(IgnoredAny),
                b"service.kubernetes.io/headless" => labels.headless = Some(IgnoredAny),
                b"kubernetes.io/service-name" => labels.service_name = Some(Value::Bytes(value).text()?),
                b"topology.kubernetes.io/zone" => labels.zone = Some(Value::Bytes(value).text()?),
                _ => {}
            }
        };
        12 => {
            let Entry { key, value } = read(v.bytes()?)?;
            let annotations = m.annotations.get_or_insert_default();
            match key {
                b"endpoints.kubernetes.io/last-change-trigger-time" => {
                    annotations.change_trigger = Some(Time::Text(Value::Bytes(value).text()?));
                }
                b"k8s.io/initial-events-end" => annotations.initial_events_end = Some(IgnoredAny),
                key if key.starts_with(options::PREFIX.as_bytes()) => {
                    let option = (Value::Bytes(key).text()?, Value::Bytes(value).text()?);
                    annotations.options.push(option);
                }
                _ => {}
            }
        };
    }
    MetadataOnly<'a> |m, v| {
        1 => v.merge(&mut m.metadata)?;
    }

    Service<'a> |m, v| {
        1 => v.merge(&mut m.metadata)?;
        2 => v.merge(&mut m.spec)?;
        3 => v.merge(&mut m.status)?;
    }
    ServiceSpec<'a> |m, v| {
        1 => v.push(&mut m.ports)?;
        3 => m.cluster_ip = Some(v.text()?);
        4 => m.kind = Some(v.text()?);
        5 => v.push_text(&mut m.external_ips)?;
        7 => m.session_affinity = Some(v.text()?);
        9 => v.push_text(&mut m.load_balancer_source_ranges)?;
        11 => m.external_traffic_policy = Some(v.text()?);
        12 => m.health_check_node_port = Some(v.number()?);
        14 => v.merge(&mut m.session_affinity_config)?;
        18 => v.push_text(&mut m.cluster_ips)?;
        19 => v.push_text(&mut m.ip_families)?;
        22 => m.internal_traffic_policy = Some(v.text()?);
    }
    ServicePort<'a> |m, v| {
        1 => m.name = Some(v.text()?);
        2 => m.protocol = Some(v.text()?);
        3 => m.port = Some(v.number()?);
        5 => m.node_port = Some(v.number()?);
    }
    AffinityConfig |m, v| {
        1 => v.merge(&mut m.client_ip)?;
    }
    ClientIpConfig |m, v| {
        1 => m.timeout_seconds = Some(v.number()?);
    }
    ServiceStatus<'a> |m, v| {
        1 => v.merge(&mut m.load_balancer)?;
    }
    LoadBalancerStatus<'a> |m, v| {
        1 => v.push(&mut m.ingress)?;
    }
    Ingress<'a> |m, v| {
        1 => m.ip = Some(v.text()?);
        3 => m.ip_mode = Some(v.text()?);
    }

    EndpointSlice<'a> |m, v| {
        1 => v.merge(&mut m.metadata)?;
        2 => v.push(&mut m.endpoints)?;
        3 => v.push(&mut m.ports)?;
        4 => m.address_type = Some(v.text()?);
    }
    Endpoint<'a> |m, v| {
        1 => if m.addresses.is_none() {
            m.addresses = Some(FirstAddress::from(v.str()?));
        };
        2 => v.merge(&mut m.conditions)?;
        6 => m.node_name = Some(v.text()?);
        7 => m.zone = Some(v.text()?);
        8 => v.merge(&mut m.hints)?;
    }
    Conditions |m, v| {
        1 => m.ready = Some(v.flag()?);
        2 => m.serving = Some(v.flag()?);
        3 => m.terminating = Some(v.flag()?);
    }
    Hints<'a> |m, v| {
        1 => v.push(&mut m.for_zones)?;
        2 => v.push(&mut m.for_nodes)?;
    }
    Named<'a> |m, v| {
        1 => m.name = v.text()?;
    }
    EndpointPort<'a> |m, v| {
        1 => m.name = Some(v.text()?);
        2 => m.protocol = Some(v.text()?);
        3 => m.port = Some(v.number()?);
    }

    Node<'a> |m, v| {
        1 => v.merge(&mut m.metadata)?;
        2 => v.merge(&mut m.spec)?;
        3 => v.merge(&mut m.status)?;
    }
    NodeSpec<'a> |m, v| {
        1 => m.pod_cidr = Some(v.text()?);
        5 => v.push(&mut m.taints)?;
        7 => v.push_text(&mut m.pod_cidrs)?;
    }
    Taint<'a> |m, v| {
        1 => m.key = v.text()?;
    }
    NodeStatus<'a> |m, v| {
        5 => v.push(&mut m.addresses)?;
    }
    NodeAddress<'a> |m, v| {
        1 => m.kind = Some(v.text()?);
        2 => m.address = Some(v.text()?);
    }

    ServiceCidr<'a> |m, v| {
        1 => v.merge(&mut m.metadata)?;
        2 => v.merge(&mut m.spec)?;
    }
    ServiceCidrSpec<'a> |m, v| {
        1 => v.push_text(&mut m.cidrs)?;
    }

    Status |m, v| {
        3 => v.str()?.clone_into(&mut m.message);
        5 => v.merge(&mut m.details)?;
        6 => m.code = v.number()?.try_into().unwrap_or_default();
    }
    Details |m, v| {
        4 => v.push(&mut m.causes)?;
    }
    Cause |m, v| {
        1 => m.reason = Some(v.str()?.to_owned());
    }

    Entry<'a> |m, v| {
        1 => m.key = v.bytes()?;
        2 => m.value = v.bytes()?;
    }
    WireTime |m, v| {
        1 => m.seconds = v.number()?;
    }
}

/// An entry of a protobuf map, such as one label or annotation.
#[derive(Debug, Default)]
struct Entry<'a> {
    key: &'a [u8],
    value: &'a [u8],
}

/// A `Time` of `meta/v1` in protobuf. Its nanoseconds are always 0.
#[derive(Debug, Default)]
struct WireTime {
    /// Seconds since 1970-01-01 UTC.
    seconds: i64,
}

/// Decodes a time. Returns `None` for a message without fields, which Go writes for a missing time.
fn time<'a>(bytes: &[u8]) -> Result<Option<Time<'a>>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let WireTime { seconds } = read(bytes)?;
    Ok(Some(Time::Seconds(seconds)))
}
