// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovneip_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/lookup"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

type world struct{ *controllertest.World }

func (w world) start() *controllertest.Process {
	w.Helper()
	var eips *ovneip.Reconciler
	return w.Start(controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			eips = &ovneip.Reconciler{
				Client: p.Client, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate,
			}
			return eips.SetupWithManager(ctx, p.Manager)
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			// Stands in for the restoration of the controller of pods.
			external := ipam.Subnet{
				CIDRs:    []netip.Prefix{netip.MustParsePrefix("10.99.0.0/29"), netip.MustParsePrefix("fd00:10:99::/120")},
				Gateways: []netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("fd00:10:99::1")},
			}
			if err := p.Allocator.SetSubnet("external", external); err != nil {
				return err
			}
			return eips.Restore(ctx)
		},
	})
}

func newWorld(t *testing.T) world {
	w := world{controllertest.New(t)}
	w.Subnet("external", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.99.0.0/29,fd00:10:99::/120" })
	return w
}

func newEip(name string, change ...func(*kubeovnv1.OvnEipSpec)) *kubeovnv1.OvnEip {
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range change {
		f(&eip.Spec)
	}
	return eip
}

func at(v4, v6 string) func(*kubeovnv1.OvnEipSpec) {
	return func(s *kubeovnv1.OvnEipSpec) { s.V4IP, s.V6IP = v4, v6 }
}

// says waits for a condition of an OvnEip, and checks that status.ready agrees with the condition Ready.
func (w world) says(eip *kubeovnv1.OvnEip, condition string, status metav1.ConditionStatus, text string) {
	w.Helper()
	w.Says(eip, condition, status, text)
	if ready := apimeta.IsStatusConditionTrue(eip.Status.Conditions, kubeovnv1.ConditionReady); ready != eip.Status.Ready {
		w.Errorf("status.ready of OvnEip %s is %v", eip.Name, eip.Status.Ready)
	}
}

func (w world) ready(eip *kubeovnv1.OvnEip) string {
	w.Helper()
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	return eip.Status.V4IP + "," + eip.Status.V6IP
}

func TestAddressesAreHeldOverRestarts(t *testing.T) {
	w := newWorld(t)
	first := w.start()
	chosen, asked, six := newEip("chosen"), newEip("asked", at("10.99.0.2", "fd00:10:99::2")), newEip("six", at("", "fd00:10:99::6"))
	asked.Spec.MACAddress = "00:00:00:aa:bb:cc"
	w.Create(asked)
	if got := w.ready(asked); got != "10.99.0.2,fd00:10:99::2" || asked.Status.MACAddress != "00:00:00:aa:bb:cc" || asked.Status.Type != "nat" {
		t.Errorf("it got %s: %+v", got, asked.Status)
	}
	w.Create(chosen, six)
	kept := w.ready(chosen)
	if got := w.ready(six); got != ",fd00:10:99::6" {
		t.Errorf("one that asks for IPv6 got %s", got)
	}
	if used := first.Allocator.Usage("external").IPv4().Using; used != 2 {
		t.Errorf("%v addresses count as used, want 2", used)
	}
	first.Stop()

	late := newEip("late", at(chosen.Status.V4IP, ""))
	w.Create(late)
	second := w.start()
	w.says(late, kubeovnv1.ConditionValidated, metav1.ConditionFalse, chosen.Status.V4IP)
	if got := w.ready(chosen); got != kept {
		t.Errorf("it had %s and has %s", kept, got)
	}
	if holder := second.Allocator.Holder("external", netip.MustParseAddr("fd00:10:99::6")); holder != "eip/six" {
		t.Errorf("the address is %q's", holder)
	}
	second.Stop()

	w.Delete(chosen) // while the controller is stopped: the waiting OvnEip gets the address
	w.start()
	w.Gone(chosen)
	w.ready(late)
}

func TestADeletedOvnEipStaysWhileARuleUsesIt(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	eip, other := newEip("front"), newEip("other")
	w.Create(eip, other)
	w.ready(other)
	w.ready(eip)
	if eip.Status.NAT != "" {
		t.Errorf("it is used by %s", eip.Status.NAT)
	}
	rules := []*kubeovnv1.RouterLBRule{{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, {ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	for _, rule := range rules {
		rule.Spec.OvnEip = "front"
		w.Create(rule)
	}
	w.Eventually(func() string {
		if w.Get(eip); eip.Status.NAT != "lb" {
			return "status.nat is " + eip.Status.NAT
		}
		return ""
	})
	w.Delete(eip)
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "deleted when it is no longer used by RouterLBRule a, RouterLBRule b")
	process.Stop()
	w.Delete(rules[0])
	process = w.start()
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no longer used by RouterLBRule a")
	address := netip.MustParseAddr(eip.Status.V4IP)
	if holder := process.Allocator.Holder("external", address); holder != "eip/front" {
		t.Errorf("the address is %q's", holder)
	}
	w.Rests("ovneip")
	w.Change(rules[1], func() { rules[1].Spec.OvnEip = "other" })
	w.Gone(eip)
	w.Eventually(func() string { // the controller frees it when it sees that the object is deleted
		if holder := process.Allocator.Holder("external", address); holder != "" {
			return "the address is still of " + holder
		}
		return ""
	})
	w.Eventually(func() string {
		if w.Get(other); other.Status.NAT != "lb" {
			return "status.nat of the other one is " + other.Status.NAT
		}
		return ""
	})
}

func TestADeletedOvnEipGetsNoAddress(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	taken := ipam.Request{Subnet: "external", Addresses: []netip.Addr{netip.MustParseAddr("10.99.0.5"), netip.MustParseAddr("fd00:10:99::5")}}
	_, err := process.Allocator.Allocate("pod.default", taken)
	w.Must(err)
	eip := newEip("late", at("10.99.0.5", "fd00:10:99::5"))
	rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.RouterLBRuleSpec{OvnEip: "late"}}
	w.Create(eip, rule)
	w.says(eip, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "pod.default")
	w.Must(w.Client.Delete(w.Context(), eip))
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no longer used by RouterLBRule a")
	process.Allocator.Release("pod.default")
	w.Rests("ovneip")
	for _, address := range taken.Addresses {
		if holder := process.Allocator.Holder("external", address); holder != "" {
			t.Errorf("%s is %q's", address, holder)
		}
	}
	w.Delete(rule)
	w.Gone(eip)
}

func TestConflictingEipsAreNotValid(t *testing.T) {
	w := newWorld(t)
	w.Subnet("theirs", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.CIDRBlock = "tenant", "10.98.0.0/24" })
	process := w.start()
	_, err := process.Allocator.Allocate("pod.default", ipam.Request{Subnet: "external", Addresses: []netip.Addr{netip.MustParseAddr("10.99.0.5")}})
	w.Must(err)
	held := newEip("held", at("10.99.0.5", ""))
	for text, eip := range map[string]*kubeovnv1.OvnEip{
		"pod.default":                    held,
		"subnet nowhere does not exist":  newEip("nowhere", func(s *kubeovnv1.OvnEipSpec) { s.ExternalSubnet = "nowhere" }),
		"subnet theirs is of VPC tenant": newEip("theirs", func(s *kubeovnv1.OvnEipSpec) { s.ExternalSubnet = "theirs" }),
		"10.7.0.1":                       newEip("outside", at("10.7.0.1", "")),
		"macAddress":                     newEip("mac", func(s *kubeovnv1.OvnEipSpec) { s.MACAddress = "none" }),
	} {
		w.Create(eip)
		w.says(eip, kubeovnv1.ConditionValidated, metav1.ConditionFalse, text)
		w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, text)
		w.Event(eip, eventsv1.Event{Type: corev1.EventTypeWarning, Note: text})
	}
	process.Allocator.Release("pod.default")
	w.ready(held)
	late := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "nowhere"}}
	w.Subnet("nowhere", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.97.0.0/24" })
	process.Stop()
	process = w.start()
	w.ready(late)

	soon := newEip("soon", func(s *kubeovnv1.OvnEipSpec) { s.ExternalSubnet = "soon" })
	w.Create(soon)
	w.says(soon, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "subnet soon does not exist")
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "soon"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.96.0.0/24", Gateway: "10.96.0.1"}}
	w.Create(subnet)
	w.Must(process.Allocator.SetSubnet("soon", ipam.Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}}))
	w.says(soon, kubeovnv1.ConditionReady, metav1.ConditionFalse, "subnet soon is not validated yet")
	w.InForce(subnet) // from now on only the subnet's own event can wake the controller
	w.ready(soon)

	port := newEip("port", func(s *kubeovnv1.OvnEipSpec) { s.Type = "lsp" })
	w.Create(port)
	w.says(port, kubeovnv1.ConditionFieldsSupported, metav1.ConditionFalse, "type lsp")
	for text, change := range map[string]func(*kubeovnv1.OvnEipSpec){
		"externalSubnet cannot change": func(s *kubeovnv1.OvnEipSpec) { s.ExternalSubnet = "nowhere" },
		"v4Ip cannot change":           func(s *kubeovnv1.OvnEipSpec) { s.V4IP = "10.99.0.6" },
		"v6Ip cannot change":           func(s *kubeovnv1.OvnEipSpec) { s.V6IP = "fd00:10:99::6" },
		"macAddress cannot change":     func(s *kubeovnv1.OvnEipSpec) { s.MACAddress = "00:00:00:aa:bb:cc" },
		"type cannot change":           func(s *kubeovnv1.OvnEipSpec) { s.Type = "lrp" },
		"must be an IPv6 address":      func(s *kubeovnv1.OvnEipSpec) { s.V6IP = "10.99.0.6" },
		"Unsupported value":            func(s *kubeovnv1.OvnEipSpec) { s.Type = "vip" },
	} {
		w.Get(held)
		change(&held.Spec)
		if err := w.Client.Update(w.Context(), held); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want one that says %q", err, text)
		}
	}
	w.Get(held)
	w.Change(held, func() { held.Spec.Type = "nat" }) // no change, because "nat" is the default
}

