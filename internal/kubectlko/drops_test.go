// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// dropLine is a line of ovn-controller about a TCP packet that a policy drops.
func dropLine(acl, direction, source, destination string, port int) string {
	return fmt.Sprintf(`2026-11-30T16:01:56Z|00009|acl_log(ovn_pinctrl0)|INFO|name=%q, verdict=drop, severity=warning, direction=%s: tcp,vlan_tci=0x0000,`+
		`dl_src=02:01:00:00:00:02,dl_dst=02:01:00:00:00:03,nw_src=%s,nw_dst=%s,nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no,tp_src=40001,tp_dst=%d,tcp_flags=syn`,
		acl, direction, source, destination, port)
}

// kubelet serves the log of the pod ovs-ovn of node n1.
type kubelet struct {
	*world
	lines chan string
	mu    sync.Mutex
	// asked has the queries of followed logs.
	asked []string
}

// serveLogs makes node n1 the node of a kubelet with a pod of Open vSwitch.
func (w *world) serveLogs() *kubelet {
	w.Helper()
	k := &kubelet{world: w, lines: make(chan string)}
	server := httptest.NewTLSServer(k)
	w.Cleanup(server.Close)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	must.Succeed(w, err)
	number, err := strconv.Atoi(port)
	must.Succeed(w, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	must.Succeed(w, w.objects.Get(w.Context(), client.ObjectKeyFromObject(node), node))
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	must.Succeed(w, w.objects.Status().Update(w.Context(), node))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "ovs-ovn-n1", Labels: map[string]string{componentLabel: openVSwitch}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "openvswitch", Image: "i"}}},
	}
	w.make(pod)
	pod.Status.Phase = corev1.PodRunning
	must.Succeed(w, w.objects.Status().Update(w.Context(), pod))
	return k
}

// ServeHTTP implements http.Handler: it writes a line of the past, and then the lines of the test.
func (k *kubelet) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/containerLogs/kube-system/ovs-ovn-n1/openvswitch" {
		http.NotFound(out, r)
		return
	}
	k.mu.Lock()
	k.asked = append(k.asked, r.URL.RawQuery)
	k.mu.Unlock()
	line := dropLine("np/closed.bank/ingress/default", "to-lport", "10.16.0.5", "10.16.0.6", 1)
	for line != "end" {
		fmt.Fprintln(out, line)
		out.(http.Flusher).Flush()
		select {
		case line = <-k.lines:
		case <-r.Context().Done():
			return
		}
	}
}

// synchronized is a buffer that is read while it is written.
type synchronized struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *synchronized) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *synchronized) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// dropsCommandRun is a command that runs until interrupt.
type dropsCommandRun struct {
	*kubelet
	out, notes *synchronized
	interrupt  func() error
}

// drops starts `kubectl ko drops` and waits until it follows the log.
func (k *kubelet) drops(args ...string) *dropsCommandRun {
	k.Helper()
	r := &dropsCommandRun{kubelet: k, out: &synchronized{}, notes: &synchronized{}}
	cmd := NewCommand(strings.NewReader(""), r.out, r.notes)
	cmd.SetArgs(append([]string{"--kubeconfig=" + k.kubeconfig}, args...))
	r.start(cmd.ExecuteContext)
	return r
}

// start runs a command until interrupt, and waits until it follows the log.
func (r *dropsCommandRun) start(command func(context.Context) error) {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan error, 1)
	go func() { done <- command(ctx) }()
	r.interrupt = sync.OnceValue(func() error { cancel(); return <-done })
	r.Cleanup(func() { _ = r.interrupt() })
	eventually.Until(r, func() string {
		if len(done) > 0 {
			r.Fatalf("it has ended: %v: %s", r.interrupt(), r.notes)
		}
		if text := r.notes.String(); !strings.Contains(text, "following the logs") {
			return "it does not follow the logs yet: " + text
		}
		return ""
	})
}

// prints waits until the output of the command has a text.
func (r *dropsCommandRun) prints(of *synchronized, text string) {
	r.Helper()
	eventually.Until(r, func() string {
		if !strings.Contains(of.String(), text) {
			return fmt.Sprintf("no %q in %s", text, of)
		}
		return ""
	})
}

// isolate creates a policy that isolates all pods of a namespace.
func (w *world) isolate(namespace, name string) *networkingv1.NetworkPolicy {
	w.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
	w.make(np)
	return np
}

// logsUntil returns the annotation of a policy.
func (w *world) logsUntil(np *networkingv1.NetworkPolicy) string {
	w.Helper()
	must.Succeed(w, w.objects.Get(w.Context(), client.ObjectKeyFromObject(np), np))
	return np.Annotations[kubeovnv1.AnnotationLogDropsUntil.Key()]
}

