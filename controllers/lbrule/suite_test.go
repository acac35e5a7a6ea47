// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/lbrule"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/vip"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cidrBlock is the CIDR block of both subnets, which are in different VPCs.
const cidrBlock = "10.16.0.0/24,fd00:10:16::/112"

// externalCIDRs is the CIDR block of the external subnet.
const externalCIDRs = "10.99.0.0/24,fd00:10:99::/112"

type world struct{ *controllertest.World }

func newWorld(t *testing.T) world {
	w := world{controllertest.New(t)}
	w.Subnet("web", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = cidrBlock })
	w.Subnet("theirs", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.CIDRBlock = "tenant", cidrBlock })
	return w
}

// start runs the controllers of rules and Vips. ports belong to pods that already have addresses.
func (w world) start(ports ...port) *controllertest.Process {
	w.Helper()
	var vips *vip.Reconciler
	var eips *ovneip.Reconciler
	return w.Start(controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			vips = &vip.Reconciler{Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Vips: p.Vips, Grants: p.Grants, Recorder: p.Recorder, Gate: p.Gate}
			eips = &ovneip.Reconciler{Client: p.Client, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate}
			return p.Run(ctx, vips, eips, &lbrule.Reconciler{
				Client: p.Client, Live: p.Manager.GetAPIReader(), Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Services: p.Services,
				Vips: p.Vips, Grants: p.Grants, Recorder: p.Recorder, Gate: p.Gate,
			})
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			cidrs, err := ipfamily.ParseCIDRs(cidrBlock)
			if err != nil {
				return err
			}
			external, err := ipfamily.ParseCIDRs(externalCIDRs)
			if err != nil {
				return err
			}
			gateways := []netip.Addr{external[0].Addr().Next(), external[1].Addr().Next()}
			if err := p.Allocator.SetSubnet("external", ipam.Subnet{CIDRs: external, Gateways: gateways}); err != nil {
				return err
			}
			for _, port := range ports {
				gateways := []netip.Addr{cidrs[0].Addr().Next(), cidrs[1].Addr().Next()}
				if err := p.Allocator.SetSubnet(port.subnet, ipam.Subnet{CIDRs: cidrs, Gateways: gateways}); err != nil {
					return err
				}
				if err := p.Allocator.Restore(port.name+".default", port.allocation()); err != nil {
					return err
				}
			}
			return errors.Join(vips.Restore(ctx), eips.Restore(ctx))
		},
	})
}

// port is the port of a pod with the nth address of a subnet.
type port struct {
	name, subnet string
	n            int
}

func (p port) addresses() []string {
	return []string{fmt.Sprintf("10.16.0.%d", p.n), fmt.Sprintf("fd00:10:16::%x", p.n)}
}

func (p port) allocation() ipam.Allocation {
	l := ipam.Allocation{Subnet: p.subnet}
	for _, a := range p.addresses() {
		l.Addresses = append(l.Addresses, netip.MustParseAddr(a))
	}
	return l
}

// pods creates the pods of ports in a VPC.
func (w world) pods(vpc string, ports ...port) {
	w.Helper()
	for _, p := range ports {
		w.Create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: p.name, Annotations: map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): vpc},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		})
	}
}

// slicesOf writes the EndpointSlices of a Service, instead of the controller of Kubernetes.
func (w world) slicesOf(service string, ports []discoveryv1.EndpointPort, of ...port) []*discoveryv1.EndpointSlice {
	w.Helper()
	var list []*discoveryv1.EndpointSlice
	for family, addressType := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprint(service, "-", family), Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: addressType, Ports: ports,
		}
		slice.Endpoints = endpointsOf(family, of)
		list = append(list, slice)
		w.Create(slice)
	}
	return list
}

func endpointsOf(family int, of []port) []discoveryv1.Endpoint {
	endpoints := []discoveryv1.Endpoint{}
	for _, p := range of {
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.addresses()[family]}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: p.name},
		})
	}
	return endpoints
}

func tcp(name string, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: new(corev1.ProtocolTCP)}
}

func newRule(name, vip string, change ...func(*kubeovnv1.SwitchLBRuleSpec)) *kubeovnv1.SwitchLBRule {
	rule := &kubeovnv1.SwitchLBRule{ObjectMeta: metav1.ObjectMeta{Name: name}}
	rule.Spec.VIP = vip
	rule.Spec.Selector = []string{"app: web"}
	rule.Spec.Ports = []kubeovnv1.LBRulePort{{Name: "http", Port: 80, TargetPort: 8080, Protocol: "TCP"}}
	for _, f := range change {
		f(&rule.Spec)
	}
	return rule
}

// served returns a rule's TCP load balancer as text: the VIPs with their endpoints, the health checks of the endpoints, and the VIPs with
// health checks.
func (w world) served(rule string) string {
	w.Helper()
	for _, row := range w.Database.Rows("Load_Balancer") {
		if row["name"] != rule+"/tcp" {
			continue
		}
		var parts []string
		for _, column := range []string{"vips", "ip_port_mappings"} {
			var some []string
			for key, value := range row[column].(map[string]string) {
				some = append(some, key+"="+w.sourced(value))
			}
			slices.Sort(some)
			parts = append(parts, strings.Join(some, " "))
		}
		var checks []string
		all := w.Database.Rows("Load_Balancer_Health_Check")
		for _, uuid := range row.Strings("health_check") {
			if check, ok := all[uuid]; ok { // it may be deleted meanwhile
				checks = append(checks, check["vip"].(string))
			}
		}
		slices.Sort(checks)
		return strings.Join(append(parts, strings.Join(checks, " ")), " | ")
	}
	return ""
}

// sourced replaces the address of a Vip by `@` and the name of the Vip.
func (w world) sourced(mapping string) string {
	w.Helper()
	for _, name := range []string{"web", "theirs"} {
		v := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if !w.Get(v) {
			continue
		}
		for _, a := range []string{":" + v.Status.V4IP, ":[" + v.Status.V6IP + "]"} {
			if before, ok := strings.CutSuffix(mapping, a); ok {
				return before + "@" + name
			}
		}
	}
	return mapping
}

func (w world) serves(rule, want string) {
	w.Helper()
	w.servesNamed("slr-"+rule, want)
}

func (w world) servesRouter(rule, want string) {
	w.Helper()
	w.servesNamed("rlr-"+rule, want)
}

func (w world) servesNamed(rule, want string) {
	w.Helper()
	w.Eventually(func() string {
		if got := w.served(rule); got != want {
			return fmt.Sprintf("rule %s is served as\n%s, want\n%s", rule, got, want)
		}
		return ""
	})
}

// owned returns the Vips with the names of their owners.
func (w world) owned() string {
	w.Helper()
	var vips kubeovnv1.VipList
	w.Must(w.Client.List(w.Context(), &vips))
	var names []string
	for i := range vips.Items {
		var rules []string
		for _, o := range vips.Items[i].OwnerReferences {
			rules = append(rules, o.Name)
		}
		slices.Sort(rules)
		names = append(names, vips.Items[i].Name+":"+strings.Join(rules, ","))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (w world) owns(want string) {
	w.Helper()
	w.Eventually(func() string {
		if got := w.owned(); got != want {
			return fmt.Sprintf("Vips with owners: %s, want %s", got, want)
		}
		return ""
	})
}

// service waits for a rule's Service and returns it.
func (w world) service(name string) *corev1.Service {
	w.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	w.Eventually(func() string {
		if !w.Get(s) {
			return "no Service " + name
		}
		return ""
	})
	return s
}
