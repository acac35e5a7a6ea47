// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package svc_test

import (
	"fmt"
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kiln-net/kiln/internal/svc"
)

func TestServiceCIDRs(t *testing.T) {
	object := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.0.0/16", "fd00:99::/112", "10.96.1.0/24"}},
	}
	reader := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(object).Build()
	configured := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	known := apimeta.NewDefaultRESTMapper(nil)
	known.Add(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), apimeta.RESTScopeRoot)
	for name, c := range map[string]struct {
		mapper apimeta.RESTMapper
		want   string
	}{
		"with the objects of the cluster": {known, "[10.96.0.0/16 10.99.0.0/16 fd00:96::/112 fd00:99::/112]"},
		"in a cluster without the kind":   {apimeta.NewDefaultRESTMapper(nil), "[10.96.0.0/16 fd00:96::/112]"},
	} {
		t.Run(name, func(t *testing.T) {
			cidrs, err := svc.NewCIDRs(c.mapper, reader, configured)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := cidrs.List(t.Context()); err != nil || fmt.Sprint(got) != c.want {
				t.Errorf("%v, %v; want %s", got, err, c.want)
			}
		})
	}
}