func TestDropsOfAPod(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	w.runPod("shop", "web", 5)
	w.runPod("bank", "db", 6)
	closed, other := w.isolate("bank", "closed"), w.isolate("shop", "other")
	unrelated := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "unrelated"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "nothing"}},
	}}
	w.make(unrelated)
	k := w.serveLogs()
	r := k.drops("drops", "pod", "bank/db")
	r.prints(r.notes, "annotated with ovn.kubernetes.io/log_drops_until, until the end: NetworkPolicy bank/closed\n")
	until, err := time.Parse(time.RFC3339, w.logsUntil(closed))
	if left := time.Until(until); err != nil || left <= 0 || left > 2*time.Minute {
		t.Errorf("it logs until %s (%v)", until, err)
	}
	if w.logsUntil(other) != "" || w.logsUntil(unrelated) != "" {
		t.Error("policies are annotated that do not select the pod")
	}
	line := dropLine("np/closed.bank/ingress/default", "to-lport", "10.16.0.5", "10.16.0.6", 5432)
	for _, text := range []string{
		line,
		strings.Replace(line, "tp_src=40001", "tp_src=40002", 1),
		strings.Replace(line, "verdict=drop", "verdict=allow", 1),
		dropLine("np/other.shop/ingress/default", "to-lport", "10.16.0.7", "10.16.0.5", 80), // of other pods
		strings.Repeat("x", 1<<20) + line,
		"{\"msg\":\"" + line,
		"",
		dropLine("\x1b[2J", "from-lport", "10.16.0.6", "198.51.100.1", 443),
		dropLine("np/closed.bank/ingress/default", "to-lport", "100.64.0.2", "10.16.0.6", 8080),
	} {
		k.lines <- text
	}
	r.prints(r.out, "16:01:56Z  pod shop/web (10.16.0.5) → pod bank/db (10.16.0.6)  tcp 5432  dropped by NetworkPolicy bank/closed, ingress\n")
	r.prints(r.out, "node n1 (100.64.0.2) → pod bank/db (10.16.0.6)  tcp 8080  dropped by NetworkPolicy bank/closed, ingress\n")
	must.Succeed(t, r.interrupt())
	table := r.out.String()
	_, table, _ = strings.Cut(table, "PACKETS")
	rows := strings.Split(strings.TrimSpace(table), "\n")[1:]
	if len(rows) != 2 || !strings.HasPrefix(rows[0], "2 ") || !strings.Contains(rows[0], "tcp 5432") || !strings.HasSuffix(rows[0], "n1") {
		t.Errorf("%q", rows)
	}
	if strings.Contains(r.out.String(), "\x1b") || strings.Contains(r.out.String(), "10.16.0.7") || strings.Contains(r.out.String(), "tcp 1 ") {
		t.Errorf("%q", r.out)
	}
	if until := w.logsUntil(closed); until != "" {
		t.Errorf("after the end, the policy logs until %s", until)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.asked, []string{"follow=true&tailLines=1"}) {
		t.Errorf("the queries are %q", k.asked)
	}
}

// TestDropsAsJSON ends by its time.
func TestDropsAsJSON(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	w.runPod("bank", "db", 6)
	w.isolate("bank", "closed")
	k := w.serveLogs()
	r := k.drops("drops", "node", "n1", "--for=3s", "-o", "json")
	k.lines <- strings.NewReplacer("tcp,", "icmp6,", "nw_src=10.16.0.6", "ipv6_src=fd00:10:16::6", "nw_dst=198.51.100.1", "ipv6_dst=2001:db8::1", "tp_src=40001,tp_dst=443,tcp_flags=syn", "icmp_type=128,icmp_code=0").
		Replace(dropLine("np/closed.bank/egress/default", "from-lport", "10.16.0.6", "198.51.100.1", 443))
	r.prints(r.out, "\n}\n")
	must.Succeed(t, r.interrupt())
	var report DropsReport
	must.Succeed(t, json.Unmarshal([]byte(r.out.String()), &report))
	if len(report.Drops) != 1 {
		t.Fatalf("%+v", report)
	}
	d := report.Drops[0]
	if d.Packets != 1 || d.Node != "n1" || d.From.Object == nil || d.From.Object.String() != "Pod bank/db" || d.To.Object != nil || d.To.Address.String() != "2001:db8::1" ||
		d.Protocol != "icmp" || d.ICMPType == nil || *d.ICMPType != 128 || len(d.DecidedBy) != 1 || d.DecidedBy[0].String() != "NetworkPolicy bank/closed" || d.DecidedBy[0].Rule != "egress" {
		t.Errorf("%+v", d)
	}
}

// TestAnnotationsOfOthersStay: another run, or a user, has requested the log for longer.
func TestAnnotationsOfOthersStay(t *testing.T) {
	w := newWorld(t)
	w.network("bank")
	w.runPod("bank", "db", 6)
	own, longer, replaced, past := w.isolate("bank", "own"), w.isolate("bank", "longer"), w.isolate("bank", "replaced"), w.isolate("bank", "past")
	key := kubeovnv1.AnnotationLogDropsUntil.Key()
	set := func(np *networkingv1.NetworkPolicy, value string) {
		t.Helper()
		w.logsUntil(np)
		np.Annotations = map[string]string{key: value, "other": "stays"}
		must.Succeed(w, w.objects.Update(t.Context(), np))
	}
	later := time.Now().Add(30 * time.Minute).UTC().Format(time.RFC3339)
	set(longer, later)
	set(past, "2026-01-01T00:00:00Z")
	r := w.serveLogs().drops("drops", "namespace", "bank")
	r.prints(r.notes, "until the end: NetworkPolicy bank/own, NetworkPolicy bank/past, NetworkPolicy bank/replaced\n")
	set(replaced, later)
	must.Succeed(t, r.interrupt())
	for np, want := range map[*networkingv1.NetworkPolicy]string{own: "", longer: later, replaced: later, past: ""} {
		if got := w.logsUntil(np); got != want {
			t.Errorf("%s logs until %q, want %q", np.Name, got, want)
		}
	}
	if past.Annotations["other"] != "stays" {
		t.Errorf("%v", past.Annotations)
	}
}

