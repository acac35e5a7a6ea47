// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	utilexec "k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/trace"
	"github.com/kiln-net/kiln/internal/trace/reader"
)

func TestTraceArguments(t *testing.T) {
	for args, want := range map[string]string{
		"web 10.0.0.1 icmp":                          "pod default/web, 10.0.0.1, icmp 0",
		"shop/web 10.0.0.1 tcp 80":                   "pod shop/web, 10.0.0.1, tcp 80",
		"shop/web 10.0.0.1 aa:bb:cc:00:00:01 udp 53": "pod shop/web, 10.0.0.1, udp 53",
		"shop/web fd00::1 arp request":               "pod shop/web, fd00::1, arp 0",
		"shop/web fd00::1 nd":                        "pod shop/web, fd00::1, arp 0",
		"node//n1 bank/db 5432":                      "node n1, pod bank/db,  5432",
		"shop/web bank/db tcp/80":                    "pod shop/web, pod bank/db, tcp 80",
		"shop/web bank/db 80/sctp":                   "pod shop/web, pod bank/db, sctp 80",
		"shop/web svc/bank/db":                       "pod shop/web, Service bank/db,  0",
		"shop/web db.bank.svc.cluster.local tcp 80":  "pod shop/web, Service bank/db, tcp 80",
		"shop/web db.bank.svc":                       "pod shop/web, Service bank/db,  0",
		"web example.com tcp 80":                     "pod default/web, pod default/example.com, tcp 80", // resolved if there is no such pod
		"192.0.2.1 ::ffff:10.0.0.1 tcp 80":           "192.0.2.1, 10.0.0.1, tcp 80",
		"shop/web":                                   "two ends are needed",
		"shop/web a/b/c 80":                          "neither NAMESPACE/POD",
		"svc/shop/web bank/db 80":                    "a Service opens no connections",
		"shop/web bank/db tcp":                       "which port",
		"shop/web bank/db icmp 80":                   "has no ports",
		"shop/web bank/db http":                      "neither a protocol nor a port",
		"shop/web bank/db tcp 70000":                 "is no port",
	} {
		q, err := parseQuery(strings.Fields(args))
		got := fmt.Sprintf("%s, %s, %s %d", q.From, q.To, q.Protocol, q.Port)
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

// TestTraceWithoutACluster: 1 would mean that the packet is dropped.
func TestTraceWithoutACluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	for _, args := range []string{"trace a b 80", "trace", "trace --nosuch a b", "trace a b c d e"} {
		_, err := run(strings.Fields(args)...)
		if code := codeOf(err); code != cannotTell {
			t.Errorf("%s: exit code %d (%v)", args, code, err)
		}
	}
}

func codeOf(err error) int {
	if exit := (utilexec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitStatus()
	}
	if err != nil {
		return 1
	}
	return 0
}

// make creates an object and deletes it at the end.
func (w *world) make(o client.Object) {
	w.Helper()
	must.Succeed(w, w.objects.Create(w.Context(), o))
	w.Cleanup(func() {
		must.Succeed(w, client.IgnoreNotFound(w.objects.Delete(context.Background(), o, client.GracePeriodSeconds(0))))
	})
}

// network creates the default subnets, a node with its record, and namespaces.
func (w *world) network(namespaces ...string) {
	w.Helper()
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}
	w.make(vpc)
	for name, cidrs := range map[string]string{kubeovnv1.DefaultSubnet: "10.16.0.0/16,fd00:10:16::/112", kubeovnv1.JoinSubnet: "100.64.0.0/16,fd00:100:64::/112"} {
		s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidrs, NATOutgoing: true}}
		w.make(s)
		s.Status.ValidatedSpec = s.Spec.DeepCopy()
		s.Status.Conditions = []kubeovnv1.Condition{condition(kubeovnv1.ConditionValidated, metav1.ConditionTrue, "valid")}
		s.Status.Conditions[0].ObservedGeneration = s.Generation
		must.Succeed(w, w.objects.Status().Update(w.Context(), s))
	}
	w.readyNode("n1")
	w.make(&kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.NodePortName("n1"), Annotations: map[string]string{kubeovnv1.AnnotationNodeAddresses.Key(): "172.18.0.2,fc00:172::2"}},
		Spec:       kubeovnv1.IPSpec{NodeName: "n1", PodName: "n1", IPAddress: "100.64.0.2,fd00:100:64::2", V4IPAddress: "100.64.0.2", V6IPAddress: "fd00:100:64::2"},
	})
	for _, name := range namespaces { // envtest has no controller that would delete a namespace
		err := w.objects.Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		must.Succeed(w, client.IgnoreAlreadyExists(err))
	}
}

