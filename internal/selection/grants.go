// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// Grants answers, from the cache, which custom VPCs, private subnets and IPPools the pods and Services of a namespace may name. Each answer is empty
// when the namespace may, and otherwise a message that says why not and what to change.
type Grants struct {
	reader     client.Reader
	namespaces *Namespaces
	pools      *Pools
	open       bool
}

// NewGrants returns the answers of the objects in the cache. With open every namespace may name each object.
func NewGrants(reader client.Reader, namespaces *Namespaces, pools *Pools, open bool) *Grants {
	return &Grants{reader: reader, namespaces: namespaces, pools: pools, open: open}
}

// Vpc answers for a VPC. One that does not exist is denied to nobody: whoever looks for it reports that.
func (g *Grants) Vpc(ctx context.Context, namespace, name string) (denied string, err error) {
	if g.open || name == kubeovnv1.DefaultVpc || name == "" {
		return "", nil
	}
	vpc := &kubeovnv1.Vpc{}
	if err := g.reader.Get(ctx, client.ObjectKey{Name: name}, vpc, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("get VPC %s: %w", name, err)
		}
		return "", nil
	}
	if slices.Contains(vpc.Spec.Namespaces, namespace) || allows(vpc.Spec.AllowedNamespaces, namespace) {
		return "", nil
	}
	return fmt.Sprintf("VPC %s does not list namespace %s: add it to namespaces or allowedNamespaces of the VPC", name, namespace), nil
}

// Subnet answers for a subnet, and for its VPC. A namespace may name each subnet that serves it.
func (g *Grants) Subnet(ctx context.Context, namespace string, s *kubeovnv1.Subnet) (denied string, err error) {
	if g.open {
		return "", nil
	}
	if denied, err = g.Vpc(ctx, namespace, VpcOf(s)); denied != "" || err != nil || !s.Spec.Private || allows(s.Spec.AllowedNamespaces, namespace) {
		return denied, err
	}
	ns := &corev1.Namespace{}
	if err := g.reader.Get(ctx, client.ObjectKey{Name: namespace}, ns, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	serving, err := g.namespaces.Subnets(ctx, ns)
	if err != nil || ns.Name != "" && slices.Contains(serving, s.Name) {
		return "", err
	}
	return fmt.Sprintf("subnet %s is private and does not list namespace %s: add it to namespaces or allowedNamespaces of the subnet", s.Name, namespace), nil
}

// Pool answers for an IPPool by itself, not for its subnet.
func (g *Grants) Pool(namespace string, pool *kubeovnv1.IPPool) (denied string) {
	switch {
	case g.open, len(pool.Spec.Namespaces) == 0, slices.Contains(pool.Spec.Namespaces, namespace), allows(pool.Spec.AllowedNamespaces, namespace):
		return ""
	}
	return fmt.Sprintf("IPPool %s does not list namespace %s: add it to namespaces or allowedNamespaces of the pool", pool.Name, namespace)
}

// Addresses answers for addresses of a subnet: the pools that have them apart must allow the namespace.
func (g *Grants) Addresses(ctx context.Context, namespace, subnet string, addresses []netip.Addr) (denied string, err error) {
	if g.open || len(addresses) == 0 {
		return "", nil
	}
	pools, err := g.pools.OfSubnet(ctx, subnet)
	if err != nil {
		return "", err
	}
	for _, pool := range pools {
		if denied = g.Pool(namespace, pool); denied == "" {
			continue
		}
		ranges, err := ipfamily.ParseRanges(pool.Spec.IPs)
		if err != nil {
			continue // the pool is not in force, and its condition says why
		}
		for _, r := range ranges {
			if i := slices.IndexFunc(addresses, r.Contains); i >= 0 {
				return fmt.Sprintf("address %s is one of IPPool %s: %s", addresses[i], pool.Name, denied), nil
			}
		}
	}
	return "", nil
}

func allows(list []kubeovnv1.AllowedNamespace, namespace string) bool {
	return slices.Contains(list, kubeovnv1.AllNamespaces) || slices.Contains(list, kubeovnv1.AllowedNamespace(namespace))
}
