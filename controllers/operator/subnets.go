// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/k8s"
)

// defaultSubnet is a subnet that kube-ovn-controller creates from spec.network, and that grows with it.
type defaultSubnet struct {
	name, field string
	wanted      []string
	// recorded is the field of the status.
	recorded *[]string
}

func (p *pass) defaultSubnets() []defaultSubnet {
	network, status := p.config.Spec.Network, &p.cluster.Status
	return []defaultSubnet{
		{kubeovnv1.DefaultSubnet, "network.podCIDRs", network.PodCIDRs, &status.PodCIDRs},
		{kubeovnv1.JoinSubnet, "network.joinCIDRs", network.JoinCIDRs, &status.JoinCIDRs},
	}
}

// errOtherSubnet requeues an installation that waits for the deletion of a subnet, which the operator does not watch.
var errOtherSubnet = errors.New("a default subnet has other CIDRs")

// checkSubnets refuses to install over default subnets of an earlier installation that have other CIDRs. They would stay.
func (r *Reconciler) checkSubnets(ctx context.Context, p *pass) error {
	if p.cluster.Status.Northbound.ClusterID != "" {
		return nil
	}
	for _, s := range p.defaultSubnets() {
		current, err := r.cidrsOf(ctx, s.name)
		if err != nil {
			return err
		}
		for _, c := range current {
			if !slices.ContainsFunc(parsed(s.wanted), c.Overlaps) {
				return &status.Halt{Reason: "InvalidNetwork", Degraded: true, Retry: errOtherSubnet, Message: fmt.Sprintf(
					"%s %s do not have the addresses of subnet %s, which exists with %s: set the CIDRs of the subnet, or delete it",
					s.field, strings.Join(s.wanted, ","), s.name, c)}
			}
		}
	}
	return nil
}

// recordSubnets records the CIDRs of spec.network once the default subnets have them. kube-ovn-controller grows the subnets. Each step
// changes its pod, which triggers the next pass.
func (r *Reconciler) recordSubnets(ctx context.Context, p *pass) error {
	for _, s := range p.defaultSubnets() {
		if slices.Equal(*s.recorded, s.wanted) {
			continue
		}
		current, err := r.cidrsOf(ctx, s.name)
		switch {
		case err != nil:
			return err
		case len(current) == 0: // not created yet
		case outgrows(parsed(s.wanted), current):
			p.Note(render.ControllerName, status.Note{Aside: true, Text: fmt.Sprintf("subnet %s has %s and grows to %s",
				s.name, joined(current), strings.Join(s.wanted, " "))})
		case elsewhere(parsed(s.wanted), current): // the API accepts other CIDRs as long as these are not recorded
			p.Note(render.ControllerName, status.Note{Stuck: true, Aside: true, Text: fmt.Sprintf("%s %s are not in use, because subnet %s has %s: set the CIDRs of the subnet",
				s.field, strings.Join(s.wanted, " "), s.name, joined(current))})
		default:
			*s.recorded = s.wanted
		}
	}
	return nil
}

// outgrows reports whether one of the wanted CIDRs is of another family than the current ones, or contains one of them and more.
func outgrows(wanted, current []netip.Prefix) bool {
	return slices.ContainsFunc(wanted, func(w netip.Prefix) bool {
		return !slices.ContainsFunc(current, func(c netip.Prefix) bool {
			return c.Addr().BitLen() == w.Addr().BitLen() && (c.Bits() <= w.Bits() || !c.Overlaps(w))
		})
	})
}

// elsewhere reports whether one of the wanted CIDRs has no address in common with the current one of its family.
func elsewhere(wanted, current []netip.Prefix) bool {
	return slices.ContainsFunc(wanted, func(w netip.Prefix) bool {
		return slices.ContainsFunc(current, func(c netip.Prefix) bool { return c.Addr().BitLen() == w.Addr().BitLen() && !c.Overlaps(w) })
	})
}

func joined(cidrs []netip.Prefix) string { return strings.Trim(fmt.Sprint(cidrs), "[]") }

// cidrsOf returns the CIDRs of a subnet; none if it does not exist.
func (r *Reconciler) cidrsOf(ctx context.Context, name string) ([]netip.Prefix, error) {
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.APIReader, client.ObjectKey{Name: name})
	if err != nil {
		return nil, fmt.Errorf("get subnet %s: %w", name, err)
	}
	if subnet == nil {
		return nil, nil
	}
	return parsed(strings.Split(subnet.Spec.CIDRBlock, ",")), nil
}

// parsed returns the CIDRs in a list. It drops text that is no CIDR, of which the subnet's condition reports.
func parsed(list []string) (cidrs []netip.Prefix) {
	for _, text := range list {
		if cidr, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			cidrs = append(cidrs, cidr.Masked())
		}
	}
	return cidrs
}
