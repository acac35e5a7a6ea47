// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bgpstate"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

// Addresses of the loopback network, and ports: of the node, and of a router.
const (
	nodeAddress, routerAddress = "127.0.0.2", "127.0.0.3"
	healthAddress              = "127.0.0.1:20667"
	routerPort                 = 20179
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	os.Exit(eventually.Main(m))
}

// newRouter starts a real router.
func newRouter(t *testing.T) *gobgp.BgpServer {
	t.Helper()
	router := gobgp.NewBgpServer(gobgp.LoggerOption(slog.New(slog.DiscardHandler), nil))
	go router.Serve()
	t.Cleanup(router.Stop)
	must.Succeed(t, router.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{
		Asn: 65002, RouterId: routerAddress, ListenPort: routerPort, ListenAddresses: []string{routerAddress},
	}}))
	must.Succeed(t, router.AddPeer(t.Context(), &api.AddPeerRequest{Peer: &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: nodeAddress, PeerAsn: 65001},
		Transport: &api.Transport{PassiveMode: true, LocalAddress: routerAddress},
	}}))
	return router
}

// world is a speaker on a real API server with a real router.
type world struct {
	*testing.T
	client client.Client
	router *gobgp.BgpServer
}

func (w *world) create(o client.Object) {
	w.Helper()
	copied := o.DeepCopyObject().(client.Object)
	must.Succeed(w.T, w.client.Create(w.Context(), o))
	copied.SetResourceVersion(o.GetResourceVersion())
	switch copied := copied.(type) {
	case *corev1.Pod: // results are those of its UID
		network := kubeovnv1.PodNetwork{UID: o.GetUID(), Allocated: true, LogicalSwitch: "web", LogicalRouter: kubeovnv1.DefaultVpc,
			Addresses: []netip.Addr{netip.MustParseAddr(copied.Labels["address"])}}
		base := o.DeepCopyObject().(client.Object)
		annotations := network.Annotations()
		for k, v := range o.GetAnnotations() {
			annotations[k] = v
		}
		o.SetAnnotations(annotations)
		must.Succeed(w.T, w.client.Patch(w.Context(), o, client.MergeFrom(base)))
	default:
		must.Succeed(w.T, w.client.Status().Update(w.Context(), copied))
	}
}

// has waits until the router has these prefixes, and returns how long that took.
func (w *world) has(want ...string) time.Duration {
	w.Helper()
	began := time.Now()
	slices.Sort(want)
	eventually.Wait{}.Empty(w.T, func() string {
		got := []string{}
		must.Succeed(w.T, w.router.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: packet.RF_IPv4_UC},
			func(p packet.NLRI, paths []*apiutil.Path) {
				if len(paths) > 0 {
					got = append(got, p.String())
				}
			}))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("the router has %v, want %v", got, want)
		}
		return ""
	})
	return time.Since(began)
}

func newPod(name, address, annotation string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"address": address}}}
	if annotation != "" {
		p.Annotations = map[string]string{kubeovnv1.AnnotationBGP.Key(): annotation}
	}
	p.Spec = corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "image"}}}
	return p
}

// newWorld starts the speaker of node-a.
func newWorld(t *testing.T) *world {
	t.Helper()
	config := apiserver.StartFor(t).Config
	scheme, err := newScheme()
	must.Succeed(t, err)
	admin, err := client.New(config, client.Options{Scheme: scheme})
	must.Succeed(t, err)
	w := &world{T: t, client: admin, router: newRouter(t)}
	w.create(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{v1alpha1.SpeakerNodeLabel: "true"}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}},
		},
	})
	w.create(&corev1.Node{ // withdraws shared prefixes of node-a while that is less fit
		ObjectMeta: metav1.ObjectMeta{Name: "node-b", Labels: map[string]string{v1alpha1.SpeakerNodeLabel: "true"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
	w.create(&kubeovnv1.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{kubeovnv1.AnnotationBGP.Key(): "true"}},
		Spec:       kubeovnv1.SubnetSpec{CIDRBlock: "10.1.0.0/16", Gateway: "10.1.0.1"},
		Status: kubeovnv1.SubnetStatus{Conditions: []metav1.Condition{
			{Type: kubeovnv1.ConditionValidated, Status: metav1.ConditionTrue, ObservedGeneration: 1, Reason: "Valid", LastTransitionTime: metav1.Now()},
		}},
	})
	own := newPod("speaker-a", "10.1.9.9", "")
	w.create(own)

	mgr, r, err := NewManager(config, Options{
		Node: "node-a", Pod: own.Name, Namespace: own.Namespace, Passwords: t.TempDir(), Address: healthAddress, Port: routerPort + 1,
	})
	must.Succeed(t, err)
	r.Interfaces = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr(nodeAddress)}, nil }
	must.Succeed(t, os.MkdirAll(filepath.Join(r.Passwords, "s"), 0o755))
	r.Set(&v1alpha1.Speaker{ASN: 65001, Namespaces: []string{"default"}, MaxPrefixesPerNamespace: 2, Peers: []v1alpha1.SpeakerPeer{{
		Address: routerAddress, ASN: 65002, Port: routerPort, SourceAddresses: []string{nodeAddress + "/32"},
		ConnectRetry: &metav1.Duration{Duration: time.Second},
	}}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, mgr, r) }()
	t.Cleanup(func() {
		stop()
		must.Succeed(t, <-ended)
	})
	return w
}

