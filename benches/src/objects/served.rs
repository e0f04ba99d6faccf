//! Fields that no kube-proxy reads, but that controllers and the API server write: field managers,
//! owners, target pods. They give the objects a realistic size. The values come from a kubeadm
//! cluster with Kubernetes 1.36, with other names.

use serde_json::{Map, Value, json};

/// Timestamp in every time field of the objects.
const TIME: &str = "2026-11-22T10:00:00Z";
/// Zones over which the nodes are distributed.
const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];

/// Adds the fields that a Service has after `kubectl apply`, such as its field managers.
pub(super) fn service(service: &mut Value) {
    let fields = json!({
        "f:metadata": { "f:annotations": { ".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {} } },
        "f:spec": {
            "f:internalTrafficPolicy": {}, "f:selector": {}, "f:sessionAffinity": {}, "f:type": {},
            "f:ports": {
                ".": {},
                r#"k:{"port":80,"protocol":"TCP"}"#: {
                    ".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {},
                },
            },
        },
    });
    let applied = service.to_string() + "\n";
    let Some(metadata) = section(service, "metadata") else {
        return;
    };
    metadata.insert(
        "annotations".into(),
        json!({ "kubectl.kubernetes.io/last-applied-configuration": applied }),
    );
    manage(metadata, "kubectl-client-side-apply", "v1", &fields);
}

/// Adds the fields that the EndpointSlice controller writes, such as the owner and the target pods.
pub(super) fn slice(slice: &mut Value, owner: &str) {
    let uid = uid(owner);
    let fields = json!({
        "f:addressType": {}, "f:endpoints": {}, "f:ports": {},
        "f:metadata": {
            "f:annotations": { ".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {} },
            "f:generateName": {},
            "f:labels": {
                ".": {}, "f:endpointslice.kubernetes.io/managed-by": {}, "f:kubernetes.io/service-name": {},
            },
            "f:ownerReferences": { ".": {}, format!(r#"k:{{"uid":"{uid}"}}"#): {} },
        },
    });
    if let Some(metadata) = section(slice, "metadata") {
        metadata.insert("generateName".into(), format!("{owner}-").into());
        metadata.insert(
            "annotations".into(),
            json!({ "endpoints.kubernetes.io/last-change-trigger-time": TIME }),
        );
        metadata.insert(
            "ownerReferences".into(),
            json!([{
                "apiVersion": "v1", "kind": "Service", "name": owner, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }]),
        );
        manage(
            metadata,
            "kube-controller-manager",
            "discovery.k8s.io/v1",
            &fields,
        );
    }
    if let Some(labels) = slice.pointer_mut("/metadata/labels") {
        labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io".into();
    }
    let endpoints = slice.get_mut("endpoints").and_then(Value::as_array_mut);
    for (endpoint, zone) in endpoints.into_iter().flatten().zip(ZONES.iter().cycle()) {
        let address = endpoint.pointer("/addresses/0").and_then(Value::as_str);
        let uid = self::uid(address.unwrap_or_default());
        let pod = format!("{owner}-7d9c5b8f6-{}", uid.get(..5).unwrap_or_default());
        endpoint["targetRef"] = json!({
            "kind": "Pod", "namespace": super::NAMESPACE, "name": pod, "uid": uid,
        });
        endpoint["zone"] = (*zone).into();
    }
}

fn section<'a>(object: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(name)?.as_object_mut()
}

fn manage(metadata: &mut Map<String, Value>, manager: &str, api_version: &str, fields: &Value) {
    let managed = json!([{
        "manager": manager, "operation": "Update", "apiVersion": api_version, "time": TIME,
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }]);
    metadata.insert("managedFields".into(), managed);
}

/// Returns a UUID that depends only on `name`. Like a random UUID, it does not compress.
fn uid(name: &str) -> String {
    // FNV-1a, 128 bits.
    let hash = name.bytes().fold(
        0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128,
        |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        },
    );
    let hex = format!("{hash:032x}");
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    format!(
        "{}-{}-4{}-a{}-{}",
        part(0..8),
        part(8..12),
        part(13..16),
        part(17..20),
        part(20..32)
    )
}
