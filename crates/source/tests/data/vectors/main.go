// Writes Kubernetes objects as upstream's own serializers do: `cases/NAME.pb` beside `cases/NAME.json`.
//
// NAME.pb and NAME.json are lists as a server returns them; NAME.watch.pb and NAME.watch.json are watches.
// Built in Kubernetes' tree (v1.36.2): `go build -o vectors ./PATH/TO/THIS`, then `./vectors FOLDER`.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

func ptr[T any](value T) *T { return &value }

var created = metav1.NewTime(time.Unix(1700000000, 0))

func meta(name, version string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID("uid-" + name), ResourceVersion: version, Generation: 3,
		CreationTimestamp: created,
		Labels:            map[string]string{"app": "web", "a": ""},
		Annotations:       map[string]string{"note": "schön"},
		OwnerReferences:   []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "web", UID: "u", Controller: ptr(true)}},
		Finalizers:        []string{"service.kubernetes.io/load-balancer-cleanup"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Update", APIVersion: "v1", Time: &created,
			FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}},
	}
}

func services() runtime.Object {
	plain := corev1.Service{ObjectMeta: meta("plain", "11"), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr(corev1.IPFamilyPolicySingleStack),
		Ports:           []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http")}},
		Selector:        map[string]string{"app": "web"},
		SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: ptr(corev1.ServiceInternalTrafficPolicyCluster),
	}}
	full := corev1.Service{ObjectMeta: meta("full", "12"), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.11", ClusterIPs: []string{"10.96.0.11", "fd00::11"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: ptr(corev1.IPFamilyPolicyRequireDualStack),
		Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080), NodePort: 30080, AppProtocol: ptr("kubernetes.io/h2c")},
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(53), NodePort: 30053},
		},
		ExternalIPs: []string{"192.0.2.7", "2001:db8::7"}, LoadBalancerSourceRanges: []string{"10.0.0.0/8", " 192.168.0.0/16"},
		SessionAffinity:       corev1.ServiceAffinityClientIP,
		SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(600))}},
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, InternalTrafficPolicy: ptr(corev1.ServiceInternalTrafficPolicyLocal),
		HealthCheckNodePort: 31000, PublishNotReadyAddresses: true, AllocateLoadBalancerNodePorts: ptr(true),
		LoadBalancerClass: ptr("example.com/lb"), TrafficDistribution: ptr("PreferSameZone"),
	}, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
		{IP: "203.0.113.1", IPMode: ptr(corev1.LoadBalancerIPModeVIP), Ports: []corev1.PortStatus{{Port: 80, Protocol: corev1.ProtocolTCP}}},
		{IP: "203.0.113.2", IPMode: ptr(corev1.LoadBalancerIPModeProxy)},
		{Hostname: "lb.example.com"},
	}}, Conditions: []metav1.Condition{{Type: "Ready", Status: "True", LastTransitionTime: created}}}}
	wrong := corev1.Service{ObjectMeta: meta("wrong", "13"), Spec: corev1.ServiceSpec{
		Type: "Sometimes", ClusterIP: "10.96.0.12", ClusterIPs: []string{"10.96.0.12"},
		Ports:           []corev1.ServicePort{{Name: "a", Port: -1, Protocol: "ICMP"}, {Name: "b", Port: 70000}, {Name: "c", Port: 9, NodePort: 5}},
		ExternalIPs:     []string{"not an address", "127.0.0.1"},
		SessionAffinity: "Always",
	}}
	proxied := corev1.Service{ObjectMeta: meta("proxied", "14"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.13"}}
	proxied.Labels["service.kubernetes.io/service-proxy-name"] = ""
	empty := corev1.Service{}
	return &corev1.ServiceList{
		ListMeta: metav1.ListMeta{ResourceVersion: "4711", Continue: "more", RemainingItemCount: ptr(int64(7))},
		Items:    []corev1.Service{plain, full, wrong, proxied, empty},
	}
}

func slices() runtime.Object {
	slice := func(name, version string) discoveryv1.EndpointSlice {
		slice := discoveryv1.EndpointSlice{ObjectMeta: meta(name, version), AddressType: discoveryv1.AddressTypeIPv4}
		slice.Labels["kubernetes.io/service-name"] = "web"
		return slice
	}
	full := slice("full", "21")
	full.Annotations["endpoints.kubernetes.io/last-change-trigger-time"] = "2023-11-14T22:13:20.5Z"
	full.Ports = []discoveryv1.EndpointPort{
		{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP), AppProtocol: ptr("http")},
		{Name: ptr(""), Port: ptr(int32(53)), Protocol: ptr(corev1.ProtocolUDP)},
	}
	full.Endpoints = []discoveryv1.Endpoint{
		{Addresses: []string{"10.244.1.5"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)},
			NodeName: ptr("node1"), Zone: ptr("a"), Hostname: ptr("web-0"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-0", UID: "p"},
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}, ForNodes: []discoveryv1.ForNode{{Name: "node1"}}}},
		{Addresses: []string{"10.244.1.6", "10.244.1.7"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(false), Terminating: ptr(true)},
			DeprecatedTopology: map[string]string{"topology.kubernetes.io/zone": "b"}},
		{Addresses: []string{"010.244.001.008"}},
	}
	absent := slice("absent", "22")
	absent.Ports = []discoveryv1.EndpointPort{{}}
	absent.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{}}, {Addresses: []string{"fd00::1"}}, {Addresses: []string{"web.example.com"}}}
	six := slice("six", "23")
	six.AddressType = discoveryv1.AddressTypeIPv6
	six.Ports = []discoveryv1.EndpointPort{{Port: ptr(int32(0))}, {Port: ptr(int32(80))}}
	six.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"fd00::5"}, NodeName: ptr("")}}
	name := slice("name", "24")
	name.AddressType = discoveryv1.AddressTypeFQDN
	headless := slice("headless", "25")
	headless.Labels["service.kubernetes.io/headless"] = ""
	nobodys := discoveryv1.EndpointSlice{ObjectMeta: meta("nobodys", "26"), AddressType: "IPv7"}
	return &discoveryv1.EndpointSliceList{
		ListMeta: metav1.ListMeta{ResourceVersion: "4712"},
		Items:    []discoveryv1.EndpointSlice{full, absent, six, name, headless, nobodys},
	}
}

