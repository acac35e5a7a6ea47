// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippools

import (
	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

// Pool is a valid IPPool and the addresses that it reserves.
type Pool struct {
	Name   string
	Ranges []ipfamily.Range
}

// Divide returns the valid pools of a subnet and the problems of the others. pools must be sorted oldest first: of two that
// overlap, the older one applies.
func Divide(subnet *kubeovnv1.Subnet, pools []*kubeovnv1.IPPool) ([]Pool, map[string]*validation.Problem) {
	var valid []Pool
	problems := map[string]*validation.Problem{}
	for _, pool := range pools {
		ranges, problem := RangesOf(pool, subnet)
		if problem == nil {
			problem = overlapWith(ranges, valid)
		}
		if problem != nil {
			problems[pool.Name] = problem
			continue
		}
		valid = append(valid, Pool{Name: pool.Name, Ranges: ranges})
	}
	return valid, problems
}

// RangesOf returns the addresses of a pool, or a problem if the subnet does not have them. It checks them with the last valid spec of the
// subnet, whose addresses the allocator has; with the current one if no spec was found valid yet.
func RangesOf(pool *kubeovnv1.IPPool, subnet *kubeovnv1.Subnet) ([]ipfamily.Range, *validation.Problem) {
	return validation.IPPool(pool, k8s.Applied(subnet).Spec.CIDRBlock)
}

// overlapWith returns a problem if one of the ranges overlaps with a range of an older pool.
func overlapWith(ranges []ipfamily.Range, older []Pool) *validation.Problem {
	for _, o := range older {
		for _, r := range ranges {
			for _, s := range o.Ranges {
				if r.Overlaps(s) {
					return validation.Problemf(validation.ReasonIPsConflict,
						"ips: %s overlaps with %s of the older IPPool %s: change one of them", r, s, o.Name)
				}
			}
		}
	}
	return nil
}