func (w *world) readyNode(name string) {
	w.Helper()
	w.setNode(name, corev1.ConditionFalse)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must.Succeed(w, w.objects.Get(w.Context(), client.ObjectKeyFromObject(node), node))
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
	must.Succeed(w, w.objects.Status().Update(w.Context(), node))
}

// runPod creates a pod with addresses.
func (w *world) runPod(namespace, name string, last int) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}}
	pod.Spec.NodeName = "n1"
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	w.make(pod)
	network := kubeovnv1.PodNetwork{UID: pod.UID, Allocated: true, Routed: true, LogicalSwitch: kubeovnv1.DefaultSubnet, LogicalRouter: kubeovnv1.DefaultVpc, MAC: []byte{2, 0, 0, 0, 0, byte(last)}}
	for _, text := range []string{"10.16.0.%d", "fd00:10:16::%d"} {
		network.Addresses = append(network.Addresses, netip.MustParseAddr(fmt.Sprintf(text, last)))
	}
	network.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")}
	network.Gateways = []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00:10:16::1")}
	pod.Annotations = network.Annotations()
	must.Succeed(w, w.objects.Update(w.Context(), pod))
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, network.Addresses[0].String()
	pod.Status.PodIPs = []corev1.PodIP{{IP: network.Addresses[0].String()}, {IP: network.Addresses[1].String()}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	must.Succeed(w, w.objects.Status().Update(w.Context(), pod))
	w.make(&kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: name + "." + namespace, Labels: map[string]string{kubeovnv1.LabelSubnet: kubeovnv1.DefaultSubnet}},
		Spec:       kubeovnv1.IPSpec{PodName: name, Namespace: namespace, Subnet: kubeovnv1.DefaultSubnet, IPAddress: network.Addresses[0].String() + "," + network.Addresses[1].String(), V4IPAddress: network.Addresses[0].String(), V6IPAddress: network.Addresses[1].String()},
	})
	return pod
}

// ask runs trace, and returns its JSON and the exit code.
func (w *world) ask(args string) (trace.Answer, int) {
	w.Helper()
	before, rest, _ := strings.Cut(args, "trace ")
	out, err := w.ko(append(append(strings.Fields(before), "trace", "-o", "json"), strings.Fields(rest)...)...)
	var a trace.Answer
	if jsonErr := json.Unmarshal([]byte(out), &a); jsonErr != nil {
		w.Errorf("%s: %v: %s (%v)", args, jsonErr, out, err)
	}
	return a, codeOf(err)
}

