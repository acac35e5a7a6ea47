// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

type option func(*kubeovnv1.Subnet)

func subnet(name string, options ...option) *kubeovnv1.Subnet {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, o := range options {
		o(s)
	}
	return s
}

func names(namespaces ...string) option {
	return func(s *kubeovnv1.Subnet) { s.Spec.Namespaces = namespaces }
}

func selects(key, value string) option {
	return func(s *kubeovnv1.Subnet) {
		s.Spec.NamespaceSelectors = append(s.Spec.NamespaceSelectors, metav1.LabelSelector{MatchLabels: map[string]string{key: value}})
	}
}

func broken(s *kubeovnv1.Subnet) {
	s.Spec.NamespaceSelectors = append(s.Spec.NamespaceSelectors, metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: "Unheard"}},
	})
}

func age(minutes int) option {
	return func(s *kubeovnv1.Subnet) {
		s.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 60-minutes, 0, 0, time.UTC))
	}
}

func provider(p string) option { return func(s *kubeovnv1.Subnet) { s.Spec.Provider = p } }

func deleting(s *kubeovnv1.Subnet) { s.DeletionTimestamp = &metav1.Time{Time: time.Now()} }

func in(vpc string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) { s.Spec.Vpc = vpc }
}

func vpc(name, defaultSubnet string) *kubeovnv1.Vpc {
	return &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VpcSpec{DefaultSubnet: defaultSubnet}}
}

func TestSubnetsOf(t *testing.T) {
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "sales"}}}
	for name, c := range map[string]struct {
		subnets []*kubeovnv1.Subnet
		vpc     *kubeovnv1.Vpc
		listed  bool
		want    []string
	}{
		"a namespace that no subnet serves is left to the default subnet": {
			subnets: []*kubeovnv1.Subnet{subnet("a", names("other"))},
			want:    []string{"ovn-default"},
		},
		"a namespace that no subnet serves is left to the default subnet of its VPC": {
			vpc: vpc("tenant", "tenant-a"), listed: true, want: []string{"tenant-a"},
		},
		"the oldest subnet comes first, then names decide": {
			subnets: []*kubeovnv1.Subnet{
				subnet("c", names("shop"), age(1)), subnet("b", names("shop"), age(1)), subnet("z", selects("team", "sales"), age(9)),
			},
			want: []string{"z", "b", "c"},
		},
		"the default subnet of the VPC is the first of the serving ones": {
			subnets: []*kubeovnv1.Subnet{subnet("a", names("shop"), age(9)), subnet("b", names("shop"))},
			vpc:     vpc("ovn-cluster", "b"), want: []string{"b", "a"},
		},
		"the default subnet of a VPC that lists the namespace comes first even if it does not name it": {
			subnets: []*kubeovnv1.Subnet{subnet("a", names("shop"))},
			vpc:     vpc("tenant", "tenant-a"), listed: true, want: []string{"tenant-a", "a"},
		},
		"the default subnet of the default VPC is not added to the serving ones": {
			subnets: []*kubeovnv1.Subnet{subnet("a", names("shop"))},
			vpc:     vpc("ovn-cluster", "main"), want: []string{"a"},
		},
		"a subnet of a custom VPC does not serve a namespace that the VPC does not have": {
			subnets: []*kubeovnv1.Subnet{subnet("a", names("shop"), in("tenant"))},
			vpc:     vpc("ovn-cluster", ""), want: []string{"ovn-default"},
		},
		"a subnet of a custom VPC serves a namespace that the VPC has": {
			subnets: []*kubeovnv1.Subnet{subnet("a", names("shop"), in("tenant")), subnet("b", selects("team", "sales"), in("other"))},
			vpc:     vpc("tenant", ""), listed: true, want: []string{"a"},
		},
		"any of several selectors is enough": {
			subnets: []*kubeovnv1.Subnet{subnet("a", selects("team", "other"), selects("team", "sales"))},
			want:    []string{"a"},
		},
		"a subnet that names and selects counts once": {
			subnets: []*kubeovnv1.Subnet{subnet("a", names("shop"), selects("team", "sales")), subnet("a", names("shop"))},
			want:    []string{"a"},
		},
		"a selector that cannot be read selects nothing": {
			subnets: []*kubeovnv1.Subnet{subnet("a", broken)},
			want:    []string{"ovn-default"},
		},
		"the join subnet, attachment networks and subnets on their way out serve no pods": {
			subnets: []*kubeovnv1.Subnet{
				subnet("join", names("shop")), subnet("a", names("shop"), provider("net1.shop.ovn")), subnet("b", names("shop"), deleting),
				subnet("c", names("shop"), provider("ovn")),
			},
			want: []string{"c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := SubnetsOf(shop, c.subnets, c.vpc, c.listed); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
