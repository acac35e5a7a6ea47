// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package grants decides which networks the pods and Services of a namespace may use.
package grants

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
)

// Rules decides, from the cache, which custom VPCs, private and external subnets, IPPools, security groups, Vips and OvnEips the pods and Services of a namespace may use.
// Each method returns an empty string if the namespace may, and otherwise a message that says why not and what to change.
type Rules struct {
	reader     client.Reader
	namespaces *lookup.Namespaces
	networks   *lookup.Networks
	open       bool
}

// NewRules returns Rules that read from the cache. With open, each namespace may use every object.
func NewRules(reader client.Reader, namespaces *lookup.Namespaces, networks *lookup.Networks, open bool) *Rules {
	return &Rules{reader: reader, namespaces: namespaces, networks: networks, open: open}
}

// Vpc decides for a VPC.
func (r *Rules) Vpc(ctx context.Context, namespace, name string) (denied string, err error) {
	if r.open || name == kubeovnv1.DefaultVpc || name == "" {
		return "", nil
	}
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, r.reader, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("get VPC %s: %w", name, err)
	}
	if vpc == nil {
		return fmt.Sprintf("VPC %s does not exist", name), nil
	}
	if spec := &k8s.AppliedVpc(vpc).Spec; slices.Contains(spec.Namespaces, namespace) || allows(spec.AllowedNamespaces, namespace) {
		return "", nil
	}
	return fmt.Sprintf("VPC %s does not list namespace %s: add it to namespaces or allowedNamespaces of the VPC", name, namespace), nil
}

// Subnet decides for a subnet and its VPC, by their applied specs. A namespace may use each subnet that serves it. External subnets are for listed
// namespaces only, like private ones: their addresses are of routers and OvnEips.
func (r *Rules) Subnet(ctx context.Context, namespace string, s *kubeovnv1.Subnet) (denied string, err error) {
	if r.open {
		return "", nil
	}
	s = k8s.Applied(s)
	if denied, err = r.Vpc(ctx, namespace, lookup.VpcOf(s)); denied != "" || err != nil || allows(s.Spec.AllowedNamespaces, namespace) {
		return denied, err
	}
	restriction, err := r.restriction(ctx, s)
	if restriction == "" || err != nil {
		return "", err
	}
	ns := &corev1.Namespace{}
	if err := r.reader.Get(ctx, client.ObjectKey{Name: namespace}, ns, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	serving, err := r.namespaces.Subnets(ctx, ns)
	if err != nil || ns.Name != "" && slices.Contains(serving, s.Name) {
		return "", err
	}
	return fmt.Sprintf("subnet %s is %s and does not list namespace %s: add it to namespaces or allowedNamespaces of the subnet", s.Name, restriction, namespace), nil
}

// restriction describes why a subnet is for listed namespaces only. It is empty if the subnet is for each namespace of its VPC. A subnet that cannot be external stays open
// when a Vpc names it by mistake.
func (r *Rules) restriction(ctx context.Context, s *kubeovnv1.Subnet) (string, error) {
	switch {
	case s.Spec.Private:
		return "private", nil
	case lookup.VpcOf(s) != kubeovnv1.DefaultVpc || !s.Spec.PhysicalGateway():
		return "", nil
	}
	vpcs, err := r.networks.VpcsWithExternal(ctx, s.Name)
	if len(vpcs) == 0 || err != nil {
		return "", err
	}
	return "an external subnet of a VPC", nil
}

// Pool decides for an IPPool, but not for its subnet. The allocator ensures that a request for an address of the pool also names
// the pool.
func (r *Rules) Pool(namespace string, pool *kubeovnv1.IPPool) (denied string) {
	pool = k8s.AppliedPool(pool)
	switch {
	case r.open, len(pool.Spec.Namespaces) == 0, slices.Contains(pool.Spec.Namespaces, namespace), allows(pool.Spec.AllowedNamespaces, namespace):
		return ""
	}
	return fmt.Sprintf("IPPool %s does not list namespace %s: add it to namespaces or allowedNamespaces of the pool", pool.Name, namespace)
}

// Vip decides for a Vip, but not for its subnet. A Vip that lists no namespace is for the namespace of its subnet, if the subnet is for only one.
func (r *Rules) Vip(ctx context.Context, namespace string, vip *kubeovnv1.Vip) (denied string, err error) {
	vip = k8s.AppliedVip(vip)
	switch {
	case r.open && vip.Spec.Namespace == "", vip.Spec.Namespace == namespace, allows(vip.Spec.AllowedNamespaces, namespace):
		return "", nil
	case vip.Spec.Namespace == "" && len(vip.Spec.AllowedNamespaces) == 0:
		s, err := k8s.Find[kubeovnv1.Subnet](ctx, r.reader, client.ObjectKey{Name: cmp.Or(vip.Spec.Subnet, kubeovnv1.DefaultSubnet)}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return "", fmt.Errorf("get subnet of Vip %s: %w", vip.Name, err)
		}
		if s != nil && k8s.Applied(s).Spec.SoleNamespace() == namespace {
			return "", nil
		}
	}
	return fmt.Sprintf("does not list namespace %s: add it to allowedNamespaces of the Vip", namespace), nil
}

// Eip decides for the annotations eip and snat of pods, and for the annotation ip_address of Services, with addresses of an OvnEip.
func (r *Rules) Eip(namespace string, eip *kubeovnv1.OvnEip) (denied string) {
	if r.open || allows(eip.Spec.AllowedNamespaces, namespace) {
		return ""
	}
	return fmt.Sprintf("OvnEip %s does not list namespace %s: add it to allowedNamespaces of the OvnEip", eip.Name, namespace)
}

// EipWith returns the first OvnEip by name that has all of these addresses, which a namespace may use; nil if there is none. denied are the reasons of the others that have
// them.
func (r *Rules) EipWith(ctx context.Context, namespace string, addresses []netip.Addr) (eip *kubeovnv1.OvnEip, denied []string, err error) {
	if len(addresses) == 0 {
		return nil, nil, nil
	}
	eips, err := r.networks.EipsAt(ctx, addresses[0])
	if err != nil {
		return nil, nil, err
	}
	for _, eip := range eips {
		if has := lookup.AddressesOfEip(eip); slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(has, a.String()) }) {
			continue
		}
		why := r.Eip(namespace, eip)
		if kind := cmp.Or(eip.Spec.Type, kubeovnv1.OvnEipTypeNAT); kind != kubeovnv1.OvnEipTypeNAT {
			why = fmt.Sprintf("OvnEip %s is of type %s: request addresses of one of type %s", eip.Name, kind, kubeovnv1.OvnEipTypeNAT)
		}
		if why == "" {
			return eip, nil, nil
		}
		denied = append(denied, why)
	}
	return nil, denied, nil
}

