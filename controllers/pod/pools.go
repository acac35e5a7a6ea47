// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/ippools"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
)

// requestsOf returns the allocation requests for a pod without a reservation, in order. They are for the addresses of its Vip, of the pools
// that it names, of the pools of its namespace, or else of the part of its subnets that no pool reserves.
func (r *Reconciler) requestsOf(ctx context.Context, pod *corev1.Pod, request kubeovnv1.PodRequest) ([]ipam.Request, error) {
	if kubeovnv1.IsMirror(pod.Annotations) {
		return []ipam.Request{{Subnet: kubeovnv1.DefaultSubnet}}, nil
	}
	if request.Vip != "" {
		return r.requestsOfVip(ctx, pod, request)
	}
	if len(request.Pools) > 0 {
		pools, err := r.namedPools(ctx, request.Pools)
		if err != nil {
			return nil, err
		}
		if err := r.mayUsePools(ctx, pod, pools); err != nil {
			return nil, err
		}
		wants, err := requestsOfPools(pools, request, func(subnet string) bool { return request.Subnet == "" || request.Subnet == subnet })
		if err != nil {
			return nil, err
		}
		return r.withoutForeignMACs(ctx, wants)
	}
	subnets, err := r.candidates(ctx, pod, request)
	if err != nil {
		return nil, err
	}
	pools, err := r.Pools.OfNamespace(ctx, pod.Namespace)
	if err != nil {
		return nil, err
	}
	var wants []ipam.Request
	if len(pools) > 0 {
		wants, err = requestsOfPools(pools, request, func(subnet string) bool { return slices.Contains(subnets, subnet) })
		if err != nil {
			return nil, err
		}
	} else {
		for _, subnet := range subnets {
			wants = append(wants, allocationRequest(subnet, request))
		}
	}
	if len(request.Choices) > 0 {
		if wants, err = limitToListed(client.ObjectKeyFromObject(pod), r.podTypeOf(pod), wants, request.Choices); err != nil {
			return nil, err
		}
	}
	if wants, err = r.withoutForeignMACs(ctx, wants); err != nil {
		return nil, err
	}
	return wants, r.addPools(ctx, pod.Namespace, wants)
}

// addPools adds to requests for given addresses the pools that contain the addresses and that the namespace may use. Without a pool that
// the request names, the allocator refuses its addresses.
func (r *Reconciler) addPools(ctx context.Context, namespace string, wants []ipam.Request) error {
	for i := range wants {
		want := &wants[i]
		if len(want.Addresses) == 0 || len(want.Pools) > 0 {
			continue
		}
		pools, err := r.Pools.OfSubnet(ctx, want.Subnet)
		if err != nil {
			return err
		}
		for _, pool := range pools {
			ranges, err := ipfamily.ParseRanges(k8s.AppliedPool(pool).Spec.IPs)
			if err == nil && pool.DeletionTimestamp == nil && contain(ranges, want.Addresses) && r.Grants.Pool(namespace, pool) == "" {
				want.Pools = append(want.Pools, pool.Name)
			}
		}
	}
	return nil
}

func contain(ranges []ipfamily.Range, addresses []netip.Addr) bool {
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return ipfamily.InAny(ranges, a) })
}

// namedPools returns the pools that a pod names.
func (r *Reconciler) namedPools(ctx context.Context, names []string) ([]*kubeovnv1.IPPool, error) {
	pools := make([]*kubeovnv1.IPPool, 0, len(names))
	for _, name := range names {
		pool, err := k8s.Find[kubeovnv1.IPPool](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get IPPool %s: %w", name, err)
		}
		if pool == nil || pool.DeletionTimestamp != nil {
			return nil, &problem{message: fmt.Sprintf("IPPool %s, which annotation %s names, does not exist: create it, or name another one", name, kubeovnv1.AnnotationIPPool.Key())}
		}
		pools = append(pools, pool)
	}
	return pools, nil
}

// whyNoPool returns the causes of pools that the allocator does not have, as the end of a message. checked is false while one of them is not
// validated yet: the pod may have been created together with it.
func (r *Reconciler) whyNoPool(ctx context.Context, names []string) (causes string, checked bool) {
	checked = true
	for _, name := range names {
		pool, err := k8s.Find[kubeovnv1.IPPool](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil || pool == nil || k8s.IsTrue(pool.Status.Conditions, kubeovnv1.ConditionValidated, pool.Generation) {
			continue
		}
		causes += ": " + k8s.WhyNotValid("IPPool "+name, pool.Status.Conditions, pool.Generation)
		c := apimeta.FindStatusCondition(pool.Status.Conditions, kubeovnv1.ConditionValidated)
		checked = checked && c != nil && c.ObservedGeneration == pool.Generation
	}
	return causes, checked
}

// requestsOfPools returns allocation requests for addresses of pools, in order. Consecutive pools of one subnet share a request.
func requestsOfPools(pools []*kubeovnv1.IPPool, request kubeovnv1.PodRequest, usable func(subnet string) bool) ([]ipam.Request, error) {
	var wants []ipam.Request
	for _, pool := range pools {
		if !usable(pool.Spec.Subnet) {
			continue
		}
		if n := len(wants); n > 0 && wants[n-1].Subnet == pool.Spec.Subnet {
			wants[n-1].Pools = append(wants[n-1].Pools, pool.Name)
			continue
		}
		want := allocationRequest(pool.Spec.Subnet, request)
		want.Pools = []string{pool.Name}
		wants = append(wants, want)
	}
	if len(wants) == 0 {
		return nil, &problem{message: fmt.Sprintf("IPPool %s is of subnet %s, which the pod does not use", pools[0].Name, pools[0].Spec.Subnet)}
	}
	return wants, nil
}

// limitToListed limits allocation requests to the addresses that a pod lists: one of them, or for a StatefulSet's pod the one at its ordinal.
func limitToListed(pod types.NamespacedName, podType string, wants []ipam.Request, choices [][]netip.Addr) ([]ipam.Request, error) {
	if podType == kubeovnv1.PodTypeStatefulSet {
		_, ordinal := leases.StatefulSetOf(pod)
		if ordinal < 0 || ordinal >= len(choices) {
			return nil, &problem{message: fmt.Sprintf("annotation %s lists %d addresses, and none for ordinal %d: add some",
				kubeovnv1.AnnotationIPPool.Key(), len(choices), ordinal)}
		}
		choices = choices[ordinal : ordinal+1]
	}
	var each []ipam.Request
	for _, want := range wants {
		for _, choice := range choices {
			want.Addresses = choice
			each = append(each, want)
		}
	}
	return each, nil
}

// setPools sets the pools of all subnets in the allocator.
func (s *restoration) setPools(list []kubeovnv1.IPPool) {
	bySubnet := map[string][]*kubeovnv1.IPPool{}
	for i := range list {
		bySubnet[list[i].Spec.Subnet] = append(bySubnet[list[i].Spec.Subnet], &list[i])
	}
	for i := range s.subnets.Items {
		subnet := &s.subnets.Items[i]
		pools := bySubnet[subnet.Name]
		if len(pools) == 0 {
			continue
		}
		ippools.Sort(pools)
		inForce, _ := ippools.Divide(subnet, pools)
		divided := make([]ipam.Pool, 0, len(inForce))
		for _, p := range inForce {
			divided = append(divided, ipam.Pool(p))
		}
		if err := s.allocator.SetPools(subnet.Name, divided); err != nil {
			s.log.Error(err, "cannot set addresses apart", "subnet", subnet.Name)
		}
	}
}
