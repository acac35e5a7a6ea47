// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package loadbalancer_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/loadbalancer"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

func TestMain(m *testing.M) { controllertest.MainDualStack(m) }

const class = "example.com/public"

// world has a controller with the pools of an OVNCluster.
type world struct {
	*controllertest.World
	spec  v1alpha1.OVNClusterSpec
	pools *loadbalancer.Pools
}

func newWorld(t *testing.T, addresses ...string) *world {
	w := &world{World: controllertest.New(t)}
	w.spec.Services.LoadBalancerPools = []v1alpha1.LoadBalancerPool{{Class: class, Addresses: addresses, Namespaces: []string{"default"}}}
	return w
}

func (w *world) start() *controllertest.Process {
	w.Helper()
	w.pools = &loadbalancer.Pools{}
	w.pools.Set(&w.spec)
	var r *loadbalancer.Reconciler
	return w.Start(controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			cidrs, err := svc.NewCIDRs(p.Manager.GetRESTMapper(), p.Client, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")})
			if err != nil {
				return err
			}
			r = &loadbalancer.Reconciler{
				Client: p.Client, Pools: w.pools, Networks: p.Networks, Services: p.Services, ServiceCIDRs: cidrs, Recorder: p.Recorder, Gate: p.Gate,
				UnservedDelay: 1,
			}
			return r.SetupWithManager(ctx, p.Manager)
		},
		Restore: func(ctx context.Context, _ *controllertest.Process) error { return r.Restore(ctx) },
	})
}

// change applies a change of the pool.
func (w *world) change(f func(*v1alpha1.LoadBalancerPool)) {
	next := w.spec.DeepCopy()
	f(&next.Services.LoadBalancerPools[0])
	w.spec = *next
	w.pools.Set(&w.spec)
}

func balancer(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(class), IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func dualStack(s *corev1.Service) { s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack) }

func preferred(s *corev1.Service) { s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack) }

func asking(addresses string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Annotations = map[string]string{kubeovnv1.AnnotationIPAddress.Key(): addresses}
	}
}

// has waits until a Service has these addresses, separated by commas, and the condition with this reason; without a reason, no condition.
func (w *world) has(s *corev1.Service, addresses, reason string, texts ...string) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(s)
		var got []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			got = append(got, i.IP)
		}
		c := apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionAddressAssigned)
		if c == nil {
			c = &metav1.Condition{}
		}
		if strings.Join(got, ",") != addresses || c.Reason != reason || reason != "" && (c.Status == metav1.ConditionTrue) != (reason == loadbalancer.ReasonAssigned) ||
			slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(c.Message, text) }) {
			return fmt.Sprintf("Service %s has %q and the condition %+v, want %q, %s %q", s.Name, got, c, addresses, reason, texts)
		}
		return ""
	})
}