func TestEventsReachARouter(t *testing.T) {
	w := newWorld(t)
	w.has("10.1.0.0/16")

	t.Log("pods")
	p := newPod("p", "10.1.0.7", "local")
	w.create(p)
	w.has("10.1.0.0/16", "10.1.0.7/32")
	must.Succeed(t, w.client.Delete(t.Context(), p, client.GracePeriodSeconds(0)))
	t.Logf("the route of a deleted pod was withdrawn after %s", w.has("10.1.0.0/16"))

	t.Log("Services")
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", Annotations: map[string]string{kubeovnv1.AnnotationBGP.Key(): "true"}},
		Spec:       corev1.ServiceSpec{ExternalIPs: []string{"203.0.113.9"}, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Ports: []corev1.ServicePort{{Port: 80}}, Type: corev1.ServiceTypeLoadBalancer},
	}
	must.Succeed(t, w.client.Create(t.Context(), service))
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.8"}, NodeName: new("node-a")}},
	}
	must.Succeed(t, w.client.Create(t.Context(), slice))
	cluster := service.Spec.ClusterIP + "/32"
	w.has("10.1.0.0/16", cluster, "203.0.113.9/32")
	slice.Endpoints[0].Conditions.Ready = new(false)
	must.Succeed(t, w.client.Update(t.Context(), slice))
	t.Logf("the routes without an endpoint were withdrawn after %s", w.has("10.1.0.0/16"))
	slice.Endpoints[0].Conditions.Ready = nil
	must.Succeed(t, w.client.Update(t.Context(), slice))
	w.has("10.1.0.0/16", cluster, "203.0.113.9/32")

	w.egress("10.1.0.0/16", cluster, "203.0.113.9/32")
	w.eip("10.1.0.0/16", cluster, "203.0.113.9/32")

	t.Log("the node")
	var node corev1.Node
	must.Succeed(t, w.client.Get(t.Context(), client.ObjectKey{Name: "node-a"}, &node))
	node.Spec.Unschedulable = true
	must.Succeed(t, w.client.Update(t.Context(), &node))
	t.Logf("the routes of a cordoned node were withdrawn after %s", w.has("203.0.113.9/32"))
	node.Spec.Unschedulable = false
	must.Succeed(t, w.client.Update(t.Context(), &node))
	w.has("10.1.0.0/16", cluster, "203.0.113.9/32")

	t.Log("a pod beyond the limit of its namespace")
	late := newPod("z", "10.1.0.9", "local")
	w.create(late)
	w.warned(late, ReasonTooManyPrefixes)

	t.Log("reports")
	w.reports()
	node.Labels = nil
	must.Succeed(t, w.client.Update(t.Context(), &node))
	t.Logf("the routes of a node without the label were withdrawn after %s", w.has())
}

