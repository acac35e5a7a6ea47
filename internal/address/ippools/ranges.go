// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippools

import (
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

// Pool is a valid IPPool and the addresses that it reserves.
type Pool struct {
	Name   string
	Ranges []ipfamily.Range
}

// Divide returns the valid pools of a subnet and the problems of the current specs. pools must be sorted oldest first. The last valid spec of a pool has
// precedence over a changed spec of another one, so that a change takes no addresses from a pool; a pool with a problem keeps the addresses of its last valid
// spec. Of two pools that were never valid, the older one has precedence.
func Divide(subnet *kubeovnv1.Subnet, pools []*kubeovnv1.IPPool) ([]Pool, map[string]*validation.Problem) {
	cidrBlock := k8s.Applied(subnet).Spec.CIDRBlock
	held := make([][]ipfamily.Range, len(pools))
	var changed []int
	for i, pool := range pools {
		if last := pool.Status.ValidatedSpec; last != nil {
			if ranges, problem := validation.IPPool(withSpec(pool, last), cidrBlock); problem == nil && overlapWith(i, ranges, pools, held) == nil {
				held[i] = ranges
			}
		}
		if !k8s.ViewPool(pool).Applied || held[i] == nil {
			changed = append(changed, i)
		}
	}
	problems := map[string]*validation.Problem{}
	for again := true; again; { // a pool may need addresses that a younger one gives up
		again = false
		changed = slices.DeleteFunc(changed, func(i int) bool {
			ranges, problem := validation.IPPool(pools[i], cidrBlock)
			if problem == nil {
				problem = overlapWith(i, ranges, pools, held)
			}
			if problem != nil {
				problems[pools[i].Name] = problem
				return false
			}
			delete(problems, pools[i].Name)
			held[i], again = ranges, true
			return true
		})
	}
	var valid []Pool
	for i, pool := range pools {
		if held[i] != nil {
			valid = append(valid, Pool{Name: pool.Name, Ranges: held[i]})
		}
	}
	return valid, problems
}

// RangesOf returns the addresses of a pool's applied spec, or a problem if the subnet does not have them. It checks them with the last valid spec of the
// subnet, whose addresses the allocator has; with the current one if no spec was found valid yet.
func RangesOf(pool *kubeovnv1.IPPool, subnet *kubeovnv1.Subnet) ([]ipfamily.Range, *validation.Problem) {
	return validation.IPPool(k8s.AppliedPool(pool), k8s.Applied(subnet).Spec.CIDRBlock)
}

func withSpec(pool *kubeovnv1.IPPool, spec *kubeovnv1.IPPoolSpec) *kubeovnv1.IPPool {
	changed := *pool
	changed.Spec = *spec
	return &changed
}

// overlapWith returns a problem if one of the ranges of a pool overlaps with a range that another pool holds.
func overlapWith(own int, ranges []ipfamily.Range, pools []*kubeovnv1.IPPool, held [][]ipfamily.Range) *validation.Problem {
	for i, theirs := range held {
		if i == own {
			continue
		}
		other := "IPPool " + pools[i].Name
		if i < own {
			other = "the older " + other
		}
		for _, r := range ranges {
			for _, s := range theirs {
				if r.Overlaps(s) {
					return validation.Problemf(validation.ReasonIPsConflict,
						"ips: %s overlaps with %s of %s: change one of them", r, s, other)
				}
			}
		}
	}
	return nil
}