// assigned waits until Services have one address each, separated by commas, in any order.
func (w *world) assigned(services []*corev1.Service, want ...string) {
	w.Helper()
	w.Eventually(func() string {
		var got []string
		for _, s := range services {
			w.Get(s)
			for _, i := range s.Status.LoadBalancer.Ingress {
				got = append(got, i.IP)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("the Services have %q, want %q", got, want)
		}
		return ""
	})
}

// A Service that no pool serves would wait for ever without a reason.
func TestServicesThatNoPoolServes(t *testing.T) {
	w := newWorld(t, "192.0.2.0/30")
	w.start()
	other := balancer("other-class", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/private") })
	none := balancer("no-class", func(s *corev1.Service) { s.Spec.LoadBalancerClass = nil })
	foreign := balancer("foreign", func(s *corev1.Service) {
		s.Spec.LoadBalancerClass, s.Finalizers = nil, []string{"service.kubernetes.io/load-balancer-cleanup"}
	})
	served := balancer("served")
	w.Create(foreign, served, other, none)
	w.has(served, "192.0.2.0", loadbalancer.ReasonAssigned)
	for s, note := range map[*corev1.Service]string{
		other: "the Service gets no address: no pool of the OVNCluster has the class example.com/private: create the Service again with a class",
		none:  "the Service gets no address: it has no loadBalancerClass, and Kiln serves classes of pools, and kubeovn.io/ovn-eip, only: create the Service again with a class",
	} {
		w.Event(s, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: loadbalancer.ReasonNoPool, Note: note})
	}
	var list eventsv1.EventList
	w.Must(w.Client.List(t.Context(), &list))
	for _, e := range list.Items {
		if e.Reason == loadbalancer.ReasonNoPool && (e.Regarding.UID == foreign.UID || e.Regarding.UID == served.UID) {
			t.Errorf("Service %s has the event %q", e.Regarding.Name, e.Note)
		}
		if e.Regarding.UID == none.UID && e.Reason == loadbalancer.ReasonNoPool {
			mistakes.Sees(t, 42, e.Note)
		}
	}
	foreign.Finalizers = nil
	w.Must(w.Client.Update(t.Context(), foreign))
}

func TestAddressesOfBothFamilies(t *testing.T) {
	w := newWorld(t, "192.0.2.0/30", "2001:db8::10..2001:db8::11")
	process := w.start()
	both, four, other := balancer("both", dualStack), balancer("four"), balancer("other")
	other.Spec.LoadBalancerClass = new("metallb.example/other")
	plain := balancer("plain")
	plain.Spec.LoadBalancerClass = nil
	w.Create(both)
	w.has(both, "192.0.2.0,2001:db8::10", loadbalancer.ReasonAssigned, "assigned: 192.0.2.0,2001:db8::10")
	w.Create(other, plain, four)
	w.has(four, "192.0.2.1", loadbalancer.ReasonAssigned)
	w.has(other, "", "")
	w.has(plain, "", "")
	w.Measures(4, "kiln_load_balancer_pool_addresses", "class", class, "family", "ipv4")
	w.Measures(2, "kiln_load_balancer_pool_assigned", "class", class, "family", "ipv4")
	w.Measures(1, "kiln_load_balancer_pool_assigned", "class", class, "family", "ipv6")

	// A Service that loses a family loses its address, and gets an address of a new family.
	w.Change(both, func() {
		both.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
		both.Spec.IPFamilies, both.Spec.ClusterIPs = both.Spec.IPFamilies[:1], both.Spec.ClusterIPs[:1]
	})
	w.has(both, "192.0.2.0", loadbalancer.ReasonAssigned)
	w.Change(four, func() { four.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack) })
	w.has(four, "192.0.2.1,2001:db8::11", loadbalancer.ReasonAssigned)

	writes := process.Writes("PATCH", "/services/")
	process.Stop()
	process = w.start()
	third := balancer("third")
	w.Create(third)
	w.has(third, "192.0.2.2", loadbalancer.ReasonAssigned)
	w.has(both, "192.0.2.0", loadbalancer.ReasonAssigned)
	w.has(four, "192.0.2.1,2001:db8::11", loadbalancer.ReasonAssigned)
	if n := process.Writes("PATCH", "/services/"); n != 1 || writes > 6 {
		t.Errorf("%d writes before a restart and %d after it, want at most 6 and 1", writes, n)
	}
}

func TestExhaustedPools(t *testing.T) {
	w := newWorld(t, "192.0.2.7", "2001:db8::/120")
	w.start()
	first, second, third := balancer("first"), balancer("second", dualStack), balancer("third", preferred)
	w.Create(first)
	w.has(first, "192.0.2.7", loadbalancer.ReasonAssigned)
	w.Create(second)
	w.has(second, "2001:db8::", loadbalancer.ReasonPoolExhausted, "no IPv4 address of the pool of class example.com/public is free")
	w.Event(second, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: loadbalancer.ReasonPoolExhausted})
	w.Measures(1, "kiln_load_balancer_services_waiting")
	w.Delete(first)
	w.has(second, "192.0.2.7,2001:db8::", loadbalancer.ReasonAssigned)
	w.Measures(0, "kiln_load_balancer_services_waiting")

	w.Create(third)
	w.has(third, "2001:db8::1", loadbalancer.ReasonPoolExhausted)
	w.Change(second, func() { second.Spec.Type, second.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil })
	w.has(third, "192.0.2.7,2001:db8::1", loadbalancer.ReasonAssigned)
	w.has(second, "", "")

	w.change(func(p *v1alpha1.LoadBalancerPool) { p.Addresses = append(p.Addresses, "192.0.2.9") })
	w.Change(second, func() { second.Spec.Type, second.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, new(class) })
	w.has(second, "192.0.2.9,2001:db8::2", loadbalancer.ReasonAssigned)
}

