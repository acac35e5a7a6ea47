// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package selection answers which objects select which: the subnets of a namespace.
package selection

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
)

// Indexes of the cache that Namespaces looks up.
const (
	// indexBoundNamespaces finds subnets by the namespaces they name, and those with selectors by anySelector.
	indexBoundNamespaces = "selection.boundNamespaces"
	// indexVpcNamespaces finds VPCs by the namespaces they list.
	indexVpcNamespaces = "selection.vpcNamespaces"
	// anySelector is no namespace's name.
	anySelector = "*"
)

// Namespaces answers which subnets serve a namespace, from the cache.
type Namespaces struct {
	reader client.Reader
}

// NewNamespaces adds the indexes it needs to the cache. It is called once per cache, before the cache starts.
func NewNamespaces(ctx context.Context, indexer client.FieldIndexer, reader client.Reader) (*Namespaces, error) {
	if err := indexer.IndexField(ctx, &kubeovnv1.Subnet{}, indexBoundNamespaces, boundNamespaces); err != nil {
		return nil, fmt.Errorf("index subnets by namespace: %w", err)
	}
	if err := indexer.IndexField(ctx, &kubeovnv1.Vpc{}, indexVpcNamespaces, vpcNamespaces); err != nil {
		return nil, fmt.Errorf("index VPCs by namespace: %w", err)
	}
	return &Namespaces{reader: reader}, nil
}

func boundNamespaces(o client.Object) []string {
	s := o.(*kubeovnv1.Subnet)
	if len(s.Spec.NamespaceSelectors) == 0 {
		return s.Spec.Namespaces
	}
	return append(slices.Clone(s.Spec.Namespaces), anySelector)
}

func vpcNamespaces(o client.Object) []string { return o.(*kubeovnv1.Vpc).Spec.Namespaces }

// Subnets returns the subnets that serve a namespace, in the order in which they are tried. A name in it may have no Subnet yet.
func (n *Namespaces) Subnets(ctx context.Context, ns *corev1.Namespace) ([]string, error) {
	var bound []*kubeovnv1.Subnet
	for _, key := range []string{ns.Name, anySelector} {
		var list kubeovnv1.SubnetList
		err := n.reader.List(ctx, &list, client.MatchingFields{indexBoundNamespaces: key}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("list subnets of namespace %s: %w", ns.Name, err)
		}
		for i := range list.Items {
			bound = append(bound, &list.Items[i])
		}
	}
	vpc, listed, err := n.vpc(ctx, ns.Name)
	if err != nil {
		return nil, err
	}
	return SubnetsOf(ns, bound, vpc, listed), nil
}

// vpc returns the VPC that lists a namespace or, for one that none lists, the default VPC; nil while there is none.
func (n *Namespaces) vpc(ctx context.Context, namespace string) (vpc *kubeovnv1.Vpc, listed bool, err error) {
	listing, err := n.Listing(ctx, namespace)
	if err != nil {
		return nil, false, err
	}
	if len(listing) > 0 {
		return listing[0], true, nil
	}
	vpc = &kubeovnv1.Vpc{}
	err = n.reader.Get(ctx, client.ObjectKey{Name: kubeovnv1.DefaultVpc}, vpc, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return nil, false, fmt.Errorf("get the default VPC: %w", err)
	}
	if err != nil {
		return nil, false, nil
	}
	return vpc, false, nil
}

// Listing returns the VPCs that list a namespace; the first of them has it. They are the cache's: they are not to be changed.
func (n *Namespaces) Listing(ctx context.Context, namespace string) ([]*kubeovnv1.Vpc, error) {
	var list kubeovnv1.VpcList
	err := n.reader.List(ctx, &list, client.MatchingFields{indexVpcNamespaces: namespace}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list VPCs of namespace %s: %w", namespace, err)
	}
	vpcs := make([]*kubeovnv1.Vpc, 0, len(list.Items))
	for i := range list.Items {
		vpcs = append(vpcs, &list.Items[i])
	}
	slices.SortFunc(vpcs, func(a, b *kubeovnv1.Vpc) int {
		if Senior(a, b) {
			return -1
		}
		return 1
	})
	return vpcs, nil
}

// SubnetsOf returns the names of those subnets that serve a namespace, the oldest first; before them the default subnet of the
// VPC when the VPC lists the namespace or the subnet serves it. A namespace that no subnet serves is left to the default subnet.
// Those of a custom VPC serve the namespaces that the VPC has, and no others.
func SubnetsOf(ns *corev1.Namespace, subnets []*kubeovnv1.Subnet, vpc *kubeovnv1.Vpc, listed bool) []string {
	var bound []*kubeovnv1.Subnet
	for _, s := range subnets {
		open := VpcOf(s) == kubeovnv1.DefaultVpc || listed && vpc.Name == VpcOf(s)
		if open && ServesPods(s) && Binds(s, ns) {
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

// ServesPods reports whether pods may get addresses of a subnet on their first network: not of the nodes' own, not of an
// attachment network's, and not of one that is being deleted.
func ServesPods(s *kubeovnv1.Subnet) bool {
	return s.Name != kubeovnv1.JoinSubnet && OnFirstNetwork(s) && s.DeletionTimestamp == nil
}

// OnFirstNetwork reports whether a subnet is of every pod's first network rather than of an attachment network.
func OnFirstNetwork(s *kubeovnv1.Subnet) bool {
	return cmp.Or(s.Spec.Provider, kubeovnv1.ProviderOVN) == kubeovnv1.ProviderOVN
}

// Binds reports whether a subnet names or selects a namespace. A selector that cannot be read selects none; the subnet's
// condition says so.
func Binds(s *kubeovnv1.Subnet, ns *corev1.Namespace) bool {
	if slices.Contains(s.Spec.Namespaces, ns.Name) {
		return true
	}
	return slices.ContainsFunc(s.Spec.NamespaceSelectors, func(selector metav1.LabelSelector) bool {
		parsed, err := metav1.LabelSelectorAsSelector(&selector)
		return err == nil && parsed.Matches(labels.Set(ns.Labels))
	})
}