func nodes() runtime.Object {
	node := corev1.Node{ObjectMeta: meta("node1", "31"), Spec: corev1.NodeSpec{
		PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:1::/64", "nonsense"}, ProviderID: "kind://node1",
		Taints: []corev1.Taint{{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &created}},
	}, Status: corev1.NodeStatus{
		Capacity:   corev1.ResourceList{"cpu": resource.MustParse("8")},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: created}},
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "node1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.10"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::10"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		NodeInfo:        corev1.NodeSystemInfo{MachineID: "m", KubeletVersion: "v1.36.2"},
		Images:          []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1 << 40}},
	}}
	node.Namespace = ""
	node.Labels["topology.kubernetes.io/zone"] = "a"
	leaving := corev1.Node{ObjectMeta: meta("node2", "32"), Spec: corev1.NodeSpec{PodCIDR: "10.244.2.0/24",
		Taints: []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}}}
	leaving.Namespace = ""
	deleted := corev1.Node{ObjectMeta: meta("node3", "33")}
	deleted.Namespace, deleted.DeletionTimestamp = "", ptr(metav1.Now())
	deleted.DeletionTimestamp = &created
	return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "4713"}, Items: []corev1.Node{node, leaving, deleted}}
}

func gone(code int32, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) *metav1.Status {
	return &metav1.Status{Status: "Failure", Code: code, Reason: reason, Message: message,
		Details: &metav1.StatusDetails{Causes: causes, RetryAfterSeconds: 1}}
}

// Writes events as k8s.io/apiserver's watch server does: each object in its envelope, in an event
// without an envelope, in a frame.
func watched(events []watch.Event, codec, envelope runtime.Serializer, framer runtime.Framer) []byte {
	var out bytes.Buffer
	frames := framer.NewFrameWriter(&out)
	for _, event := range events {
		var inner bytes.Buffer
		must(envelope.Encode(event.Object, &inner))
		outer := &metav1.WatchEvent{Type: string(event.Type), Object: runtime.RawExtension{Raw: inner.Bytes()}}
		must(codec.Encode(outer, frames))
	}
	return out.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	folder := os.Args[1]
	envelope := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	raw := protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme)
	text := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{})
	write := func(name string, bytes []byte) {
		must(os.WriteFile(filepath.Join(folder, name), bytes, 0o644))
		fmt.Println(name, len(bytes))
	}
	both := func(name, group, kind string, object runtime.Object) {
		version := "v1"
		if group != "" {
			version = group + "/v1"
		}
		object.GetObjectKind().SetGroupVersionKind(metaKind(version, kind))
		for suffix, codec := range map[string]runtime.Serializer{"pb": envelope, "json": text} {
			var out bytes.Buffer
			must(codec.Encode(object, &out))
			write(name+"."+suffix, out.Bytes())
		}
	}
	both("services", "", "ServiceList", services())
	both("slices", "discovery.k8s.io", "EndpointSliceList", slices())
	both("nodes", "", "NodeList", nodes())
	both("empty", "", "ServiceList", &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Service{}})
	both("too-large", "", "Status", gone(504, metav1.StatusReasonTimeout, "Too large resource version: 7, current: 5",
		metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}))
	both("expired", "", "Status", gone(410, metav1.StatusReasonExpired, "too old resource version: 1 (5)"))

	kinded := func(object runtime.Object, version, kind string) runtime.Object {
		object = object.DeepCopyObject()
		object.GetObjectKind().SetGroupVersionKind(metaKind(version, kind))
		return object
	}
	list := services().(*corev1.ServiceList)
	web := kinded(&list.Items[1], "v1", "Service")
	bookmark := func(end bool) runtime.Object {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "99"}}
		if end {
			service.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		}
		return kinded(service, "v1", "Service")
	}
	events := []watch.Event{
		{Type: watch.Added, Object: web}, {Type: watch.Bookmark, Object: bookmark(true)},
		{Type: watch.Modified, Object: kinded(&list.Items[0], "v1", "Service")}, {Type: watch.Deleted, Object: web},
		{Type: watch.Bookmark, Object: bookmark(false)},
		{Type: watch.Error, Object: kinded(gone(410, metav1.StatusReasonExpired, "too old resource version: 1 (5)"), "v1", "Status")},
	}
	write("services.watch.pb", watched(events, raw, envelope, protobuf.LengthDelimitedFramer))
	write("services.watch.json", watched(events, text, text, json.Framer))
}

func metaKind(version, kind string) schema.GroupVersionKind { return schema.FromAPIVersionAndKind(version, kind) }
