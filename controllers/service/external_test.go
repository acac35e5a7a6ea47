// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/lbrule"
	"github.com/kiln-net/kiln/controllers/loadbalancer"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/ovnnat"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/svc/assignment"
)

// world has the external subnet ext, and the VPCs blue and red with a port in it. The pods blue-0 and red-0 are in namespace default.
type world struct {
	*controllertest.World

	process   *controllertest.Process
	blue, red *kubeovnv1.Vpc
	pools     *loadbalancer.Pools
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: controllertest.New(t)}
	w.Nodes = nil
	w.run()
	network := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}}
	w.Create(network, vlan)
	network.Status.ReadyNodes, network.Status.Vlans = []string{"n1"}, []string{"ext"}
	w.Must(w.Client.Status().Update(w.Context(), network))
	k8s.SetConditions(&vlan.Status.Conditions, vlan.Generation, k8s.Validated(nil))
	vlan.Status.ValidatedID = new(vlan.Tag())
	w.Must(w.Client.Status().Update(w.Context(), vlan))
	w.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: kubeovnv1.SubnetSpec{
		Vlan: "ext", CIDRBlock: "192.0.2.0/24,2001:db8:2::/64", Gateway: "192.0.2.254,2001:db8:2::fe",
	}})
	vpc := func(name string) *kubeovnv1.Vpc {
		vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"ext"}, Namespaces: []string{"default"}}}
		w.Create(vpc, newPod(name+"-0", name))
		w.Says(vpc, kubeovnv1.ConditionExternalReady, metav1.ConditionTrue)
		return vpc
	}
	w.blue, w.red = vpc("blue"), vpc("red")
	return w
}

// run starts the controllers of the users of OvnEips, again if they run.
func (w *world) run() {
	w.Helper()
	w.pools = &loadbalancer.Pools{}
	w.pools.Set(&v1alpha1.OVNClusterSpec{Services: v1alpha1.Services{LoadBalancerPools: []v1alpha1.LoadBalancerPool{
		{Class: "example.com/pool", Addresses: []string{"198.51.100.0/28"}, Namespaces: []string{"*"}},
	}}})
	var eips *ovneip.Reconciler
	var services *service.Reconciler
	var balancers *loadbalancer.Reconciler
	w.process = w.Restart(w.process, controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			vpcs := networktest.Vpcs(p)
			eips = &ovneip.Reconciler{Client: p.Client, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate}
			services = &service.Reconciler{
				Client: p.Client, Live: p.Live, Services: p.Services, Grants: p.Grants, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks,
				Recorder: p.Recorder, Gate: p.Gate, Workers: 4,
			}
			balancers = &loadbalancer.Reconciler{
				Client: p.Client, Pools: w.pools, Networks: p.Networks, Services: p.Services, ServiceCIDRs: networktest.Services(p), Recorder: p.Recorder, Gate: p.Gate,
			}
			return p.Run(ctx, vpcs, networktest.Subnets(p, vpcs), networktest.External(p), eips, services, balancers,
				&ovnnat.Reconciler{
					Client: p.Client, Live: p.Live, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Grants: p.Grants, Sets: p.Sets, Recorder: p.Recorder, Gate: p.Gate,
				},
				&lbrule.Reconciler{
					Client: p.Client, Live: p.Live, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Services: p.Services,
					Vips: p.Vips, Grants: p.Grants, Recorder: p.Recorder, Gate: p.Gate,
				})
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			if err := networktest.Restore(ctx, p, "10.16.0.0/16,fd00:10:16::/112", "100.64.0.0/16,fd00:100:64::/112"); err != nil {
				return err
			}
			for _, restore := range []func(context.Context) error{services.Restore, eips.Restore, balancers.Restore} {
				if err := restore(ctx); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

func (w *world) eip(name, v4, v6 string, namespaces ...kubeovnv1.AllowedNamespace) *kubeovnv1.OvnEip {
	w.Helper()
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnEipSpec{
		ExternalSubnet: "ext", V4IP: v4, V6IP: v6, AllowedNamespaces: namespaces,
	}}
	w.Create(eip)
	w.Says(eip, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	return eip
}

// balancer returns a Service with the class of OvnEips, for TCP ports.
func balancer(name, address string, ports ...int32) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(kubeovnv1.ClassOvnEip), Ports: tcpPorts(ports...)},
	}
	if address != "" {
		s.Annotations[kubeovnv1.AnnotationIPAddress.Key()] = address
	}
	return s
}

