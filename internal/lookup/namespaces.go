// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lookup finds objects in the cache by their relations, such as the subnets that serve a namespace or overlap with a prefix, and the
// Services at an address.
package lookup

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Indexes of the cache that Namespaces looks up.
const (
	// indexBoundNamespaces finds subnets by the namespaces in their applied spec; subnets with selectors are under anySelector.
	indexBoundNamespaces = "lookup.boundNamespaces"
	// indexVpcNamespaces finds VPCs by the namespaces in their applied spec.
	indexVpcNamespaces = "lookup.vpcNamespaces"
	// anySelector is not a valid name of a namespace.
	anySelector = "*"
)

// Namespaces looks up in the cache which subnets serve a namespace.
type Namespaces struct {
	reader client.Reader
}

// NewNamespaces adds its indexes to the cache. Call it once per cache, before the cache starts.
func NewNamespaces(ctx context.Context, indexer client.FieldIndexer, reader client.Reader) (*Namespaces, error) {
	if err := indexer.IndexField(ctx, &kubeovnv1.Subnet{}, indexBoundNamespaces, boundNamespaces); err != nil {
		return nil, fmt.Errorf("index subnets by namespace: %w", err)
	}
	if err := indexer.IndexField(ctx, &kubeovnv1.Vpc{}, indexVpcNamespaces, vpcNamespaces); err != nil {
		return nil, fmt.Errorf("index VPCs by namespace: %w", err)
	}
	if err := indexer.IndexField(ctx, &corev1.Pod{}, IndexPodSubnet, podSubnet); err != nil {
		return nil, fmt.Errorf("index pods by subnet: %w", err)
	}
	return &Namespaces{reader: reader}, nil
}

func boundNamespaces(o client.Object) []string {
	s := k8s.Applied(o.(*kubeovnv1.Subnet))
	if len(s.Spec.NamespaceSelectors) == 0 {
		return s.Spec.Namespaces
	}
	return append(slices.Clone(s.Spec.Namespaces), anySelector)
}

func vpcNamespaces(o client.Object) []string {
	return k8s.AppliedVpc(o.(*kubeovnv1.Vpc)).Spec.Namespaces
}

// Subnets returns the names of the subnets that serve a namespace, in the order in which they are tried. A Subnet of that name
// may not exist yet.
func (n *Namespaces) Subnets(ctx context.Context, ns *corev1.Namespace) ([]string, error) {
	var bound []*kubeovnv1.Subnet
	for _, key := range []string{ns.Name, anySelector} {
		var list kubeovnv1.SubnetList
		err := n.reader.List(ctx, &list, client.MatchingFields{indexBoundNamespaces: key}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("list subnets of namespace %s: %w", ns.Name, err)
		}
		for i := range list.Items {
			bound = append(bound, k8s.Applied(&list.Items[i]))
		}
	}
	listing, err := n.Listing(ctx, ns.Name)
	if err != nil {
		return nil, err
	}
	if len(listing) > 0 {
		return SubnetsOf(ns, bound, listing[0], true), nil
	}
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, n.reader, client.ObjectKey{Name: kubeovnv1.DefaultVpc}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get the default VPC: %w", err)
	}
	if vpc != nil {
		vpc = k8s.AppliedVpc(vpc)
	}
	return SubnetsOf(ns, bound, vpc, false), nil
}

// Selected returns the names of the namespaces that a subnet names or selects, sorted. A name may be that of a namespace that does not exist.
func (n *Namespaces) Selected(ctx context.Context, s *kubeovnv1.Subnet) ([]string, error) {
	names := slices.Clone(s.Spec.Namespaces)
	for i := range s.Spec.NamespaceSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s.Spec.NamespaceSelectors[i])
		if err != nil {
			continue // it selects none; the subnet's condition reports it
		}
		var list corev1.NamespaceList
		if err := n.reader.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list namespaces of subnet %s: %w", s.Name, err)
		}
		for j := range list.Items {
			names = append(names, list.Items[j].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Listing returns the VPCs that list a namespace in their applied spec, with that spec; the first one has it. They must not be changed.
func (n *Namespaces) Listing(ctx context.Context, namespace string) ([]*kubeovnv1.Vpc, error) {
	var list kubeovnv1.VpcList
	err := n.reader.List(ctx, &list, client.MatchingFields{indexVpcNamespaces: namespace}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list VPCs of namespace %s: %w", namespace, err)
	}
	vpcs := make([]*kubeovnv1.Vpc, 0, len(list.Items))
	for i := range list.Items {
		vpcs = append(vpcs, k8s.AppliedVpc(&list.Items[i]))
	}
	slices.SortFunc(vpcs, func(a, b *kubeovnv1.Vpc) int {
		if Precedes(a, b) {
			return -1
		}
		return 1
	})
	return vpcs, nil
}

// SubnetsOf returns the names of the subnets that serve a namespace, oldest first. The default subnet of the VPC precedes them
// if the VPC lists the namespace or the subnet serves it. A namespace without any such subnet gets the default subnet. Subnets
// of a custom VPC serve only the namespaces of that VPC. The join subnet, subnets of attachment networks and subnets that are being deleted
// serve no pods.
func SubnetsOf(ns *corev1.Namespace, subnets []*kubeovnv1.Subnet, vpc *kubeovnv1.Vpc, listed bool) []string {
	var bound []*kubeovnv1.Subnet
	for _, s := range subnets {
		open := VpcOf(s) == kubeovnv1.DefaultVpc || listed && vpc.Name == VpcOf(s)
		serves := s.Name != kubeovnv1.JoinSubnet && OnNetwork(s, kubeovnv1.ProviderOVN) && s.DeletionTimestamp == nil
		if open && serves && Binds(s, ns) {
			bound = append(bound, s)
		}
	}
	slices.SortFunc(bound, func(a, b *kubeovnv1.Subnet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var names []string
	for _, s := range bound {
		if !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	first := ""
	if vpc != nil {
		first = vpc.Spec.DefaultSubnet
	}
	i := slices.Index(names, first)
	switch {
	case i >= 0:
		names = append([]string{first}, slices.Delete(names, i, i+1)...)
	case first != "" && (listed || len(names) == 0):
		names = append([]string{first}, names...)
	case len(names) == 0:
		names = []string{kubeovnv1.DefaultSubnet}
	}
	return names
}

// OnNetwork reports whether a subnet belongs to the network of a provider.
func OnNetwork(s *kubeovnv1.Subnet, provider string) bool {
	return cmp.Or(s.Spec.Provider, kubeovnv1.ProviderOVN) == provider
}

// Binds reports whether a subnet names or selects a namespace. An invalid selector selects none; the subnet's condition reports
// it.
func Binds(s *kubeovnv1.Subnet, ns *corev1.Namespace) bool {
	if slices.Contains(s.Spec.Namespaces, ns.Name) {
		return true
	}
	return slices.ContainsFunc(s.Spec.NamespaceSelectors, func(selector metav1.LabelSelector) bool {
		parsed, err := metav1.LabelSelectorAsSelector(&selector)
		return err == nil && parsed.Matches(labels.Set(ns.Labels))
	})
}
