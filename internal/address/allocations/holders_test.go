// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package allocations

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

func TestStatefulSetOf(t *testing.T) {
	for name, want := range map[string]struct {
		set     string
		ordinal int
	}{
		"db-0":      {"db", 0},
		"db-eu-12":  {"db-eu", 12},
		"db-01":     {"", -1}, // no StatefulSet creates leading zeros
		"db--1":     {"db-", 1},
		"db-":       {"", -1},
		"-1":        {"", -1},
		"web-x7f9k": {"", -1},
	} {
		set, ordinal := StatefulSetOf(types.NamespacedName{Namespace: "shop", Name: name})
		if set.Name != want.set || ordinal != want.ordinal {
			t.Errorf("%s: %v %d, want %v", name, set, ordinal, want)
		}
	}
}

func TestIsReservation(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		want   bool
	}{
		"of a user":                  {nil, true},
		"permanent":                  {map[string]string{kubeovnv1.LabelReserved: "true", kubeovnv1.LabelNode: "n1"}, true},
		"of a pod":                   {map[string]string{kubeovnv1.LabelReserved: "false", kubeovnv1.LabelNode: "n1"}, false},
		"of a StatefulSet":           {map[string]string{kubeovnv1.LabelReserved: "owner"}, false},
		"of a pod, by Kube-OVN":      {map[string]string{kubeovnv1.LabelNode: "n1"}, false},
		"of a node with a long name": {map[string]string{kubeovnv1.LabelNode: ""}, false},
	} {
		if got := IsReservation(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	now := metav1.Now()
	if IsReservation(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}) || IsReservation(nil) {
		t.Error("a deleted IP object reserves addresses")
	}
}

func TestRequestOf(t *testing.T) {
	for name, c := range map[string]struct {
		spec      kubeovnv1.IPSpec
		addresses []string
		families  []ipfamily.Family
		problem   string
	}{
		"any address": {spec: kubeovnv1.IPSpec{Subnet: "s"}},
		"one family":  {kubeovnv1.IPSpec{Subnet: "s", V4IPAddress: "10.0.0.5"}, []string{"10.0.0.5"}, []ipfamily.Family{ipfamily.IPv4}, ""},
		"the same address twice": {
			kubeovnv1.IPSpec{Subnet: "s", IPAddress: "10.0.0.5,fd00::5", V4IPAddress: "10.0.0.5", V6IPAddress: "fd00:0::5"},
			[]string{"10.0.0.5", "fd00::5"}, []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6}, "",
		},
		"without a subnet": {spec: kubeovnv1.IPSpec{IPAddress: "10.0.0.5"}, problem: "spec.subnet is empty"},
		"no address":       {spec: kubeovnv1.IPSpec{Subnet: "s", IPAddress: "10.0.0"}, problem: "10.0.0"},
		"no MAC address":   {spec: kubeovnv1.IPSpec{Subnet: "s", MACAddress: "x"}, problem: "spec.macAddress"},
	} {
		request, err := RequestOf(&kubeovnv1.IP{Spec: c.spec})
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: error %v", name, err)
			}
			continue
		}
		var want []netip.Addr
		for _, a := range c.addresses {
			want = append(want, netip.MustParseAddr(a))
		}
		if err != nil || request.Subnet != "s" || !slices.Equal(request.Addresses, want) || !slices.Equal(request.Families, c.families) {
			t.Errorf("%s: %+v, %v", name, request, err)
		}
	}
}