func tcpPorts(numbers ...int32) []corev1.ServicePort {
	var ports []corev1.ServicePort
	for _, n := range numbers {
		ports = append(ports, corev1.ServicePort{Name: fmt.Sprint("p", n), Port: n})
	}
	return ports
}

// of returns an EndpointSlice of a Service with a pod of a VPC, which serves these ports.
func of(s *corev1.Service, vpc string) *discoveryv1.EndpointSlice {
	slice := newSlice(s.Name, s.Name+"-a", map[string]string{"blue": "10.50.0.5", "red": "10.60.0.5"}[vpc])
	slice.Ports = nil
	for _, p := range s.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Port: new(8000 + p.Port), Protocol: new(corev1.ProtocolTCP)})
	}
	slice.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: vpc + "-0"}
	return slice
}

// has waits until a Service has these addresses, separated by commas, and the condition with this reason and texts.
func (w *world) has(s *corev1.Service, addresses, reason string, texts ...string) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(s)
		var got []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			got = append(got, i.IP)
			if i.IPMode == nil || *i.IPMode != corev1.LoadBalancerIPModeProxy {
				return fmt.Sprintf("nodes serve %s of Service %s", i.IP, s.Name)
			}
		}
		c := apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionAddressAssigned)
		if c == nil {
			c = &metav1.Condition{}
		}
		if strings.Join(got, ",") != addresses || c.Reason != reason || (c.Status == metav1.ConditionTrue) != (reason == assignment.ReasonAssigned) ||
			slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(c.Message, text) }) {
			return fmt.Sprintf("Service %s has %q and the condition %+v, want %q, %s %q", s.Name, got, c, addresses, reason, texts)
		}
		return ""
	})
}

