// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// checks counts the endpoints of a rule with and without health checks.
type checks struct {
	off            bool
	checked, total int
	missing        string // reason why an endpoint is not checked
}

// monitor finds for each endpoint its logical switch port, and the source address of its health checks: the Vip with the name of its
// subnet. As in Kube-OVN, all rules share this Vip.
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
		if len(s.in.Endpoints) > 0 { // pods in EndpointSlices already have their ports
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

// sources maps subnets to the Vips that are the source of health checks.
type sources map[string]*origin

type origin struct {
	cidrs   []netip.Prefix
	vip     *kubeovnv1.Vip // nil while there is no Vip with addresses
	missing string
	asked   bool
}

// sourceSubnet returns the subnet of an endpoint, or "". It tries the known subnets first, because the endpoints of one rule are in few
// subnets.
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
	cidrs, err := ipfamily.ParseCIDRs(k8s.Applied(subnet).Spec.CIDRBlock)
	known[name] = &origin{cidrs: cidrs}
	return name, err
}

// monitorOf returns the health check of an endpoint, or the reason why there is none.
func (r *controller) monitorOf(
	ctx context.Context, rule *rule, s *state, subnet string, a netip.Addr, known sources,
) (m translate.Monitor, missing string, err error) {
	port := r.Allocator.Holder(subnet, a)
	if strings.HasPrefix(port, translate.VipHolder("")) {
		port = r.Allocator.UserOf(port)
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
		unfit := ""
		if vip != nil {
			if unfit, err = r.unfit(ctx, rule, s, vip, subnet); err != nil {
				return m, "", err
			}
		}
		switch {
		case unfit != "":
			from.missing = fmt.Sprintf("subnet %s is checked from the addresses of a Vip with its name and the type %s, but Vip %s %s: use another Vip for that",
				subnet, kubeovnv1.VipTypeHealthCheck, subnet, unfit)
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

// unfit returns the reason why a Vip cannot be the source of a subnet's health checks, or "". OVN answers ARP and neighbour discovery for the source
// itself, so a pod with the address would lose its traffic. Kube-OVN creates the Vip without a type, as users create the Vips of pods.
func (r *controller) unfit(ctx context.Context, rule *rule, s *state, vip *kubeovnv1.Vip, subnet string) (why string, err error) {
	user := r.Allocator.UserOf(translate.VipHolder(vip.Name))
	if user != "" || vip.Spec.Type == "" {
		r.watch(rule, s, "use/"+subnet)
	}
	switch of := cmp.Or(vip.Spec.Subnet, kubeovnv1.DefaultSubnet); {
	case of != subnet:
		return "is of subnet " + of, nil
	case user != "":
		return "is used by port " + user, nil
	case vip.Spec.Type == kubeovnv1.VipTypeHealthCheck:
		return "", nil
	case vip.Spec.Type != "":
		return "is of type " + vip.Spec.Type, nil
	case len(vip.Spec.Selector) > 0:
		return "has a selector of pods", nil
	}
	for _, user := range r.Vips.UsersOf(vip.Name) {
		switch denied, err := r.Grants.Vip(ctx, user.Pod.Namespace, vip); {
		case err != nil:
			return "", err
		case denied == "":
			return "is for pod " + user.Pod.String(), nil
		}
	}
	return "", nil
}
