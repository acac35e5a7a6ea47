// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestTypicalMistakes makes the mistakes of docs/user/mistakes.md that the API server and kube-ovn-controller report, and looks where the page says.
func TestTypicalMistakes(t *testing.T) {
	u := newUser(t)
	must.Succeed(t, u.Create(t.Context(), newPod("holder")))
	eventually.Until(t, func() string { return allocated(u, "holder", "10.16.0.2,fd00:10:16::2") })
	pod := func(name, annotation, value string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: default, annotations: {%s: %q}}, spec: {nodeName: n1, containers: [{name: c, image: i}]}}",
			name, annotation, value)
	}
	cluster := func(name, spec string) string {
		return fmt.Sprintf("{apiVersion: kubeovn.io/v1alpha1, kind: OVNCluster, metadata: {name: %s}, spec: %s}", name, spec)
	}
	network := func(kind, name, spec string) string {
		return fmt.Sprintf("{apiVersion: kubeovn.io/v1, kind: %s, metadata: {name: %s}, spec: %s}", kind, name, spec)
	}
	for _, subnet := range []string{
		network("Subnet", "tiny", "{cidrBlock: 10.81.0.0/30, gateway: 10.81.0.1, excludeIps: [10.81.0.2]}"),
		network("Subnet", "vault", "{cidrBlock: 10.82.0.0/24, private: true}"),
	} {
		o := &unstructured.Unstructured{}
		must.Succeed(t, yaml.Unmarshal([]byte(subnet), &o.Object))
		must.Succeed(t, u.Create(t.Context(), o))
	}
	for _, tt := range []struct {
		row    int // of docs/user/mistakes.md
		object string
		change string // a merge patch of the object, if that is the mistake
	}{
		{row: 1, object: cluster("second", "{}")},
		{row: 2, object: cluster("default", "{network: {podCIDRs: [10.100.0.0/16]}}")},
		{row: 3, object: cluster("default", "{network: {podCIDRs: [10.0.0.1/16]}}")},
		{row: 4, object: cluster("default", "{services: {nodeAccess: Kiln}}")},
		{row: 5, object: cluster("default", "{nodes: {datapath: Userspace}}")},
		{row: 8, object: cluster("default", "{central: {replicas: 2}}")},
		{row: 13, object: cluster("default", "{}"), change: "{spec: {network: {podCIDRs: [10.32.0.0/16]}}}"},
		{row: 14, object: network("Subnet", "overlaps", "{cidrBlock: 10.16.128.0/24}")},
		{row: 15, object: network("Subnet", "far", "{cidrBlock: 10.77.0.0/24, gateway: 10.78.0.1}")},
		{row: 16, object: network("Subnet", "typo", `{cidrBlock: 10.79.0.0/24, acls: [{action: drop, direction: to-lport, priority: 1, match: "ip4.src = 10.0.0.1"}]}`)},
		{row: 17, object: network("Subnet", "tagged", "{cidrBlock: 10.80.0.0/24, vlan: missing}")},
		{row: 18, object: network("VpcDns", "v", "{vpc: p, subnet: s}")},
		{row: 19, object: network("Vip", "moves", "{subnet: ovn-default, v4ip: 10.16.0.9}"), change: "{spec: {v4ip: 10.16.0.10}}"},
		{row: 20, object: pod("gateway", "ovn.kubernetes.io/ip_address", "10.16.0.1")},
		{row: 21, object: pod("outside", "ovn.kubernetes.io/ip_address", "192.0.2.7")},
		{row: 22, object: pod("second", "ovn.kubernetes.io/ip_address", "10.16.0.2")},
		{row: 23, object: pod("unreadable", "ovn.kubernetes.io/ip_address", "10.0.0.300")},
		{row: 24, object: pod("misspelt", "ovn.kubernetes.io/ip_addr", "10.16.0.9")},
		{row: 25, object: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: misplaced, namespace: default, annotations: {ovn.kubernetes.io/ip_pool: p}}, spec: " +
			"{selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: i}]}}}}"},
		{row: 26, object: pod("limited", "ovn.kubernetes.io/activation_strategy", "parallel")},
		{row: 27, object: pod("crowded", "ovn.kubernetes.io/logical_switch", "tiny")},
		{row: 29, object: pod("uninvited", "ovn.kubernetes.io/logical_switch", "vault")},
		{row: 30, object: pod("lost", "ovn.kubernetes.io/logical_switch", "nowhere")},
		{row: 32, object: network("Subnet", "excluding", "{cidrBlock: 10.83.0.0/24, excludeIps: [10.83.1.5]}")},
		{row: 33, object: network("Subnet", "unmasked", "{cidrBlock: 10.84.0.5/24}")},
		{row: 34, object: network("Vip", "dashed", "{subnet: ovn-default, type: switch-lb-vip}")},
		{row: 35, object: pod("grouped", "kubeovn.io/ip_address", "10.16.0.9")},
		{row: 36, object: pod("attached", "k8s.v1.cni.cncf.io/networks", "net1")},
		{row: 37, object: network("Subnet", "foreign", "{cidrBlock: 10.85.0.0/24, provider: net1.default.ovn}")},
		{row: 43, object: network("SwitchLBRule", "selects", `{vip: 10.96.7.7, selector: ["app=web"], ports: [{port: 80}]}`)},
		{row: 43, object: network("RouterLBRule", "selects", `{ovnEip: e, selector: ["app=web"], ports: [{port: 80}]}`)},
		{row: 43, object: network("Vip", "selects", `{subnet: ovn-default, namespace: default, selector: ["app=web"]}`)},
		{row: 44, object: network("SecurityGroup", "reversed",
			"{ingressRules: [{ipVersion: ipv4, protocol: tcp, priority: 1, remoteType: address, remoteAddress: 10.0.0.1, portRangeMin: 90, portRangeMax: 80, policy: allow}]}")},
		{row: 45, object: network("Subnet", "leases", "{cidrBlock: 10.88.0.0/24, enableDHCP: true, dhcpV4Options: lease=3600}")},
		{row: 46, object: network("Subnet", "central", "{cidrBlock: 10.86.0.0/24, gatewayType: centralized, gatewayNode: worker-9}")},
		{row: 49, object: network("Subnet", "vpcless", "{cidrBlock: 10.87.0.0/24, vpc: nosuchvpc}")},
		{row: 50, object: cluster("default", "{services: {loadBalancerPools: [{class: public, addresses: [192.0.2.1]}]}}")},
	} {
		t.Run(fmt.Sprint("row ", tt.row), func(t *testing.T) {
			o := &unstructured.Unstructured{}
			must.Succeed(t, yaml.Unmarshal([]byte(tt.object), &o.Object))
			u.apply(t, o, tt.change)
			eventually.Until(t, func() string { return u.misses(t, o, mistakes.Mistakes.Of(t, tt.row)) })
		})
	}
}