// Groups are the security groups that a pod names.
type Groups struct {
	// In are the groups that the pod is in, sorted.
	In []string
	// Denied are existing groups that do not list the pod's namespace. Missing do not exist.
	Denied, Missing []string

	closed bool
}

// Sets returns the groups by which the pod is in sets of pods. Each group that the pod is not in counts as DenyAllGroup: nothing passes by it.
func (g *Groups) Sets() []string {
	if !g.closed {
		return g.In
	}
	sets := append(slices.Clone(g.In), kubeovnv1.DenyAllGroup)
	slices.Sort(sets)
	return sets
}

// Groups decides for the security groups that a pod names. The pod is in a group if the group lists its namespace, or if the pod was in the group before and has kept it: a
// running pod stays in its groups until they are deleted.
func (r *Rules) Groups(ctx context.Context, namespace string, names, kept []string) (Groups, error) {
	var g Groups
	for _, name := range names {
		if name == kubeovnv1.DenyAllGroup {
			g.closed = true
			continue
		}
		group, err := k8s.Find[kubeovnv1.SecurityGroup](ctx, r.reader, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		switch {
		case err != nil:
			return Groups{}, fmt.Errorf("get security group %s: %w", name, err)
		case group == nil:
			g.Missing, g.closed = append(g.Missing, name), true
		case r.open, slices.Contains(kept, name), allows(group.Spec.AllowedNamespaces, namespace):
			g.In = append(g.In, name)
		default:
			g.Denied, g.closed = append(g.Denied, name), true
		}
	}
	return g, nil
}

func allows(list []kubeovnv1.AllowedNamespace, namespace string) bool {
	return slices.Contains(list, kubeovnv1.AllNamespaces) || slices.Contains(list, kubeovnv1.AllowedNamespace(namespace))
}