// outside waits until the load balancers on the routers of VPCs are these, in the form `VPC name vip=endpoints`. Others would be reachable from outside.
func (w *world) outside(want ...string) {
	w.Helper()
	w.Eventually(func() string {
		balancers := w.Database.Rows("Load_Balancer")
		var got []string
		for _, router := range w.Database.Rows("Logical_Router") {
			for _, uuid := range router.Strings("load_balancer") {
				for vip, endpoints := range vipsOf(balancers[uuid]) {
					got = append(got, fmt.Sprint(router["name"], " ", balancers[uuid]["name"], " ", vip, "=", endpoints))
				}
			}
			if groups := router.Strings("load_balancer_group"); len(groups) > 0 {
				return fmt.Sprintf("router %s has the groups %q", router["name"], groups)
			}
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			return fmt.Sprintf("the routers serve\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return ""
	})
}

func vipsOf(row nbtest.Row) map[string]string {
	vips, _ := row["vips"].(map[string]string) // the row may be deleted meanwhile
	return vips
}

func (w *world) grant(eip *kubeovnv1.OvnEip, namespaces ...kubeovnv1.AllowedNamespace) {
	w.Helper()
	w.Get(eip)
	w.Change(eip, func() { eip.Spec.AllowedNamespaces = namespaces })
}

const (
	web80  = "blue default/web/external/tcp 192.0.2.9:80=10.50.0.5:8080"
	web443 = "blue default/web/external/tcp 192.0.2.9:443=10.50.0.5:8443"
)

func TestAServiceHasTheAddressesOfAnOvnEip(t *testing.T) {
	w := newWorld(t)
	eip := w.eip("web", "192.0.2.9", "2001:db8:2::9", "default")
	s := balancer("web", "192.0.2.9", 80)
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	w.Create(s)
	w.has(s, "", service.ReasonDefaultVpc, "or it has none yet: class kubeovn.io/ovn-eip is for pods of other VPCs")
	w.Create(of(s, "blue"))
	w.has(s, "192.0.2.9,2001:db8:2::9", assignment.ReasonAssigned, "assigned: 192.0.2.9,2001:db8:2::9")
	applied := []string{web80, "blue default/web/external/tcp [2001:db8:2::9]:80="}
	w.outside(applied...)
	inside := map[string]map[string]string{"tcp": {s.Spec.ClusterIPs[0] + ":80": "10.50.0.5:8080", "[" + s.Spec.ClusterIPs[1] + "]:80": ""}}
	balanced(w.World, "web", inside)
	w.RestoresRows("Service/default/web")
	w.Eventually(func() string {
		if w.Get(eip); eip.Status.NAT != "lb" {
			return fmt.Sprintf("the users of the OvnEip are %q", eip.Status.NAT)
		}
		return ""
	})

	writes := w.process.Writes("PATCH", "/services/")
	w.run()
	w.Rests("service")
	w.outside(applied...)
	w.has(s, "192.0.2.9,2001:db8:2::9", assignment.ReasonAssigned)
	if n := w.process.Writes("PATCH", "/services/"); n != 0 || writes > 6 {
		t.Errorf("%d writes before the restart and %d after it", writes, n)
	}

	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}} // written by a user
	w.Must(w.Client.Status().Update(w.Context(), s))
	w.has(s, "192.0.2.9,2001:db8:2::9", assignment.ReasonAssigned)

	// The ports and families follow the Service. A deleted OvnEip stays while the Service has its addresses.
	w.Change(s, func() {
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies, s.Spec.ClusterIPs = new(corev1.IPFamilyPolicySingleStack), s.Spec.IPFamilies[:1], s.Spec.ClusterIPs[:1]
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	w.has(s, "192.0.2.9", assignment.ReasonAssigned, "externalTrafficPolicy Local and healthCheckNodePort have no effect")
	w.outside(web80)
	w.Delete(eip)
	w.Says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no longer used by Service default/web")
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	late := balancer("late", "192.0.2.9", 81)
	w.Create(late, of(late, "blue"))
	w.has(late, "", assignment.ReasonAddressUnavailable, "OvnEip web is being deleted")
	w.outside(web80)
	w.Change(s, func() { s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil })
	w.Gone(eip)
	w.outside()
	w.has(s, "", "")
	w.has(late, "", assignment.ReasonAddressUnavailable, "no OvnEip has 192.0.2.9 for namespace default")
}

// A tenant finds out nothing about the OvnEips of others.
func TestOnlyGrantedAddressesAreServed(t *testing.T) {
	w := newWorld(t)
	eip := w.eip("web", "192.0.2.9", "", "bank")
	s := balancer("web", "192.0.2.9", 80)
	w.Create(s, of(s, "blue"))
	w.has(s, "", assignment.ReasonAddressUnavailable)
	w.Event(s, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: assignment.ReasonAddressUnavailable})
	unknown := balancer("unknown", "192.0.2.10", 80)
	port := balancer("port", "", 80)
	router := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "blue-ext"}}
	w.Get(router)
	w.grant(router, "*")
	port.Annotations[kubeovnv1.AnnotationIPAddress.Key()] = router.Status.V4IP
	w.Create(unknown, of(unknown, "blue"), port, of(port, "blue"))
	message := func(s *corev1.Service) string {
		w.has(s, "", assignment.ReasonAddressUnavailable)
		text := apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionAddressAssigned).Message
		return strings.ReplaceAll(text, s.Annotations[kubeovnv1.AnnotationIPAddress.Key()], "ADDRESS")
	}
	if refused := message(s); refused != message(unknown) || refused != message(port) {
		t.Errorf("the texts differ:\n%s\n%s\n%s", refused, message(unknown), message(port))
	}
	w.outside()

	w.grant(eip, "bank", "default")
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.outside(web80)
	w.grant(eip, "bank")
	w.has(s, "", assignment.ReasonAddressUnavailable)
	w.outside()
	w.Eventually(func() string {
		if w.Get(eip); eip.Status.NAT != "" {
			return "the OvnEip is used by " + eip.Status.NAT
		}
		return ""
	})
	w.grant(eip, "*")
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)

	// The Vpc, too, has to list the namespace.
	w.Get(w.blue)
	w.Change(w.blue, func() { w.blue.Spec.Namespaces = []string{"bank"} })
	w.has(s, "", service.ReasonNotServed, "VPC blue does not list namespace default")
	w.outside()
}

