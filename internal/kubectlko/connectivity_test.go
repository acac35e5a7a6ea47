// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/netprobe"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/validation"
)

// network plays kubelets and the network: it starts pods, and answers as packets would.
type network struct {
	*world
	*connectivity
	out *bytes.Buffer
	// prefixes have the first parts of addresses of pods that request a Subnet.
	prefixes map[string][]string
	// kubelets are the client that plays, also if the run acts as another user.
	kubelets kubernetes.Interface
	// broken returns true if packets from one pod to another are lost, and late true for pods that do not start.
	broken func(from, to *corev1.Pod) bool
	late   func(pod *corev1.Pod) bool

	mu   sync.Mutex
	pods map[netip.Addr]*corev1.Pod
}

// newNetwork returns a cluster with two nodes and both families, and a run of `kubectl ko test` in it.
func newNetwork(t *testing.T) *network {
	w := newWorld(t)
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ovn-default"}, Spec: kubeovnv1.SubnetSpec{Default: true, CIDRBlock: "10.16.0.0/16,fd00:10:16::/112"}}
	must.Succeed(w, w.objects.Create(t.Context(), subnet))
	t.Cleanup(func() { must.Succeed(w, w.objects.Delete(context.Background(), subnet)) })
	for _, node := range []string{"node-1", "node-2"} {
		must.Succeed(w, w.objects.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-ovn-cni-" + node, Labels: map[string]string{componentLabel: agent}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "agent", Image: "registry.example/kiln:" + node}}},
		}))
	}
	n := &network{
		world: w, out: &bytes.Buffer{}, pods: map[netip.Addr]*corev1.Pod{}, prefixes: map[string][]string{},
		broken: func(_, _ *corev1.Pod) bool { return false }, late: func(*corev1.Pod) bool { return false },
	}
	p := &plugin{out: n.out, errOut: n.out, namespace: "kube-system"}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: w.kubeconfig}
	must.Succeed(w, p.connect(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})))
	n.kubelets = p.pods
	n.connectivity = p.newConnectivity(podRunFlags{maxNodes: 8}, connectivityFlags{vpcCIDRs: []string{"198.18.17.0/24", "fd00:198:18:17::/112"}})
	n.startTime, n.removal, n.probe = 30*time.Second, 30*time.Second, n.answer
	n.play()
	return n
}

// play starts pods, makes a valid Subnet ready, and deletes namespaces, as kubelets and controllers do.
func (n *network) play() {
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	n.Cleanup(func() { stop(); all.Wait() })
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.NamespaceList{}, &kubeovnv1.SubnetList{}} {
		events, err := n.objects.Watch(ctx, list)
		must.Succeed(n.world, err)
		all.Go(func() {
			for event := range events.ResultChan() {
				o, is := event.Object.(client.Object)
				if !is || !strings.HasPrefix(o.GetName(), "kiln-test-") && !strings.HasPrefix(o.GetNamespace(), "kiln-test-") {
					continue
				}
				if err := n.react(ctx, event.Type, o); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					n.Error(err)
				}
			}
		})
	}
}

func (n *network) react(ctx context.Context, event watch.EventType, o client.Object) error {
	switch o := o.(type) {
	case *corev1.Pod:
		if event == watch.Added && !n.late(o) {
			return n.start(ctx, o)
		}
	case *corev1.Namespace:
		if o.DeletionTimestamp != nil && len(o.Spec.Finalizers) > 0 {
			o.Spec.Finalizers = nil
			_, err := n.kubelets.CoreV1().Namespaces().Finalize(ctx, o, metav1.UpdateOptions{})
			return err
		}
	case *kubeovnv1.Subnet:
		if event == watch.Added {
			ready := kubeovnv1.Condition{Type: kubeovnv1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now()}
			if _, problem := validation.Subnet(o.Name, &o.Spec); problem != nil {
				ready.Status, ready.Message = metav1.ConditionFalse, problem.Message
			}
			o.Status.Conditions = []kubeovnv1.Condition{ready}
			return n.objects.Status().Update(ctx, o)
		}
	}
	return nil
}

// start gives a pod addresses of both families.
func (n *network) start(ctx context.Context, pod *corev1.Pod) error {
	n.mu.Lock()
	number := len(n.pods) + 10
	prefixes := []string{"10.16.0.%d", "fd00:10:16::%d"}
	switch {
	case pod.Spec.HostNetwork:
		prefixes = []string{"192.0.2.%d", "2001:db8::%d"}
	case pod.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()] != "":
		prefixes = n.prefixes[pod.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()]]
	case pod.Namespace == n.vpcNamespace():
		prefixes = []string{"198.18.17.%d", "fd00:198:18:17::%d"}
	case pod.Annotations[kubeovnv1.AnnotationIPFamily.Key()] == "ipv6":
		prefixes = prefixes[1:]
	}
	pod.Status.Phase = corev1.PodRunning
	for _, prefix := range prefixes {
		address := fmt.Sprintf(prefix, number)
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address})
		n.pods[netip.MustParseAddr(address)] = pod
	}
	n.mu.Unlock()
	pod.Status.PodIP = pod.Status.PodIPs[0].IP
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return n.objects.Status().Update(ctx, pod)
}

