// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/subnet"
)

// TestTheDefaultSubnetHasTheSettingsOfTheOVNCluster creates ovn-default with a gateway of one family, and again after a user changed it.
func TestTheDefaultSubnetHasTheSettingsOfTheOVNCluster(t *testing.T) {
	w := controllertest.New(t)
	defaults := subnet.Defaults{
		PodCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/64")},
		JoinCIDRs:   []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd00:100:64::/112")},
		PodGateways: []netip.Addr{netip.MustParseAddr("10.16.0.254")},
		ExcludeIPs:  []string{"10.16.0.10..10.16.0.20", "fd00:10:16::9"},
	}
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultSubnet}}
	expect := func(want string) {
		t.Helper()
		w.Must(subnet.CreateDefaults(t.Context(), w.Client, defaults))
		w.Get(s)
		if got := fmt.Sprint(s.Spec.Gateway, s.Spec.ExcludeIPs); got != want {
			t.Errorf("gateway and excludeIps are %s, want %s", got, want)
		}
	}
	expect("10.16.0.254,fd00:10:16::1[10.16.0.10..10.16.0.20 fd00:10:16::9]")
	w.Change(s, func() { s.Spec.ExcludeIPs = []string{"10.16.0.30"} })
	expect("10.16.0.254,fd00:10:16::1[10.16.0.30]")
	w.Delete(s)
	defaults.PodVlan = "office"
	expect("10.16.0.254,fd00:10:16::1[10.16.0.10..10.16.0.20 fd00:10:16::9]")
	if s.Spec.Vlan != "office" || s.Spec.NATOutgoing {
		t.Errorf("on a physical network: %+v", s.Spec)
	}
}