func TestRequestsThatCannotBeServed(t *testing.T) {
	w := newWorld(t)
	w.eip("web", "192.0.2.9", "", "default")
	s := balancer("web", "", 80)
	slice := of(s, "blue")
	w.Create(s, slice)
	request := func(address string) {
		w.Helper()
		w.Get(s)
		w.Change(s, func() { s.Annotations[kubeovnv1.AnnotationIPAddress.Key()] = address })
	}
	w.has(s, "", assignment.ReasonInvalidRequest, "annotation ovn.kubernetes.io/ip_address is missing")
	request("first")
	w.has(s, "", assignment.ReasonInvalidRequest, "write one address of each family at most")
	request("192.0.2.9,2001:db8:2::9")
	w.has(s, "", assignment.ReasonInvalidRequest, "2001:db8:2::9 is not of a family of the Service")
	w.outside()
	request("192.0.2.9")
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.Change(s, func() { s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack) })
	w.has(s, "192.0.2.9", assignment.ReasonFamilyMissing, "assigned: 192.0.2.9; OvnEip web, or the port of the VPC's router in subnet ext, has no IPv6 address")
	w.Change(s, func() { s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack) })
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.Change(s, func() { s.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/24"} })
	w.has(s, "", assignment.ReasonInvalidRequest, "spec.loadBalancerSourceRanges")
	w.outside()
	w.Change(s, func() { s.Spec.LoadBalancerSourceRanges = nil })
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)

	// The router of the VPC needs a port in the subnet of the OvnEip.
	w.Get(w.blue)
	w.Change(w.blue, func() { w.blue.Spec.ExtraExternalSubnets = nil })
	w.has(s, "", kubeovnv1.ReasonWaiting, "waiting for Vpc blue, in which the pods of the Service are, to have a port in external subnet ext")
	w.outside()
	w.Get(w.blue)
	w.Change(w.blue, func() { w.blue.Spec.ExtraExternalSubnets = []string{"ext"} })
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.outside(web80)

	// The address follows the pods into another VPC, and the Service loses it with the default VPC.
	w.Change(slice, func() { slice.Endpoints = of(s, "red").Endpoints })
	w.outside("red default/web/external/tcp 192.0.2.9:80=10.60.0.5:8080")
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.Create(newPod("ours-0", kubeovnv1.DefaultVpc))
	w.Change(slice, func() { slice.Endpoints[0].TargetRef.Name = "ours-0" })
	w.has(s, "", service.ReasonDefaultVpc)
	w.outside()
}

// The classes of pools and of OvnEips exclude one another, also if the controllers do not run between two changes of the type.
func TestClassesOfAService(t *testing.T) {
	w := newWorld(t)
	eip := w.eip("web", "192.0.2.9", "", "default")
	s := balancer("web", "192.0.2.9", 80)
	w.Create(s, of(s, "blue"))
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.process.Stop()
	class := func(name string) {
		w.Helper()
		w.Change(s, func() { s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil })
		w.Change(s, func() { s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &name })
	}
	w.Get(s)
	class("example.com/pool")
	w.run()
	w.has(s, "", loadbalancer.ReasonCustomVpc, "for an address of an OvnEip create it again with loadBalancerClass kubeovn.io/ovn-eip")
	w.outside()
	class(kubeovnv1.ClassOvnEip)
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.outside(web80)

	// A Service that is deleted while no controller runs leaves nothing: its OvnEip can be deleted.
	w.process.Stop()
	w.Delete(s, eip)
	w.run()
	w.outside()
	w.Gone(eip)
}

// A Service keeps its address while it has no endpoint.
func TestAnAddressStaysWithoutEndpoints(t *testing.T) {
	w := newWorld(t)
	w.eip("web", "192.0.2.9", "", "default")
	s := balancer("web", "192.0.2.9", 80)
	slice := of(s, "blue")
	w.Create(s, slice)
	w.outside(web80)
	w.Delete(slice)
	w.outside("blue default/web/external/tcp 192.0.2.9:80=")
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	named := balancer("named", "192.0.2.9", 81)
	named.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] = "blue"
	w.Create(named)
	w.outside("blue default/web/external/tcp 192.0.2.9:80=", "blue default/named/external/tcp 192.0.2.9:81=")
}

// The load balancers of a VPC that is not applied wait. Meanwhile a Service that names this VPC keeps no address of the former one, whose grant may end.
func TestAServiceThatWaitsForAnotherVpcHasNoAddress(t *testing.T) {
	w := newWorld(t)
	w.eip("web", "192.0.2.9", "", "default")
	s := balancer("web", "192.0.2.9", 80)
	w.Create(s, of(s, "blue"))
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.outside(web80)
	w.process.Stop() // no controller applies the Vpc
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "green"}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{"default"}}})
	w.Change(s, func() { s.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] = "green" })
	w.process = w.Start(steps)
	w.has(s, "", kubeovnv1.ReasonWaiting)
	w.outside()
	w.run()
	groupOf(w.World, "web", "green")
	w.outside()
}
