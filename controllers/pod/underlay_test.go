// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/validation"
)

// workingVlan creates the Vlan v, which works.
func (w world) workingVlan() {
	w.Helper()
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}}
	w.Create(vlan)
	vlan.Status.ValidatedID = &vlan.Spec.ID
	w.Must(w.Client.Status().Update(w.Context(), vlan))
}

// A tenant can request an address that the subnet excludes, but not one that has become the source of other pods.
func TestAPodGetsNoAddressOfAnEgressAddress(t *testing.T) {
	w := newWorld(t)
	w.workingVlan()
	e := &kubeovnv1.EgressAddress{ObjectMeta: metav1.ObjectMeta{Name: "out"}, Spec: kubeovnv1.EgressAddressSpec{
		Addresses: []string{"10.30.0.60"}, NodeSelector: &metav1.LabelSelector{},
	}}
	other := e.DeepCopy()
	other.Name, other.Spec.Addresses = "next", []string{"10.30.0.2"}
	w.Create(e, other)
	w.subnet("lab", "10.30.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vlan, s.ExcludeIPs = "v", []string{"10.30.0.60..10.30.0.70"} })
	w.start()
	refused := newPod("default", "refused", "logical_switch", "lab", "ip_address", "10.30.0.60")
	w.Create(refused)
	w.warned(refused, "address 10.30.0.60 is taken by EgressAddress out")
	if got := w.pod("default", "excluded", "logical_switch", "lab", "ip_address", "10.30.0.61").Annotations[kubeovnv1.AnnotationIPAddress.Key()]; got != "10.30.0.61" {
		t.Errorf("a pod has %s instead of an excluded address", got)
	}
	if got := w.pod("default", "free", "logical_switch", "lab").Annotations[kubeovnv1.AnnotationIPAddress.Key()]; got != "10.30.0.3" {
		t.Errorf("a pod without a request has %s", got)
	}
	w.Delete(e)
	w.Eventually(func() string {
		if w.Get(refused); refused.Annotations[kubeovnv1.AnnotationIPAddress.Key()] != "10.30.0.60" {
			return "the pod does not have the address of the former EgressAddress"
		}
		return ""
	})
}

// A tenant can name the MAC address of a router or of a node, which would get no frames.
func TestAPodGetsNoMACAddressOfAPhysicalHost(t *testing.T) {
	w := newWorld(t)
	w.workingVlan()
	w.Create(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "reserved.default"}, Spec: kubeovnv1.IPSpec{
		Subnet: "lab", Namespace: "default", PodName: "reserved", V4IPAddress: "10.30.0.40", MACAddress: "02:00:00:00:00:40",
	}})
	w.subnet("lab", "10.30.0.0/24,fd00:30::/64", func(s *kubeovnv1.SubnetSpec) { s.Vlan, s.PortSecurity = "v", kubeovnv1.PortSecurityEnforced })
	w.subnet("open", "10.31.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vlan, s.PortSecurity = "v", kubeovnv1.PortSecurityRequested })
	w.subnet("six", "fd00:36::/64", func(s *kubeovnv1.SubnetSpec) { s.Vlan, s.PortSecurity = "v", kubeovnv1.PortSecurityEnforced })
	w.subnet("overlay", "10.32.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.PortSecurity = kubeovnv1.PortSecurityEnforced })
	process := w.start()
	refused := func(name string, annotations ...string) {
		t.Helper()
		p := newPod("default", name, append(annotations, "logical_switch", "lab")...)
		w.Create(p)
		w.warned(p, "hosts of the physical network of subnet lab may have this MAC address")
	}
	gets := func(p *corev1.Pod, mac string) {
		t.Helper()
		if got := p.Annotations[kubeovnv1.AnnotationMACAddress.Key()]; got != mac {
			t.Errorf("pod %s has MAC address %s, not %s", p.Name, got, mac)
		}
	}
	refused("router", "mac_address", "52:54:00:00:00:fe")
	refused("with-address", "mac_address", "52:54:00:00:00:fe", "ip_address", "10.30.0.20")
	refused("derived-from-another", "mac_address", "06:4b:0a:1e:00:15", "ip_address", "10.30.0.20")
	derived := ipfamily.MAC(netip.MustParseAddr("fd00:30::20"), 0) // a tenant finds an IPv6 address for each MAC address with this first octet
	refused("derived-from-ipv6", "mac_address", net.HardwareAddr(derived[:]).String(), "ip_address", "10.30.0.21,fd00:30::20")
	if got := w.pod("default", "six", "logical_switch", "six", "ip_address", "fd00:36::20").Annotations[kubeovnv1.AnnotationMACAddress.Key()]; !strings.HasPrefix(got, "0a:") {
		t.Errorf("the MAC address %s derives from the chosen address", got)
	}
	gets(w.pod("default", "as-derived", "logical_switch", "lab", "mac_address", "06:4b:0a:1e:00:14", "ip_address", "10.30.0.20"), "06:4b:0a:1e:00:14")
	gets(w.pod("default", "reserved", "logical_switch", "lab", "mac_address", "02:00:00:00:00:40"), "02:00:00:00:00:40")
	gets(w.pod("default", "trusted", "logical_switch", "open", "mac_address", "52:54:00:00:00:fe"), "52:54:00:00:00:fe")
	gets(w.pod("default", "virtual", "logical_switch", "overlay", "mac_address", "52:54:00:00:00:fe"), "52:54:00:00:00:fe")

	// After the loss of the database, annotations do not prove such a MAC address.
	process.Stop()
	w.losePorts()
	mac, _ := net.ParseMAC("52:54:00:00:00:fe")
	w.forgeAll(map[string]kubeovnv1.PodNetwork{"forged": {LogicalSwitch: "lab", Addresses: addrs("10.30.0.60"), MAC: mac}})
	process = w.start()
	forged := newPod("default", "forged")
	w.Get(forged)
	w.warned(forged, "hosts of the physical network of subnet lab may have this MAC address")
	if allocation, held := process.Allocator.Lookup("forged.default"); held {
		t.Errorf("the pod with forged annotations holds %v", allocation)
	}
}

// OVN would answer ARP for addresses that the pod's node may find at another host.
func TestOVNDoesNotKnowTheAddressesOfAPodThatHasNotStarted(t *testing.T) {
	w := newWorld(t)
	w.workingVlan()
	w.subnet("lab", "10.30.0.0/24,fd00:30::/64", func(s *kubeovnv1.SubnetSpec) { s.Vlan = "v" })
	process := w.start()
	p := w.pod("default", "web", "logical_switch", "lab", "ip_address", "10.30.0.20,fd00:30::20")
	has := func(want string) {
		t.Helper()
		eventually.Wait{For: "the port must have the addresses " + want}.Holds(t, func() bool {
			for _, port := range w.Database.Rows("Logical_Switch_Port") {
				if port["name"] == "web.default" {
					return slices.Equal(port.Strings("addresses"), []string{want})
				}
			}
			return false
		})
	}
	has("06:4b:0a:1e:00:14")
	process.Stop()
	process = w.start()
	if allocation, held := process.Allocator.Lookup("web.default"); !held || !slices.Equal(allocation.Addresses, addrs("10.30.0.20", "fd00:30::20")) {
		t.Errorf("after a restart the pod holds %v", allocation)
	}
	has("06:4b:0a:1e:00:14")
	w.Get(p)
	p.Status.Phase = corev1.PodRunning
	w.Must(w.Client.Status().Update(w.Context(), p))
	has("06:4b:0a:1e:00:14 10.30.0.20 fd00:30::20")
}

func TestPodsOfAnUnderlaySubnet(t *testing.T) {
	w := newWorld(t)
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}}
	w.Create(vlan)
	works := func(id *int) {
		t.Helper()
		vlan.Status.ValidatedID = id
		if id == nil {
			k8s.SetConditions(&vlan.Status.Conditions, vlan.Generation, k8s.Validated(validation.Invalid("its id is taken")))
		}
		w.Must(w.Client.Status().Update(w.Context(), vlan))
	}
	w.subnet("ovn-default", "10.16.0.0/24")
	w.Subnet("office", func(s *kubeovnv1.SubnetSpec) {
		s.CIDRBlock, s.Vlan, s.Namespaces = "10.30.0.0/29", "v", []string{"office"}
	})
	for _, name := range []string{"office", "other"} {
		w.namespace(name, nil)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host"}}
	w.Create(node)
	w.Joined("host", "", "10.30.0.2")
	w.start()

	works(&vlan.Spec.ID)
	first := w.pod("office", "first")
	if got := first.Annotations[kubeovnv1.AnnotationIPAddress.Key()]; got != "10.30.0.3" {
		t.Errorf("the first pod has %s: node host has 10.30.0.2", got)
	}
	if got := first.Annotations; got[kubeovnv1.AnnotationProviderNetwork.Key()] != "net1" || got[kubeovnv1.AnnotationVlanID.Key()] != "30" {
		t.Errorf("annotations %v", got)
	}
	if overlay := w.pod("other", "overlay"); overlay.Annotations[kubeovnv1.AnnotationProviderNetwork.Key()] != "" {
		t.Error("a pod of an overlay subnet has a provider network")
	}
	asked := newPod("office", "asked")
	asked.Annotations = map[string]string{kubeovnv1.AnnotationIPAddress.Key(): "10.30.0.2"}
	w.Create(asked)
	w.warned(asked, "10.30.0.2")

	w.Change(vlan, func() { vlan.Spec.ID = 31 })
	if second := w.pod("office", "second"); second.Annotations[kubeovnv1.AnnotationVlanID.Key()] != "30" {
		t.Errorf("a pod has VLAN %s before its Vlan works with it", second.Annotations[kubeovnv1.AnnotationVlanID.Key()])
	}
	works(&vlan.Spec.ID)
	eventually.Wait{For: "the pod's VLAN must follow"}.Holds(t, func() bool {
		w.Get(first)
		return first.Annotations[kubeovnv1.AnnotationVlanID.Key()] == "31"
	})

	egress := func() (members []string) { // of the nodes' sets
		for _, set := range w.Database.Rows("Address_Set") {
			members = append(members, set.Strings("addresses")...)
		}
		return members
	}
	if got := egress(); slices.Contains(got, "10.30.0.3") {
		t.Errorf("a pod behind a physical gateway is in the sets of nodes: %v", got)
	}
	office := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "office"}}
	w.Get(office)
	w.Change(office, func() { office.Spec.LogicalGateway = true })
	w.InForce(office)
	eventually.Wait{For: "the running pod must leave through its node"}.Holds(t, func() bool { return slices.Contains(egress(), "10.30.0.3") })
	w.Change(office, func() { office.Spec.LogicalGateway = false })
	w.InForce(office)
	eventually.Wait{For: "the running pod must leave through the physical gateway"}.Holds(t, func() bool { return !slices.Contains(egress(), "10.30.0.3") })

	thief := newPod("office", "localnet")
	w.Create(thief)
	w.warned(thief, "port name localnet.office belongs to subnet office")

	works(nil)
	early := newPod("office", "early")
	w.Create(early)
	w.warned(early, "Vlan v of subnet office is not valid: its id is taken")
	works(&vlan.Spec.ID)
	eventually.Wait{For: "the pod must get its VLAN"}.Holds(t, func() bool {
		w.Get(early)
		return early.Annotations[kubeovnv1.AnnotationVlanID.Key()] == "31"
	})
}