func TestFamiliesOfAPool(t *testing.T) {
	w := newWorld(t, "192.0.2.0/29")
	w.start()
	both, prefers := balancer("both", dualStack), balancer("prefers", preferred)
	w.Create(both, prefers)
	w.has(both, first(w, both), loadbalancer.ReasonFamilyMissing, "the pool of class example.com/public has no IPv6 addresses")
	w.has(prefers, first(w, prefers), loadbalancer.ReasonAssigned)
}

// first waits until a Service has an address.
func first(w *world, s *corev1.Service) (address string) {
	w.Helper()
	w.Eventually(func() string {
		if w.Get(s); len(s.Status.LoadBalancer.Ingress) == 0 {
			return "no address"
		}
		address = s.Status.LoadBalancer.Ingress[0].IP
		return ""
	})
	return address
}

func TestRequestedAddresses(t *testing.T) {
	w := newWorld(t, "192.0.2.0/29", "2001:db8::/125")
	w.start()
	holder, wants := balancer("holder", dualStack, asking("2001:db8::5, 192.0.2.5")), balancer("wants")
	w.Create(holder)
	w.has(holder, "192.0.2.5,2001:db8::5", loadbalancer.ReasonAssigned)
	wants.Spec.LoadBalancerIP = "192.0.2.5"
	w.Create(wants)
	w.has(wants, "", loadbalancer.ReasonAddressUnavailable, "192.0.2.5 is not available: another Service has it")
	w.Delete(holder)
	w.has(wants, "192.0.2.5", loadbalancer.ReasonAssigned)
	// An address that the Service cannot have does not cost it the one that it has.
	w.Change(wants, func() { wants.Spec.LoadBalancerIP = "192.0.2.8" })
	w.has(wants, "192.0.2.5", loadbalancer.ReasonAddressUnavailable, "192.0.2.8 is not available: it is not in the pool of class example.com/public")
	w.Change(wants, func() { wants.Spec.LoadBalancerIP = "192.0.2.1" })
	w.has(wants, "192.0.2.1", loadbalancer.ReasonAssigned)
	for request, text := range map[string]string{
		"everything":            "annotation ovn.kubernetes.io/ip_address",
		"192.0.2.1,192.0.2.2":   "write one address of each family at most",
		"192.0.2.1,2001:db8::1": "2001:db8::1 is not of a family of the Service: add IPv6 to spec.ipFamilies",
	} {
		w.Change(wants, func() { asking(request)(wants) })
		w.has(wants, "192.0.2.1", loadbalancer.ReasonInvalidRequest, text)
	}
}

// Objects of other kinds have all addresses of a pool but six.
func TestAddressesOfOtherObjects(t *testing.T) {
	w := newWorld(t, "192.0.2.0/28", "10.0.0.0/24")
	w.Subnet("low", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "192.0.2.0/30" })
	custom := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "custom"}}
	w.Create(custom)
	w.Subnet("elsewhere", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock, s.Vpc = "192.0.2.4/31", "custom" })
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	w.Create(node)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.6"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.7"}}
	w.Must(w.Client.Status().Update(w.Context(), node))
	external := balancer("external")
	external.Spec.Type, external.Spec.LoadBalancerClass, external.Spec.ExternalIPs = corev1.ServiceTypeClusterIP, nil, []string{"192.0.2.8", "192.0.2.9"}
	w.Create(external)
	w.spec.Speaker = &v1alpha1.Speaker{Peers: []v1alpha1.SpeakerPeer{{Address: "192.0.2.10"}}}
	w.spec.APIServer = &v1alpha1.APIServer{Host: "192.0.2.11"}
	w.start()
	var services []*corev1.Service
	for i := range 6 {
		services = append(services, balancer(fmt.Sprintf("s%d", i)))
		w.Create(services[i])
	}
	w.assigned(services, "192.0.2.12", "192.0.2.13", "192.0.2.14", "192.0.2.15", "192.0.2.4", "192.0.2.5")

	for address, text := range map[string]string{
		"192.0.2.1": "it belongs to Subnet low", "192.0.2.6": "it belongs to node n1", "192.0.2.7": "it belongs to node n1", "192.0.2.8": "it belongs to another Service",
		"192.0.2.10": "it belongs to a BGP peer", "192.0.2.11": "it belongs to the API server", "10.0.0.200": "it belongs to the ClusterIPs 10.0.0.0/24",
	} {
		s := balancer("asks-"+strings.ReplaceAll(address, ".", "-"), asking(address))
		w.Create(s)
		w.has(s, "", loadbalancer.ReasonAddressUnavailable, text)
	}
	// Other objects release addresses.
	w.Delete(external)
	asks := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "asks-192-0-2-8"}}
	w.has(asks, "192.0.2.8", loadbalancer.ReasonAssigned)
	w.Delete(node)
	asks.Name = "asks-192-0-2-7"
	w.has(asks, "192.0.2.7", loadbalancer.ReasonAssigned)
}