func TestTrace(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	w.runPod("shop", "web", 5)
	db := w.runPod("bank", "db", 6)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "sql"}, Spec: corev1.ServiceSpec{
		Selector: db.Labels, Ports: []corev1.ServicePort{{Port: 5432}},
	}}
	w.make(service)
	port := int32(5432)
	w.make(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "bank", Name: "sql-1", Labels: map[string]string{discoveryv1.LabelServiceName: "sql"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.16.0.6"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "bank", Name: "db"}}},
	})
	questions := []string{
		"trace shop/web bank/db 5432", "trace shop/web 10.16.0.6 tcp 5432", "trace shop/web fd00:10:16::6 tcp 5432", "trace 10.16.0.5 bank/db 5432",
		"trace shop/web bank/sql", "trace shop/web " + service.Spec.ClusterIP + " 5432",
	}
	for _, q := range questions {
		if a, code := w.ask(q); a.Verdict != trace.Delivered || code != 0 {
			t.Errorf("%s: %d, %+v", q, code, a)
		}
	}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "closed"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
	w.make(np)
	for _, q := range questions {
		a, code := w.ask(q)
		if a.Verdict != trace.Dropped || code != 1 || a.Traces[0].DecidedBy == nil || a.Traces[0].DecidedBy.String() != "NetworkPolicy bank/closed" {
			t.Errorf("%s: %d, %+v", q, code, a)
		}
	}
	w.readyNode("n2")
	w.make(&kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.NodePortName("n2")},
		Spec:       kubeovnv1.IPSpec{NodeName: "n2", PodName: "n2", IPAddress: "100.64.0.3,fd00:100:64::3", V4IPAddress: "100.64.0.3", V6IPAddress: "fd00:100:64::3"},
	})
	if a, code := w.ask("trace shop/web 100.64.0.3 icmp"); code != 0 { // the address of a node on the subnet join
		t.Errorf("%d, %+v", code, a)
	}
	out, err := w.ko("trace", "shop/web", "bank/db", "5432")
	for _, want := range []string{
		"IPv4, tcp 5432, pod shop/web (10.16.0.5) to pod bank/db (10.16.0.6)\n", "Dropped by NetworkPolicy bank/closed\n",
		"Change: add an ingress rule for pod shop/web (app=web) and tcp port 5432 to NetworkPolicy bank/closed, or delete it\n",
		"IPv6: the same, from fd00:10:16::5 to fd00:10:16::6\n",
	} {
		if !strings.Contains(out, want) || codeOf(err) != 1 {
			t.Errorf("no %q in %s (%v)", want, out, err)
		}
	}
	for q, object := range map[string]string{
		"trace shop/nosuch bank/db 80": "Pod shop/nosuch", "trace shop/web bank/nosuch 80": "Pod bank/nosuch", "trace shop/web node//nosuch 80": "Node nosuch",
		"trace shop/web svc/bank/nosuch 80": "Service bank/nosuch", "trace shpo/web bank/db 80": "Namespace shpo", "trace shop/web svc/bnak/db 80": "Namespace bnak",
	} { // 1 would mean that the packet is dropped
		if a, code := w.ask(q); code != cannotTell || a.Traces[0].DecidedBy == nil || a.Traces[0].DecidedBy.String() != object {
			t.Errorf("%s: %d, %+v", q, code, a)
		}
	}
}

// TestTraceFollowsManyEndpoints has a Service with more endpoints than requests run at the same time, in three EndpointSlices. A policy isolates the last one.
func TestTraceFollowsManyEndpoints(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	w.runPod("shop", "web", 5)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "sql"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5432}}}}
	w.make(service)
	const all = 40
	port, number := int32(5432), 100
	for i := range 3 {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "bank", Name: fmt.Sprint("sql-", i), Labels: map[string]string{discoveryv1.LabelServiceName: "sql"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: &port}},
		}
		for ; number < 100+all*(i+1)/3; number++ {
			name := fmt.Sprint("db-", number)
			w.runPod("bank", name, number)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprint("10.16.0.", number)}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "bank", Name: name},
			})
		}
		w.make(slice)
	}
	const question = "trace shop/web svc/bank/sql"
	if a, code := w.ask(question); code != 0 || len(a.Traces[0].Endpoints) != all {
		t.Errorf("%d, %+v", code, a)
	}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "closed"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("db-", number-1)}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
	w.make(np)
	out, err := w.ko(strings.Fields(question)...)
	if want := "of 40, the packet reaches 39 and is dropped on the way to 1: 1 dropped by NetworkPolicy bank/closed (10.16.0.139:5432)"; codeOf(err) != cannotTell || !strings.Contains(out, want) {
		t.Errorf("no %q in %s (%v)", want, out, err)
	}
}