// egress moves the address of an EgressAddress between two nodes. before are the other routes.
func (w *world) egress(before ...string) {
	w.Helper()
	w.Log("EgressAddresses")
	with := append(slices.Clone(before), "198.51.100.9/32")
	out := &kubeovnv1.EgressAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "out", Annotations: map[string]string{kubeovnv1.AnnotationBGP.Key(): "true"}},
		Spec:       kubeovnv1.EgressAddressSpec{Addresses: []string{"198.51.100.9"}, NodeSelector: &metav1.LabelSelector{}},
		Status:     kubeovnv1.EgressAddressStatus{Node: "node-a", Addresses: []string{"198.51.100.9"}, NodeSince: new(metav1.Now())},
	}
	w.create(out)
	w.has(with...)
	move := func(to string) {
		w.Helper()
		must.Succeed(w.T, w.client.Get(w.Context(), client.ObjectKeyFromObject(out), out))
		out.Status.Node = to
		must.Succeed(w.T, w.client.Status().Update(w.Context(), out))
	}
	move("node-b")
	w.Logf("the route of an egress address that moved was withdrawn after %s", w.has(before...))
	move("node-a")
	w.has(with...)
	out.Annotations = nil
	must.Succeed(w.T, w.client.Update(w.Context(), out))
	w.has(before...)
	out.Annotations = map[string]string{kubeovnv1.AnnotationBGP.Key(): "true"}
	must.Succeed(w.T, w.client.Update(w.Context(), out))
	w.has(with...)
	must.Succeed(w.T, w.client.Delete(w.Context(), out))
	w.has(before...)
}

// eip announces the OvnEip of a RouterLBRule. before are the other routes.
func (w *world) eip(before ...string) {
	w.Helper()
	w.Log("OvnEips")
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rlr-web", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: kubeovnv1.GroupVersion.String(), Kind: kubeovnv1.OnRouterLBRule, Name: "web", UID: "u", Controller: new(true),
		}}},
		Spec: corev1.ServiceSpec{ExternalIPs: []string{"198.51.100.10"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "rlr-web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "rlr-web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.8"}, NodeName: new("node-b")}},
	}
	must.Succeed(w.T, w.client.Create(w.Context(), service))
	must.Succeed(w.T, w.client.Create(w.Context(), slice))
	eip := &kubeovnv1.OvnEip{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{kubeovnv1.AnnotationBGP.Key(): "true"}},
		Status:     kubeovnv1.OvnEipStatus{V4IP: "198.51.100.10", NAT: "lb"},
	}
	w.create(eip)
	w.has(append(slices.Clone(before), "198.51.100.10/32")...)
	must.Succeed(w.T, w.client.Delete(w.Context(), eip))
	w.has(before...)
}

// warned waits for an event about an object.
func (w *world) warned(o client.Object, reason string) {
	w.Helper()
	eventually.Wait{}.Empty(w.T, func() string {
		var events corev1.EventList
		must.Succeed(w.T, w.client.List(w.Context(), &events))
		for i := range events.Items {
			if e := &events.Items[i]; e.InvolvedObject.UID == o.GetUID() && e.Reason == reason {
				return ""
			}
		}
		return fmt.Sprintf("no event %s in %+v", reason, events.Items)
	})
}

// reports checks the condition of the pod, the state and the metrics.
func (w *world) reports() {
	w.Helper()
	eventually.Wait{}.Empty(w.T, func() string {
		var pod corev1.Pod
		must.Succeed(w.T, w.client.Get(w.Context(), client.ObjectKey{Namespace: "default", Name: "speaker-a"}, &pod))
		for _, c := range pod.Status.Conditions {
			if c.Type == v1alpha1.PodConditionPeers && c.Status == corev1.ConditionTrue && c.Message == routerAddress+" Established" {
				return ""
			}
		}
		return fmt.Sprintf("the conditions are %+v", pod.Status.Conditions)
	})
	response, err := http.Get("http://" + healthAddress + StatePath + "?" + RoutesParameter)
	must.Succeed(w.T, err)
	defer response.Body.Close()
	var state bgpstate.State
	must.Succeed(w.T, json.NewDecoder(response.Body).Decode(&state))
	if len(state.Prefixes) != 3 || !slices.Contains(state.Prefixes, bgpstate.Prefix{Prefix: "10.1.0.0/16", Object: "Subnet web"}) {
		w.Errorf("the prefixes are %+v", state.Prefixes)
	}
	if len(state.Peers) != 1 || !state.Peers[0].Established || len(state.Peers[0].AnnouncedRoutes) != 3 || state.Peers[0].AnnouncedRoutes[0].NextHop != nodeAddress {
		w.Errorf("the peers are %+v", state.Peers)
	}
	values := map[string]float64{}
	families, err := metrics.Registry.(prometheus.Gatherer).Gather()
	must.Succeed(w.T, err)
	for _, f := range families {
		if strings.Contains(f.GetName(), "speaker") {
			values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if values["kube_ovn_speaker_bgp_peer_up"] != 1 || values["kiln_speaker_prefixes"] != 3 || values["kiln_speaker_announced_routes"] != 3 ||
		values["kiln_speaker_objects_beyond_limit"] != 1 {
		w.Errorf("the metrics are %v", values)
	}
}