// TestDropsOfATenant has a user with the role edit in a namespace and without the right to read the logs of nodes, and a user with this right who may not change policies.
func TestDropsOfATenant(t *testing.T) {
	w := newWorld(t)
	w.network("shop")
	w.runPod("shop", "web", 5)
	closed := w.isolate("shop", "closed")
	for _, role := range []string{"edit", "view"} { // the parts of the role edit: no controller joins them here
		w.make(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bob-" + role}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "bob", APIGroup: rbacv1.GroupName}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-" + role},
		})
	}
	const bob = "--as=bob --as-group=system:authenticated"
	w.fails("nothing was annotated, because you may not: list pods in namespace kube-system, get pods/log in namespace kube-system. ", append(strings.Fields(bob), "drops", "pod", "shop/web")...)
	if until := w.logsUntil(closed); until != "" {
		t.Errorf("the policy logs until %s", until)
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"ovn.kubernetes.io/log_drops_until":"2026-11-30T16:00:00Z"}}}`))
	must.Succeed(t, client.NewNamespacedClient(w.as("bob"), "shop").Patch(t.Context(), closed, patch)) // but may request the log

	w.allow("carol", rule("", "pods pods/log", "get list"), rule("networking.k8s.io", "networkpolicies", "list"))
	k := w.serveLogs()
	r := k.drops("--as=carol", "--as-group=system:authenticated", "drops", "pod", "shop/web")
	r.prints(r.notes, "NetworkPolicy shop/closed may log nothing: you may not patch networkpolicies.networking.k8s.io in namespace shop\n")
	r.prints(r.notes, "you may not list subnets.kubeovn.io\n")
	k.lines <- dropLine("np/closed.shop/ingress/default", "to-lport", "10.16.0.9", "10.16.0.5", 80)
	r.prints(r.out, "10.16.0.9 → pod shop/web (10.16.0.5)  tcp 80  dropped by NetworkPolicy shop/closed, ingress\n")
	must.Succeed(t, r.interrupt())
	if want := "because you may not: list ips.kubeovn.io, list services, list nodes\n"; !strings.Contains(r.out.String(), want) {
		t.Errorf("no %q in %s", want, r.out)
	}
	if until := w.logsUntil(closed); until != "2026-11-30T16:00:00Z" {
		t.Errorf("the policy logs until %s", until)
	}
}

// as returns a client of a user.
func (w *world) as(user string) client.Client {
	w.Helper()
	n := &network{world: w, connectivity: &connectivity{podRun: podRun{plugin: &plugin{}}}}
	n.as(user)
	return n.objects
}

func TestDropsWithoutLogs(t *testing.T) {
	w := newWorld(t)
	w.network("shop")
	w.fails("not found", "drops", "pod", "shop/nosuch")
	w.fails("has no pod with an address of Kiln", "drops", "namespace", "shop")
	w.fails("has no pod with an address of Kiln", "drops", "node", "nosuch")
	w.runPod("shop", "web", 5)
	w.fails("cannot be read on the nodes of pod shop/web", "drops", "pod", "shop/web")
	oc := &v1alpha1.OVNCluster{}
	must.Succeed(t, w.objects.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
	oc.Spec.Logging.OVNController = "warn"
	must.Succeed(t, w.objects.Update(t.Context(), oc))
	w.fails("logging.ovnController of the OVNCluster is warn", "drops", "pod", "shop/web")
	oc.Spec.Logging.OVNController, oc.Spec.Policies.NetworkPolicies = "info", v1alpha1.NetworkPoliciesIgnored
	must.Succeed(t, w.objects.Update(t.Context(), oc))
	if said, err := w.ko("drops", "pod", "shop/web"); err == nil || !strings.Contains(said, "is Ignored: another component applies NetworkPolicies and cluster-wide policies") {
		t.Errorf("%v: %s", err, said)
	}
	for _, args := range [][]string{
		{"pod"}, {"pod", "a/b/c"}, {"pod", ""}, {"namespace", ""}, {"subnet", "a"}, {"pod", "a", "b"}, {"pod", "shop/web", "--for=0s"}, {"pod", "shop/web", "--for=25h"}, {"pod", "shop/web", "-o", "wide"},
	} {
		if said, err := w.ko(append([]string{"drops"}, args...)...); err == nil {
			t.Errorf("%q: no error: %s", args, said)
		}
	}
}
