// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kiln-net/kiln/api/v1/requesttest"
)

// FuzzParsePodRequest parses arbitrary addresses, MAC addresses and routes. Accepted addresses have no zone and are not IPv4-mapped IPv6. A
// MAC address has 48 bits. Each route has a destination or a gateway, both of one family, and no bits after its prefix length.
func FuzzParsePodRequest(f *testing.F) {
	f.Add("10.16.0.9,fd00::9", "02:00:00:00:00:01", `[{"dst":"10.0.0.0/8","gw":"10.16.0.2"}]`)
	f.Add("", "", `[{"dst":"::ffff:10.0.0.0/104"},{"dst":"::ffff:10.0.0.1","gw":"10.16.0.2"}]`)
	f.Fuzz(func(t *testing.T, addresses, mac, routes string) {
		request, err := ParsePodRequest(map[string]string{
			AnnotationIPAddress.Key(): addresses, AnnotationMACAddress.Key(): mac, AnnotationRoutes.Key(): routes,
		})
		if err != nil {
			return
		}
		checkRequest(t, request)
	})
}

func checkRequest(t *testing.T, request PodRequest) {
	t.Helper()
	for _, a := range slices.Concat(append(request.Choices, request.Addresses, request.NorthGateway, request.Vips)...) {
		if !isPlain(a) {
			t.Errorf("address %v", a)
		}
	}
	for _, list := range append(request.Choices, request.Addresses, request.NorthGateway) {
		if len(list) > 2 || len(list) == 2 && list[0].Is4() == list[1].Is4() {
			t.Errorf("more than one address of a family in %v", list)
		}
	}
	if n := len(request.MAC); n != 0 && n != 6 {
		t.Errorf("MAC address %v", request.MAC)
	}
	for _, r := range request.Routes {
		to, via := r.Destination, r.Gateway
		switch {
		case !to.IsValid() && !via.IsValid(), to.IsValid() && (!isPlain(to.Addr()) || to != to.Masked()), via.IsValid() && !isPlain(via),
			to.IsValid() && via.IsValid() && to.Addr().Is4() != via.Is4():
			t.Errorf("route %v", r)
		}
	}
}

func isPlain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }

// FuzzAnnotations runs every parser on a pod with arbitrary annotations of ours, one per line as `routes=[]`. No parser panics. A result of
// ParsePodNetwork survives a round trip through Annotations. Parsers of single annotations agree with ParsePodRequest. Names of security
// groups are sorted and unique. Other names are valid object names.
func FuzzAnnotations(f *testing.F) {
	all := ""
	for name, values := range requesttest.OfPods() {
		for _, value := range slices.Concat(values.Valid, values.Invalid) {
			f.Add(name + "=" + value)
		}
		all += name + "=" + values.Valid[0] + "\n"
	}
	f.Add(all)
	f.Add("pod_uid=u\nallocated=true\nrouted=true\nip_address=10.16.0.5\nmac_address=06:4b:0a:10:00:05\ncidr=10.16.0.0/16,fd00::/64\n" +
		"gateway=10.16.0.1,fd00::1\nlogical_switch=ovn-default\nlogical_router=ovn-cluster\nmtu=1400\npod_nic_type=veth-pair")
	f.Add("cidr=::ffff:10.0.0.0/104\ngateway=fe80::1%eth0\nmtu=-1\nmac_address=02:00:00:00:00:01:02:03")
	f.Fuzz(func(t *testing.T, text string) {
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			pod.Annotations[Annotation(name).Key()] = value
		}
		groups := ParseSecurityGroups(pod.Annotations)
		if !slices.IsSorted(groups) || len(slices.Compact(slices.Clone(groups))) != len(groups) || slices.Contains(groups, "") {
			t.Errorf("security groups %q", groups)
		}
		if IsPublished(pod) && MachineOf(pod) == "" && PortOf(pod, ProviderOVN).Owner != pod.Name {
			t.Errorf("a pod without a machine has port %q", PortOf(pod, ProviderOVN).Name)
		}
		names := ParseAAPs(pod.Annotations)
		for _, err := range CheckRequests(OnPod, pod.Annotations) {
			if utf8.ValidString(text) && strings.ContainsRune(err.Error(), 0) {
				t.Errorf("an error with a null character: %q", err)
			}
		}
		if request, err := ParsePodRequest(pod.Annotations); err == nil {
			checkRequest(t, request)
			names = slices.Concat(names, request.Pools, []string{request.Subnet, request.Vip})
			if vips := ParsePortVips(pod.Annotations); !slices.Equal(vips, request.Vips) {
				t.Errorf("vips %v, and %v in the request", vips, request.Vips)
			}
		}
		for _, name := range names {
			if name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
				t.Errorf("%q is not the name of an object", name)
			}
		}
		if network, err := ParsePodNetwork(pod.Annotations); err == nil {
			again, err := ParsePodNetwork(network.Annotations())
			if diff := cmp.Diff(network, again, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" || err != nil {
				t.Errorf("the annotations of %+v read back as (%v):\n%s", network, err, diff)
			}
		}
	})
}