// A stolen node lists all addresses of a pool, and the first four of each family are not assigned.
func TestANodeCannotExhaustAPool(t *testing.T) {
	w := newWorld(t, "192.0.2.0/29", "2001:db8::/125")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stolen"}}
	w.Create(node)
	for i := range 8 {
		for _, format := range []string{"192.0.2.%d", "2001:db8::%d"} {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf(format, i)})
		}
	}
	w.Must(w.Client.Status().Update(w.Context(), node))
	w.start()
	s := balancer("web", dualStack)
	w.Create(s)
	w.has(s, "192.0.2.4,2001:db8::4", loadbalancer.ReasonAssigned)
}

// A Service of an earlier controller of the class has an address outside the pool. Another one has an address of the pool, which stays.
func TestAddressesOfAnotherController(t *testing.T) {
	w := newWorld(t, "192.0.2.0/29")
	outside, inside, elsewhere := balancer("outside"), balancer("inside"), balancer("elsewhere")
	elsewhere.Namespace = "other"
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	for s, a := range map[*corev1.Service]string{outside: "198.51.100.1", inside: "192.0.2.5", elsewhere: "192.0.2.6"} {
		w.Create(s)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a}}
		w.Must(w.Client.Status().Update(w.Context(), s))
	}
	w.start()
	w.has(inside, "192.0.2.5", loadbalancer.ReasonAssigned)
	w.has(outside, "192.0.2.0", loadbalancer.ReasonAssigned)
	w.has(elsewhere, "", loadbalancer.ReasonNamespaceNotAllowed)
}

// A Service keeps its address when the pool or other objects change, and reports it.
func TestKeptAddresses(t *testing.T) {
	w := newWorld(t, "192.0.2.0/28")
	process := w.start()
	s := balancer("web")
	w.Create(s)
	w.has(s, "192.0.2.0", loadbalancer.ReasonAssigned)
	w.change(func(p *v1alpha1.LoadBalancerPool) { p.Addresses = []string{"192.0.2.128/28"} })
	w.has(s, "192.0.2.0", loadbalancer.ReasonOutsidePool, "192.0.2.0 is no longer in the pool of class example.com/public")
	w.Event(s, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: loadbalancer.ReasonOutsidePool})
	w.change(func(p *v1alpha1.LoadBalancerPool) { p.Addresses, p.Namespaces = []string{"192.0.2.0/24"}, nil })
	w.has(s, "192.0.2.0", loadbalancer.ReasonNamespaceNotAllowed, "the pool of class example.com/public is not for namespace default")
	second := balancer("second")
	w.Create(second)
	w.has(second, "", loadbalancer.ReasonNamespaceNotAllowed)
	w.change(func(p *v1alpha1.LoadBalancerPool) { p.Namespaces = []string{v1alpha1.SpeakerAllNamespaces} })
	w.has(s, "192.0.2.0", loadbalancer.ReasonAssigned)
	w.has(second, first(w, second), loadbalancer.ReasonAssigned)

	subnet := w.Subnet("late", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "192.0.2.0/30" }, process)
	w.has(s, "192.0.2.0", loadbalancer.ReasonAddressInUse, "192.0.2.0 also belongs to Subnet late")
	w.Delete(subnet)
	w.has(s, "192.0.2.0", loadbalancer.ReasonAssigned)

	// A pool that is removed and returns, also while the controller does not run.
	before := w.spec
	w.spec = v1alpha1.OVNClusterSpec{}
	w.pools.Set(&w.spec)
	w.has(s, "192.0.2.0", loadbalancer.ReasonOutsidePool, "spec.services.loadBalancerPools of the OVNCluster no longer has the class example.com/public")
	process.Stop()
	w.spec = before
	w.start()
	w.has(s, "192.0.2.0", loadbalancer.ReasonAssigned)
	w.change(func(p *v1alpha1.LoadBalancerPool) { p.Addresses = []string{"192.0.2.9..192.0.2.1"} })
	third := balancer("third")
	w.Create(third)
	w.has(third, "", loadbalancer.ReasonPoolInvalid, "ends before it begins")
}

