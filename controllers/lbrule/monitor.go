// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// checks is how far the endpoints of a rule are checked.
type checks struct {
	off            bool
	checked, total int
	missing        string // why one of those that are not checked is not
}

// monitor finds for each endpoint the port at which OVN checks it and the address that it asks from: that of a Vip of the subnet's name,
// which all rules share, as in Kube-OVN.
func (r *controller) monitor(ctx context.Context, rule *rule, s *state) error {
	if rule.GetAnnotations()[kubeovnv1.AnnotationHealthCheck.Key()] == "false" {
		s.checks.off = true
		return nil
	}
	for _, p := range s.in.Ports {
		if !translate.Monitored(p.Protocol) {
			s.checks.missing = fmt.Sprintf("OVN cannot check %s", p.Protocol)
		}
	}
	s.in.Monitors = map[netip.Addr]translate.Monitor{}
	sources := sources{}
	for _, a := range s.endpoints() {
		s.checks.total++
		subnet, err := r.sourceSubnet(ctx, s.in.Vpc, a, sources)
		if err != nil {
			return err
		}
		if subnet == "" {
			s.checks.missing = fmt.Sprintf("%s is in no subnet of VPC %s", a, s.in.Vpc)
			continue
		}
		if len(s.in.Endpoints) > 0 { // pods of EndpointSlices have their ports before they are in one
			r.watch(rule, s, "use/"+subnet)
		}
		m, missing, err := r.monitorOf(ctx, rule, s, subnet, a, sources)
		if err != nil {
			return err
		}
		if missing != "" {
			s.checks.missing = missing
			continue
		}
		s.in.Monitors[a] = m
		s.checks.checked++
	}
	return nil
}

// sources are the Vips that subnets' endpoints are checked from, by subnet.
type sources map[string]*origin

type origin struct {
	cidrs   []netip.Prefix
	vip     *kubeovnv1.Vip // nil while there is nothing to check from
	missing string
	asked   bool
}

// sourceSubnet is the subnet of an endpoint. Endpoints of one rule are in few subnets: it looks at those first.
func (r *controller) sourceSubnet(ctx context.Context, vpc string, a netip.Addr, known sources) (string, error) {
	for name, s := range known {
		for _, cidr := range s.cidrs {
			if cidr.Contains(a) {
				return name, nil
			}
		}
	}
	name, err := r.subnetWith(ctx, vpc, a)
	if err != nil || name == "" {
		return "", err
	}
	subnet := &kubeovnv1.Subnet{}
	if err := r.Client.Get(ctx, keyOf(name), subnet); err != nil {
		return "", fmt.Errorf("get subnet %s: %w", name, err)
	}
	cidrs, err := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	known[name] = &origin{cidrs: cidrs}
	return name, err
}

// monitorOf is how an endpoint is checked, or why it is not.
func (r *controller) monitorOf(
	ctx context.Context, rule *rule, s *state, subnet string, a netip.Addr, known sources,
) (m translate.Monitor, missing string, err error) {
	port := r.Allocator.Holder(subnet, a)
	if strings.HasPrefix(port, translate.VipHolder("")) {
		port = r.Allocator.Borrower(port)
	}
	if port == "" {
		return m, fmt.Sprintf("no port of subnet %s has %s", subnet, a), nil
	}
	from := known[subnet]
	if !from.asked {
		from.asked = true
		wanted := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: subnet}, Spec: kubeovnv1.VipSpec{Subnet: subnet, Type: kubeovnv1.VipTypeHealthCheck}}
		vip, waiting, err := r.need(ctx, rule, s, wanted)
		if err != nil {
			return m, "", err
		}
		switch {
		case vip != nil && vip.Spec.Subnet != subnet:
			from.missing = fmt.Sprintf("Vip %s, by whose address subnet %s would be checked, is of subnet %s", subnet, subnet, vip.Spec.Subnet)
		case waiting != "":
			from.missing = "waiting for " + waiting
		default:
			from.vip, from.missing = vip, fmt.Sprintf("Vip %s, from which subnet %s is checked, has no address of the family", subnet, subnet)
		}
	}
	if from.vip == nil {
		return m, from.missing, nil
	}
	text := from.vip.Status.V4IP
	if a.Is6() {
		text = from.vip.Status.V6IP
	}
	address, err := ipfamily.ParseAddr(text)
	if err != nil {
		return m, from.missing, nil //nolint:nilerr // it is empty
	}
	return translate.Monitor{Port: port, Source: address}, "", nil
}