// TestTraceOfAnAddressOfTwoVpcs: the second address of a pod is in its IP object only.
func TestTraceOfAnAddressOfTwoVpcs(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	w.runPod("shop", "web", 5)
	w.runPod("bank", "db", 6)
	twin := w.runPod("bank", "twin", 5)
	w.make(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "red"}})
	twin.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] = "red"
	must.Succeed(w, w.objects.Update(t.Context(), twin))
	for question, want := range map[string]string{
		"10.16.0.5 bank/db 80":       "write the name of one of them as A instead of the address: bank/twin, shop/web",
		"fd00:10:16::5 bank/db 80":   "write the name of one of them as A instead of the address: bank/twin, shop/web",
		"bank/db 10.16.0.5 tcp 80":   "the packet reaches pod shop/web",
		"bank/twin 10.16.0.6 tcp 80": "which is the address of pod bank/db of Vpc ovn-cluster",
	} {
		out, err := w.ko(append([]string{"trace"}, strings.Fields(question)...)...)
		if !strings.Contains(out, want) {
			t.Errorf("%s: no %q in %s (%v)", question, want, out, err)
		}
	}
}

// TestTraceListsNodesOnce: a node has an address of each family, and each end may have several.
func TestTraceListsNodesOnce(t *testing.T) {
	w := newWorld(t)
	w.network()
	address := netip.MustParseAddr
	q := trace.Query{
		From: trace.End{Host: "a", Addresses: []netip.Addr{address("203.0.113.9"), address("2001:db8::9")}}, Protocol: trace.TCP, Port: 80,
		To: trace.End{Host: "b", Addresses: []netip.Addr{address("172.18.0.2"), address("fc00:172::2")}},
	}
	lists := &counter{counted: func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/nodes") }}
	config := rest.CopyConfig(shared.Config)
	config.Wrap(func(of http.RoundTripper) http.RoundTripper { lists.RoundTripper = of; return lists })
	scheme, err := reader.Scheme()
	must.Succeed(t, err)
	c, err := client.New(config, client.Options{Scheme: scheme})
	must.Succeed(t, err)
	_, err = reader.Read(t.Context(), c, q)
	must.Succeed(t, err)
	if n := lists.requests.Load(); n != 1 {
		t.Errorf("%d lists of nodes", n)
	}
}

// TestTraceToAnExternalAddress asks from a host outside: the pod behind the address is in the rule only.
func TestTraceToAnExternalAddress(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	w.runPod("bank", "db", 6)
	vpc := &kubeovnv1.Vpc{}
	must.Succeed(w, w.objects.Get(t.Context(), client.ObjectKey{Name: kubeovnv1.DefaultVpc}, vpc))
	vpc.Status.ExtraExternalSubnets = []string{"ext"}
	must.Succeed(w, w.objects.Status().Update(t.Context(), vpc))
	w.make(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "192.0.2.0/24", Gateway: "192.0.2.254", Vlan: "vlan9"}})
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext"}}
	w.make(eip)
	eip.Status.V4IP = "192.0.2.30"
	must.Succeed(w, w.objects.Status().Update(t.Context(), eip))
	fip := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: kubeovnv1.OvnFipSpec{OvnEip: "db", IPName: "db.bank"}}
	w.make(fip)
	fip.Status = kubeovnv1.OvnFipStatus{Ready: true, Vpc: kubeovnv1.DefaultVpc, V4Eip: "192.0.2.30", V4IP: "10.16.0.6"}
	must.Succeed(w, w.objects.Status().Update(t.Context(), fip))
	const question = "trace 203.0.113.9 192.0.2.30 5432"
	if a, code := w.ask(question); a.Verdict != trace.Delivered || code != 0 {
		t.Errorf("%d, %+v", code, a)
	}
	w.make(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "closed"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}})
	if a, code := w.ask(question); code != 1 || a.Traces[0].DecidedBy == nil || a.Traces[0].DecidedBy.String() != "NetworkPolicy bank/closed" {
		t.Errorf("%d, %+v", code, a)
	}
}