// user is a user of a cluster with kube-ovn-controller and the admission policies that inform users.
type user struct {
	client.Client
	mu sync.Mutex
	// said has the answers of the API server to the last apply, by where the page says that they are seen.
	said map[string]string
}

func newUser(t *testing.T) *user {
	t.Helper()
	c := startAPIServer(t) // for this test only: other tests do without the policies
	certificates := newCertificates(t)
	listen(t, certificates, 9, nbtest.Start(t))
	newCluster(t, c, 9)
	oc := &v1alpha1.OVNCluster{}
	must.Succeed(t, c.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
	oc.Status.PodCIDRs = oc.Spec.Network.PodCIDRs // the operator writes it
	must.Succeed(t, c.Status().Update(t.Context(), oc))
	must.Succeed(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	for _, o := range render.Policies(render.Config{Namespace: "kube-system"}) {
		if render.Informs(o) {
			must.Succeed(t, c.Create(t.Context(), o.(client.Object)))
		}
	}
	startController(t, certificates, "controller", os.Getenv("KUBECONFIG"), healthAt(16), "--pod-cidrs=10.16.0.0/16,fd00:10:16::/64")
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must.Succeed(t, err)
	u := &user{}
	config.WarningHandler = u
	u.Client, err = client.New(config, client.Options{Scheme: c.Scheme()})
	must.Succeed(t, err)
	eventually.Until(t, func() string { // the API server loads policies by a watch
		probe := newPod("probe")
		probe.Annotations = map[string]string{"ovn.kubernetes.io/unknown": "a", "ovn.kubernetes.io/vip": "A"}
		u.said = map[string]string{}
		if err := u.Create(t.Context(), probe, client.DryRunAll); err == nil || u.said["warning"] == "" {
			return fmt.Sprintf("the policies are not loaded: %v", u.said)
		}
		return ""
	})
	return u
}

// HandleWarningHeader implements rest.WarningHandler.
func (u *user) HandleWarningHeader(_ int, _, text string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.said["warning"] += text + "\n"
}

// apply creates an object and, if change is not empty, changes it.
func (u *user) apply(t *testing.T, o *unstructured.Unstructured, change string) {
	t.Helper()
	u.said = map[string]string{}
	err := u.Create(t.Context(), o)
	if change != "" {
		must.Succeed(t, client.IgnoreAlreadyExists(err))
		patch, err2 := yaml.YAMLToJSON([]byte(change))
		must.Succeed(t, err2)
		err = u.Patch(t.Context(), o.DeepCopy(), client.RawPatch("application/merge-patch+json", patch))
	}
	if err != nil {
		u.said["error"] = err.Error()
	}
}

// misses returns the first message of a row that is not where the page says, or "".
func (u *user) misses(t *testing.T, o *unstructured.Unstructured, row mistakes.Row) string {
	t.Helper()
	seen := map[string]string{"error": u.said["error"], "warning": u.said["warning"]}
	if stored := o.DeepCopy(); u.Get(t.Context(), client.ObjectKeyFromObject(o), stored) == nil {
		conditions, _, _ := unstructured.NestedSlice(stored.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok {
				seen[fmt.Sprint(c["type"], " ", c["status"])] += fmt.Sprint(c["message"], "\n")
			}
		}
	}
	var events eventsv1.EventList
	must.Succeed(t, u.List(t.Context(), &events))
	for i := range events.Items {
		if e := &events.Items[i]; e.Regarding.Name == o.GetName() && e.Regarding.Kind == o.GetKind() {
			seen["event"] += e.Note + "\n"
		}
	}
	for _, message := range row.Seen {
		looked := 0
		for _, place := range []string{"error", "warning", "event", "Validated False", "GatewayReady False", "Ready False"} {
			if !strings.Contains(message.Where, place) {
				continue
			}
			looked++
			if !message.In(seen[place]) {
				return fmt.Sprintf("%s: %q, want %q", place, seen[place], message.Text)
			}
		}
		if looked == 0 {
			return fmt.Sprintf("the test does not know the place %q", message.Where)
		}
	}
	return ""
}