// answer plays the client in a pod.
func (n *network) answer(ctx context.Context, from *corev1.Pod, targets []netprobe.Target) ([]netprobe.Answer, error) {
	var policies networkingv1.NetworkPolicyList
	if err := n.objects.List(ctx, &policies, client.InNamespace(n.name)); err != nil {
		return nil, err
	}
	answers := make([]netprobe.Answer, len(targets))
	for i, t := range targets {
		address, err := netip.ParseAddr(t.Address)
		if port, other := netip.ParseAddrPort(t.Address); err != nil && other == nil {
			address = port.Addr()
		}
		n.mu.Lock()
		to := n.pods[address]
		n.mu.Unlock()
		if to == nil && t.Want == n.served() { // through the Service
			to = n.running[n.served()]
		}
		passes := to == nil || !n.broken(from, to)
		if to != nil && to.Namespace != from.Namespace {
			passes = false
		}
		if to != nil && to.Name == closedPod && len(policies.Items) > 0 {
			_, admitted := from.Labels[accessLabel]
			passes = passes && admitted && t.Protocol == netprobe.TCP
		}
		if passes == t.Blocked {
			answers[i].Error = map[bool]string{true: "it answers, and must not", false: "i/o timeout"}[passes]
		}
	}
	return answers, nil
}

func (n *network) isGone() bool {
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.vpcNamespace()}},
		&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: n.vpc()}}, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: n.name}},
	} {
		if err := n.objects.Get(context.Background(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return false
		}
	}
	return true
}

func TestAHealthyNetworkPasses(t *testing.T) {
	n := newNetwork(t)
	n.outside = []string{"203.0.113.1:443", "[2001:db8:1::1]:443"}
	if err := n.run(t.Context()); err != nil {
		t.Errorf("%v\n%s", err, n.out)
	}
	for _, want := range []string{
		"ok    pods start: 10", "ok    kubelet probe → pod IPv6: 1,", "ok    pod → pod, across nodes, udp IPv6: 2,", "ok    pod → Service IPv4: 4,", "ok    node → pod, tcp IPv6: 4,",
		"ok    pod → outside IPv6: 2,", "ok    NetworkPolicy: other pods ↛ pod IPv4: 1,", "ok    pod in a VPC ↛ pod outside of it IPv6: 3,", "ok    pod → API server IPv4: 2,", "checks passed",
	} {
		if !strings.Contains(n.out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(n.out)
	}
	if !n.isGone() {
		t.Error("objects are left")
	}
}

func TestAFailureNamesTheNodes(t *testing.T) {
	n := newNetwork(t)
	n.broken = func(from, to *corev1.Pod) bool { return from.Spec.NodeName == "node-2" && to.Spec.NodeName == "node-1" }
	err := n.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "node-2 → node-1") || strings.Contains(err.Error(), "node-1 → node-2") {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(n.out.String(), "FAIL  pod → pod, across nodes, tcp IPv4: 1 of 2\n        node-2 → node-1: pod pod-1 → pod pod-0 (tcp 10.16.0.") || !n.isGone() {
		t.Errorf("objects are deleted: %t; it said %s", n.isGone(), n.out)
	}
}

func TestAPodThatDoesNotStartNamesItsNode(t *testing.T) {
	n := newNetwork(t)
	n.startTime = 20 * time.Second // in which a busy machine starts the others
	n.late = func(pod *corev1.Pod) bool { return pod.Name == "pod-1" }
	if err := n.run(t.Context()); err == nil || !strings.Contains(err.Error(), "1 of ") || !strings.HasSuffix(err.Error(), ": node-2") {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(n.out.String(), "node-2: pod pod-1: it does not run: Pending") || !n.isGone() {
		t.Errorf("objects are deleted: %t; it said %s", n.isGone(), n.out)
	}
}

func TestAnInterruptedTestLeavesNothing(t *testing.T) {
	n := newNetwork(t)
	ctx, interrupt := context.WithCancel(t.Context())
	probe := n.probe
	n.probe = func(ctx context.Context, in *corev1.Pod, targets []netprobe.Target) ([]netprobe.Answer, error) {
		interrupt()
		return probe(ctx, in, targets)
	}
	if err := n.run(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") || strings.Contains(n.out.String(), "FAIL") || !n.isGone() {
		t.Errorf("objects are deleted: %t; error %v; it said %s", n.isGone(), err, n.out)
	}
}

func TestKeptObjects(t *testing.T) {
	n := newNetwork(t)
	n.keep = true
	must.Succeed(t, n.run(t.Context()))
	if n.isGone() || !strings.Contains(n.out.String(), "kubectl delete namespace "+n.name) {
		t.Errorf("objects are deleted: %t; it said %s", n.isGone(), n.out)
	}
	must.Succeed(t, n.remove(t.Context()))
	if !n.isGone() {
		t.Error("objects are left")
	}
}

func TestRefusedTests(t *testing.T) {
	w := newWorld(t)
	w.fails("no pod of kube-ovn-cni is in namespace kube-system", "test")
	w.fails("--max-nodes must be greater than 0", "test", "--max-nodes=0")
	w.fails("is not ADDRESS:PORT", "test", "--outside=example.com")
	w.fails("no pod of kube-ovn-cni is on node node-9", "test", "--node=node-9")
}