// TestTraceOfATenant has a user with the role edit in one namespace: the answer has what the user may read, and no name of another tenant.
func TestTraceOfATenant(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	w.runPod("shop", "web", 5)
	w.runPod("shop", "api", 7)
	w.runPod("bank", "vault", 6)
	w.make(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "secret"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}})
	for _, role := range []string{"edit", "view"} { // the parts of the role edit: no controller joins them here
		w.make(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "alice-" + role}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "alice", APIGroup: rbacv1.GroupName}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-" + role},
		})
	}
	const as = "--as=alice --as-group=system:authenticated "
	for _, q := range []string{"trace shop/web bank/vault 80", "trace shop/web 10.16.0.6 tcp 80", "trace shop/web shop/api 80"} {
		a, code := w.ask(as + q)
		if a.Verdict != trace.CannotTell || code != 2 || len(a.Unread) == 0 {
			t.Errorf("%s: %d, %+v", q, code, a)
		}
		text, _ := json.Marshal(a)
		for _, name := range []string{"secret", "vault"} {
			if !strings.Contains(q, name) && bytes.Contains(text, []byte(name)) || name == "secret" && bytes.Contains(text, []byte(name)) {
				t.Errorf("%s: the answer has the name %s: %s", q, name, text)
			}
		}
	}
	a, _ := w.ask(as + "trace shop/web shop/api 80")
	if !slicesHave(a.Unread, "list subnets.kubeovn.io") || slicesHave(a.Unread, "in namespace shop") {
		t.Errorf("missing permissions: %v", a.Unread)
	}
	w.make(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "own"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
	}})
	for _, q := range []string{"trace shop/web bank/vault 80", "trace shop/web 10.16.0.6 tcp 80", "trace shop/web shop/api 80"} {
		a, code := w.ask(as + q)
		if strings.Contains(q, "bank/vault") { // its address cannot be read
			if code != 2 {
				t.Errorf("%s: %d, %+v", q, code, a)
			}
			continue
		}
		if code != 1 || a.Traces[0].DecidedBy.String() != "NetworkPolicy shop/own" {
			t.Errorf("%s: %d, %+v", q, code, a)
		}
	}
}

func slicesHave(list []trace.Unread, text string) bool {
	for _, u := range list {
		if strings.Contains(u.String(), text) {
			return true
		}
	}
	return false
}

// TestFamiliesWithOtherEndpointsAreNotTheSame: the step about endpoints has their numbers.
func TestFamiliesWithOtherEndpointsAreNotTheSame(t *testing.T) {
	of := func(family string, verdicts ...trace.Verdict) trace.Trace {
		made := trace.Trace{Family: family, Verdict: trace.CannotTell, Steps: []trace.Step{{Effect: trace.Unclear, Text: fmt.Sprint("of ", len(verdicts))}}}
		for _, v := range verdicts {
			made.Endpoints = append(made.Endpoints, trace.Endpoint{Verdict: v})
		}
		return made
	}
	a := trace.Answer{Traces: []trace.Trace{of("IPv4", trace.Delivered, trace.Dropped), of("IPv6", trace.Delivered, trace.Dropped, trace.Dropped)}}
	var out bytes.Buffer
	must.Succeed(t, writeAnswer(&out, &a))
	if !strings.Contains(out.String(), "of 3") {
		t.Errorf("got %q", out.String())
	}
}

// TestTraceHasNoControlCharacters: texts of other users cannot forge lines of the answer.
func TestTraceHasNoControlCharacters(t *testing.T) {
	a := trace.Answer{Traces: []trace.Trace{{Family: "IPv4", Verdict: trace.Dropped, Steps: []trace.Step{{Effect: trace.Drops, Text: "lost\nDelivered\x1b[2J"}}}}}
	var out bytes.Buffer
	must.Succeed(t, writeAnswer(&out, &a))
	if !strings.Contains(out.String(), "lost?Delivered?[2J\nDropped\n") {
		t.Errorf("got %q", out.String())
	}
}
