// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package iprecord_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/iprecord"
	"github.com/kiln-net/kiln/internal/northbound"
)

func TestWriteAndDelete(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).Build()
	object := func(address string) *kubeovnv1.IP {
		return iprecord.Of("querier.shop", ipam.Allocation{
			Subnet: "shop", Addresses: []netip.Addr{netip.MustParseAddr(address), netip.MustParseAddr("fd00:20::2")}, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		})
	}
	got := func() *kubeovnv1.IP {
		t.Helper()
		ip := &kubeovnv1.IP{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: "querier.shop"}, ip); err != nil {
			t.Fatal(err)
		}
		return ip
	}
	write := func(ip *kubeovnv1.IP) {
		t.Helper()
		if err := iprecord.Write(t.Context(), c, ip, iprecord.IsOfSubnet); err != nil {
			t.Fatal(err)
		}
	}
	write(object("10.20.0.2"))
	if spec := got().Spec; spec.IPAddress != "10.20.0.2,fd00:20::2" || spec.V4IPAddress != "10.20.0.2" || spec.V6IPAddress != "fd00:20::2" || spec.Subnet != "shop" {
		t.Errorf("created %+v", spec)
	}
	labeled := object("10.20.0.2")
	labeled.Labels["more"], labeled.Annotations = "yes", map[string]string{"note": "kept"}
	first := got()
	write(labeled)
	if ip := got(); ip.Labels["more"] != "yes" || ip.Labels[kubeovnv1.LabelReserved] == "" || ip.Annotations["note"] != "kept" {
		t.Errorf("changed %v, %v", ip.Labels, ip.Annotations)
	}
	written := got().ResourceVersion
	if write(labeled); got().ResourceVersion != written || written == first.ResourceVersion {
		t.Error("an equal object is written again")
	}
	if write(object("10.20.0.3")); got().Spec.V4IPAddress != "10.20.0.3" || got().Annotations != nil {
		t.Errorf("another address gave %+v", got())
	}

	held := got()
	held.Finalizers = []string{"example.com/hold"}
	if err := c.Update(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	err := iprecord.Write(t.Context(), c, object("10.20.0.4"), iprecord.IsOfSubnet)
	if !errors.Is(err, northbound.ErrWaiting) || !strings.Contains(err.Error(), "finalizers") {
		t.Errorf("an object that stays gave the error %v", err)
	}
	held = got()
	held.Finalizers = nil
	if err := c.Update(t.Context(), held); err != nil {
		t.Fatal(err)
	}

	pods := object("10.20.0.9")
	pods.Spec.PodName = "querier"
	if err := c.Create(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	write(object("10.20.0.4"))
	if err := iprecord.Delete(t.Context(), c, "querier.shop", iprecord.IsOfSubnet); err != nil || got().Spec.V4IPAddress != "10.20.0.9" {
		t.Errorf("the object of a pod became %+v (%v)", got().Spec, err)
	}
	for range 2 {
		if err := iprecord.Delete(t.Context(), c, "querier.shop", iprecord.Any); err != nil {
			t.Error(err)
		}
	}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "querier.shop"}, &kubeovnv1.IP{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the deleted object gave %v", err)
	}
}