// Nodes can be hosts in the network of an external subnet.
func TestAnEipOfAnUnderlaySubnetHasNoAddressOfANode(t *testing.T) {
	w := newWorld(t)
	office := func(s *kubeovnv1.OvnEipSpec) { s.ExternalSubnet = "office" }
	w.Subnet("office", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock, s.Vlan = "10.30.0.0/24,fd00:30::/120", "v" })
	record := w.Joined("n1", "100.64.0.2", "10.30.0.2", "fd00:30::2")
	w.start()
	free, named := newEip("free", office), newEip("named", office, at("10.30.0.2", ""))
	w.Create(free)
	w.ready(free)
	if free.Status.V4IP != "10.30.0.3" || free.Status.V6IP != "fd00:30::3" {
		t.Errorf("the OvnEip has %s and %s", free.Status.V4IP, free.Status.V6IP)
	}
	w.Create(named)
	w.says(named, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "address 10.30.0.2 is taken by node n1")
	w.Delete(record)
	w.ready(named)
}

func TestADeletedOvnEipStaysWhileAServiceUsesIt(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	eip := newEip("front", at("10.99.0.2", ""))
	rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.RouterLBRuleSpec{OvnEip: "front"}}
	w.Create(eip, rule)
	w.ready(eip)
	uses := func(want string) {
		t.Helper()
		w.Eventually(func() string {
			if w.Get(eip); eip.Status.NAT != want {
				return "it is used by " + eip.Status.NAT
			}
			return ""
		})
	}
	uses("lb")
	w.Delete(rule)
	uses("")
	service := types.NamespacedName{Namespace: "shop", Name: "web"}
	applied, other := lookup.NewServiceClaim(service), lookup.NewServiceClaim(service)
	applied.Eip, applied.Last, other.Eip = "front", true, "front"
	process.Networks.ServiceClaims.Set(service, applied, other)
	uses("lb")
	w.Delete(eip)
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "deleted when it is no longer used by Service shop/web")
	process.Networks.ServiceClaims.Set(service, applied)
	w.Rests("ovneip")
	w.says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "deleted when it is no longer used by Service shop/web")
	process.Networks.ServiceClaims.Set(service)
	w.Gone(eip)
}
