// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// LBRuleVIPs parses the addresses of a SwitchLBRule: at most one per family.
func LBRuleVIPs(vip string) ([]netip.Addr, *Problem) {
	if strings.TrimSpace(vip) == "" {
		return nil, Problemf(ReasonFieldInvalid, "vip is empty: set the address that clients send to")
	}
	vips, err := ipfamily.ParseAddrs(vip)
	if err != nil {
		return nil, Problemf(ReasonFieldInvalid, "vip: %v", err)
	}
	for _, a := range vips {
		if unreachable(a) {
			return nil, Problemf(ReasonFieldInvalid, "vip: pods cannot reach %s through a switch: choose another address", a)
		}
	}
	return vips, nil
}

// LBRuleBackends checks the backends of a rule: ports with different names, and either a valid selector or endpoints.
func LBRuleBackends(b *kubeovnv1.LBRuleBackends) *Problem {
	switch {
	case len(b.Ports) == 0:
		return Problemf(ReasonFieldInvalid, "ports is empty: name the ports that clients send to")
	case len(b.Selector) == 0 && len(b.Endpoints) == 0:
		return Problemf(ReasonFieldInvalid, "there is neither selector nor endpoints: set one of them")
	case len(b.Selector) > 0 && len(b.Endpoints) > 0:
		return Problemf(ReasonFieldInvalid, "there are both selector and endpoints: leave one out")
	}
	names := map[string]bool{}
	for i := range b.Ports {
		name := LBRulePortName(&b.Ports[i])
		if names[name] {
			return Problemf(ReasonFieldInvalid, "ports: the name %s is used twice, or belongs to a port without a name: give each port its own", name)
		}
		names[name] = true
	}
	if _, err := labels.ValidatedSelectorFromSet(LBRuleSelector(b)); err != nil {
		return Problemf(ReasonFieldInvalid, "selector: %v", err)
	}
	return nil
}

// RouterLBRule checks the spec of a RouterLBRule.
func RouterLBRule(spec *kubeovnv1.RouterLBRuleSpec) *Problem {
	if spec.OvnEip == "" {
		return Problemf(ReasonFieldInvalid, "ovnEip is empty: name the OvnEip that clients send to")
	}
	for _, text := range spec.Endpoints {
		if a, err := ipfamily.ParseAddr(text); err != nil || unreachable(a) {
			return Problemf(ReasonFieldInvalid, "endpoints: %s is not an address of a host: choose another one", text)
		}
	}
	return LBRuleBackends(&spec.LBRuleBackends)
}

// LBRulePortName returns the name of a port of a rule. A port without a name is named by its protocol and number.
func LBRulePortName(p *kubeovnv1.LBRulePort) string {
	if p.Name != "" {
		return p.Name
	}
	return strings.ToLower(fmt.Sprintf("%s-%d", cmp.Or(p.Protocol, string(corev1.ProtocolTCP)), p.Port))
}

// unreachable reports whether an address cannot be reached beyond the sender's link.
func unreachable(a netip.Addr) bool {
	return a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast()
}

// LBRuleSelector returns the labels of the pods that a rule selects.
func LBRuleSelector(b *kubeovnv1.LBRuleBackends) map[string]string {
	set := map[string]string{}
	for _, item := range b.Selector {
		key, value, _ := strings.Cut(item, ":")
		set[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return set
}