// ServiceCIDRs and addresses of the API server that appear later conflict, too.
func TestLateConflicts(t *testing.T) {
	w := newWorld(t, "198.51.100.0/28")
	w.start()
	s := balancer("web")
	w.Create(s)
	w.has(s, "198.51.100.0", loadbalancer.ReasonAssigned)
	api := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.51.100.0"}}},
	}
	w.Create(api)
	w.has(s, "198.51.100.0", loadbalancer.ReasonAddressInUse, "198.51.100.0 also belongs to the API server")
	w.Delete(api)
	w.has(s, "198.51.100.0", loadbalancer.ReasonAssigned)
	e := &kubeovnv1.EgressAddress{ObjectMeta: metav1.ObjectMeta{Name: "out"}, Spec: kubeovnv1.EgressAddressSpec{
		Addresses: []string{"198.51.100.0"}, NodeSelector: &metav1.LabelSelector{},
	}}
	other := e.DeepCopy()
	other.Name, other.Spec.Addresses = "other", []string{"198.51.100.1"}
	w.Create(e, other)
	w.has(s, "198.51.100.0", loadbalancer.ReasonAddressInUse, "198.51.100.0 also belongs to EgressAddress out")
	asks, next := balancer("asks", asking("198.51.100.1")), balancer("next")
	w.Create(asks)
	w.has(asks, "", loadbalancer.ReasonAddressUnavailable, "it belongs to EgressAddress other")
	w.Create(next)
	w.has(next, "198.51.100.2", loadbalancer.ReasonAssigned)
	w.Delete(e, other)
	w.has(s, "198.51.100.0", loadbalancer.ReasonAssigned)
	w.has(asks, "198.51.100.1", loadbalancer.ReasonAssigned)
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"198.51.100.0/29"}}}
	w.Create(cidr)
	w.has(s, "198.51.100.0", loadbalancer.ReasonAddressInUse, "198.51.100.0 also belongs to the ClusterIPs 198.51.100.0/29")
	w.Get(cidr)
	w.LetGo(cidr)
	w.Must(client.IgnoreNotFound(w.Client.Delete(w.Context(), cidr)))
	w.has(s, "198.51.100.0", loadbalancer.ReasonAssigned)
}

// Nodes do not serve Services of custom VPCs.
func TestServicesOfCustomVPCs(t *testing.T) {
	w := newWorld(t, "192.0.2.0/28")
	w.start()
	s := balancer("web")
	w.Create(s)
	w.has(s, "192.0.2.0", loadbalancer.ReasonAssigned)
	w.Change(s, func() { s.Annotations = map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "tenant"} })
	w.has(s, "", loadbalancer.ReasonCustomVpc, "the Service is in VPC tenant")
	w.Change(s, func() { s.Annotations = nil })
	w.has(s, "192.0.2.1", loadbalancer.ReasonAssigned)
}

// Two Services have one address in their status, for example after a restoration of the API server's database: the older one keeps it.
func TestOneAddressInTwoStatuses(t *testing.T) {
	w := newWorld(t, "192.0.2.0/28")
	older, younger := balancer("a"), balancer("b")
	for _, s := range []*corev1.Service{older, younger} {
		w.Create(s)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.5"}}
		w.Must(w.Client.Status().Update(w.Context(), s))
	}
	w.start()
	w.has(older, "192.0.2.5", loadbalancer.ReasonAssigned)
	w.has(younger, "192.0.2.0", loadbalancer.ReasonAssigned)
}
