// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// stage is a table of ACLs of a switch.
type stage struct {
	direction nb.ACLDirection
	// afterLB: the ACLs after load balancing, on the final destination.
	afterLB bool
}

var (
	sends    = stage{direction: nb.ACLDirectionFromLport}
	sendsTo  = stage{direction: nb.ACLDirectionFromLport, afterLB: true}
	receives = stage{direction: nb.ACLDirectionToLport}
)

// acls evaluates a stage of a subnet's switch for a packet. pod is the pod at the stage's port; nil for the port of the router.
func (w *walk) acls(subnet string, at stage, p packet, pod *host) {
	if w.routesOnly || w.ended() {
		return
	}
	parents := []desired.Ref{translate.SwitchRef(subnet)}
	if pod != nil {
		parents = append(parents, w.m.portGroups(pod.port())...)
	}
	var rows []owned[*nb.ACL]
	var list []candidate
	for _, parent := range parents {
		for _, acl := range w.m.acls[parent] {
			if acl.row.Direction != at.direction || (acl.row.Options["apply-after-lb"] == "true") != at.afterLB {
				continue
			}
			list = append(list, candidate{
				tier: acl.row.Tier, priority: acl.row.Priority, match: acl.row.Match, index: len(rows), ofUser: acl.Owner.Kind == translate.KindSubnet,
				passes: acl.row.Action == nb.ACLActionPass, opens: acl.row.Action != nb.ACLActionDrop && acl.row.Action != nb.ACLActionReject,
			})
			rows = append(rows, acl)
		}
	}
	outcomes := decide(list, p)
	opens, closes := []owned[*nb.ACL]{}, []owned[*nb.ACL]{}
	free := false
	for _, i := range outcomes {
		switch {
		case i == none:
			free = true
		case rows[i].row.Action == nb.ACLActionDrop || rows[i].row.Action == nb.ACLActionReject:
			closes = append(closes, rows[i])
		default:
			opens = append(opens, rows[i])
		}
	}
	switch {
	case len(closes) > 0 && (free || len(opens) > 0):
		o := objectOf(w, closes[0], pod)
		w.doubt(o, "%s may drop the packet: values that its match compares are not known (%s)", o, closes[0].row.Match)
	case len(closes) > 0:
		w.closed(subnet, at, closes[0], rows, p, pod)
	case len(opens) > 0:
		w.opened(at, opens[0], pod)
	case pod != nil && at == receives:
		w.say(Notes, nil, "no rule decides about packets to %s: they pass", pod)
	case pod != nil && at == sendsTo:
		w.say(Notes, nil, "no rule decides about packets of %s: they pass", pod)
	}
	if !w.dropped {
		w.unseen(subnet, at, pod)
	}
}

// unseen records objects that may stop the packet at a stage and cannot be read.
func (w *walk) unseen(subnet string, at stage, pod *host) {
	s := w.s
	if at != sendsTo && s.unread(ResourceSubnets, "") != nil && s.subnet(subnet) == nil {
		w.needs(ResourceSubnets, "", fmt.Sprintf("whether acls or private of Subnet %s drop the packet", subnet))
	}
	if pod == nil || at == sends {
		return
	}
	if !s.ignoresPolicies() {
		w.needs(ResourcePolicies, pod.pod.Namespace, fmt.Sprintf("whether a NetworkPolicy of namespace %s drops the packet", pod.pod.Namespace))
		for i := range s.Unread {
			if u := &s.Unread[i]; strings.HasSuffix(u.Resource, "."+GroupPolicies) {
				w.doubt(nil, "it is not known whether a cluster-wide policy drops the packet: %s is not permitted", u)
			}
		}
	}
	if len(kubeovnv1.ParseSecurityGroups(pod.pod.Annotations)) > 0 {
		w.needs(ResourceGroups, "", "whether the security groups of "+pod.String()+" let the packet pass")
	}
}

// opened reports the rule that lets a packet pass.
func (w *walk) opened(at stage, acl owned[*nb.ACL], pod *host) {
	o := objectOf(w, acl, pod)
	switch {
	case acl.Owner.Kind == translate.KindIsolation && strings.HasPrefix(acl.Key, "acl/node/"):
		w.say(Passes, nil, "packets from the own node of %s always pass policies", pod)
	case acl.Owner.Kind == translate.KindIsolation:
		w.say(Passes, nil, "%s: such packets always pass policies", strings.TrimPrefix(acl.Key, "acl/"))
	case acl.Owner.Kind == translate.KindSubnet && o.Rule == "private":
		w.say(Passes, o, "the private Subnet %s lets this pair of addresses pass", o.Name)
	case at.direction == nb.ACLDirectionToLport:
		w.say(Passes, o, "%s, %s lets the packet pass to %s", o, ruleText(o), name(pod))
	default:
		w.say(Passes, o, "%s, %s lets the packet of %s pass", o, ruleText(o), name(pod))
	}
}

func name(pod *host) string {
	if pod == nil {
		return "the router"
	}
	return pod.String()
}

func ruleText(o *Object) string {
	if o.Rule == "" {
		return "a general rule"
	}
	return o.Rule
}

// objectOf returns the object of an ACL, with its rule.
func objectOf(w *walk, acl owned[*nb.ACL], pod *host) *Object {
	o := &Object{Kind: acl.Owner.Kind, Namespace: acl.Owner.Namespace, Name: acl.Owner.Name}
	switch acl.Owner.Kind {
	case translate.KindSubnet:
		o.Rule = w.aclField(acl)
	case translate.KindIsolation:
		o = &Object{Kind: "SecurityGroup"}
		if pod != nil && pod.pod != nil {
			o = w.groupOf(pod)
		}
	default:
		o.Rule = ruleOf(acl.Owner, acl.Key)
	}
	return o
}

// groupOf returns the security group that a pod lacks or is in.
func (w *walk) groupOf(pod *host) *Object {
	groups := w.s.groupsOf(pod.pod)
	for _, names := range [][]string{groups.Missing, groups.Denied, groups.In, {kubeovnv1.DenyAllGroup}} {
		if len(names) > 0 {
			return &Object{Kind: "SecurityGroup", Name: names[0]}
		}
	}
	return nil
}

// aclField returns the field of a Subnet from which an ACL comes: acls[2], private or allowEWTraffic.
func (w *walk) aclField(acl owned[*nb.ACL]) string {
	group := strings.Split(acl.Key, "/")[1]
	switch group {
	case "private":
		return "private"
	case "east-west":
		return "allowEWTraffic"
	}
	if subnet := w.s.subnet(acl.Owner.Name); subnet != nil {
		i := slices.IndexFunc(subnet.Spec.ACLs, func(r kubeovnv1.ACL) bool {
			return r.Direction == acl.row.Direction && r.Priority == acl.row.Priority && r.Match == acl.row.Match && r.Action == acl.row.Action
		})
		if i >= 0 {
			return fmt.Sprintf("acls[%d]", i)
		}
	}
	return ""
}

// closed reports the rule that drops a packet, and what to change.
func (w *walk) closed(subnet string, at stage, acl owned[*nb.ACL], rows []owned[*nb.ACL], p packet, pod *host) {
	o := objectOf(w, acl, pod)
	direction, other := "ingress", w.peer(p, true)
	if at.direction == nb.ACLDirectionFromLport {
		direction, other = "egress", w.peer(p, false)
	}
	what := portText(p.protocol, p.port)
	switch {
	case acl.Owner.Kind == translate.KindNetworkPolicy:
		w.above(pod)
		names := isolating(rows, acl.Key)
		change := fmt.Sprintf("add an %s rule for %s and %s to NetworkPolicy %s, or delete it", direction, other, what, names[0])
		if len(names) > 1 {
			change = fmt.Sprintf("add an %s rule for %s and %s to one of NetworkPolicies %s", direction, other, what, strings.Join(names, ", "))
		}
		o.Namespace, o.Name, _ = strings.Cut(names[0], "/")
		w.drop(o, change, "%s %s %s %s: no %s rule allows %s %s%s", plural("NetworkPolicy", "NetworkPolicies", names), strings.Join(names, ", "),
			verb("isolates", "isolate", names), pod, direction, what, map[string]string{"ingress": "from ", "egress": "to "}[direction], other)
	case acl.Owner.Kind == translate.KindIsolation:
		w.groupDrops(o, pod, direction, other, what)
	case acl.Owner.Kind == translate.KindSubnet && o.Rule == "private":
		w.privateDrops(subnet, o, p)
	case acl.Owner.Kind == translate.KindSubnet:
		w.drop(o, fmt.Sprintf("change or remove %s of Subnet %s, or add a rule that allows this traffic with a priority above %d", o.Rule, o.Name, acl.row.Priority),
			"Subnet %s, %s drops the packet: direction %s, priority %d, match %q", o.Name, o.Rule, acl.row.Direction, acl.row.Priority, acl.row.Match)
	default:
		w.drop(o, fmt.Sprintf("change or remove %s of %s, or put a rule before it that allows %s and %s", o.Rule, o, other, what),
			"%s, %s denies %s between %s and %s", o, o.Rule, what, w.peer(p, true), w.peer(p, false))
	}
}

// above notes which rules precede NetworkPolicies and cannot be read.
func (w *walk) above(pod *host) {
	for i := range w.s.Unread {
		u := &w.s.Unread[i]
		group := u.Resource == ResourceGroups && len(kubeovnv1.ParseSecurityGroups(pod.pod.Annotations)) > 0
		if strings.HasSuffix(u.Resource, "."+GroupPolicies) || u.Resource == ResourceSubnets || group {
			w.say(Notes, nil, "rules that precede NetworkPolicies may let the packet pass, but they cannot be read: %s is not permitted", u)
		}
	}
}

// isolating returns the NetworkPolicies with a default rule of the same direction for the port, sorted.
func isolating(rows []owned[*nb.ACL], key string) []string {
	var names []string
	for _, row := range rows {
		if row.Owner.Kind == translate.KindNetworkPolicy && row.Key == key {
			names = append(names, row.Owner.Namespace+"/"+row.Owner.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (w *walk) groupDrops(o *Object, pod *host, direction, other, what string) {
	groups := w.s.groupsOf(pod.pod)
	switch {
	case len(groups.Missing) > 0 && w.s.unread(ResourceGroups, "") != nil:
		w.needs(ResourceGroups, "", "whether the security groups of "+pod.String()+" let the packet pass")
	case len(groups.Missing) > 0:
		w.drop(o, fmt.Sprintf("create SecurityGroup %s, or correct the annotation security_groups of %s", o.Name, pod),
			"SecurityGroup %s, which %s names, does not exist: nothing passes by it, and no other group allows %s", o.Name, pod, what)
	case len(groups.Denied) > 0:
		w.drop(o, fmt.Sprintf("add namespace %s to allowedNamespaces of SecurityGroup %s, or correct the annotation security_groups of %s", pod.pod.Namespace, o.Name, pod),
			"SecurityGroup %s, which %s names, does not list its namespace: nothing passes by it, and no other group allows %s", o.Name, pod, what)
	default:
		w.drop(o, fmt.Sprintf("add a rule to %sRules of SecurityGroup %s for %s and %s, or remove the group from the annotation security_groups of %s",
			direction, o.Name, other, what, pod),
			"the security groups of %s (%s) allow no %s with %s, %s", pod, strings.Join(groups.Sets(), ", "), what, other, direction)
	}
}

func (w *walk) privateDrops(name string, o *Object, p packet) {
	subnet := w.s.subnet(name)
	missing := p.src
	if subnet != nil && contains(subnet, p.src) {
		missing = p.dst
	}
	entry := missing.String()
	for _, other := range w.s.Subnets {
		if applied := other; contains(applied, missing) {
			entry = "the CIDR of subnet " + other.Name
		}
	}
	w.drop(o, fmt.Sprintf("add %s to allowSubnets of Subnet %s, or set its private to false", entry, name),
		"Subnet %s is private: it exchanges packets with its own addresses, allowSubnets and nodes, and %s is none of them", name, missing)
}

// peer names the host with the source or the destination of a packet, for a rule.
func (w *walk) peer(p packet, source bool) string {
	h := host{kind: outside, addr: p.dst}
	if source {
		h.addr = p.src
	}
	for _, end := range []host{w.from, w.to} {
		if end.addr == h.addr {
			h = end
		}
	}
	if h.kind != aPod {
		block := netip.PrefixFrom(h.addr, h.addr.BitLen()).String()
		if node := w.s.nodeWith(h.addr); node != "" {
			return "node " + node + " (" + block + ")"
		}
		return block
	}
	text := h.String()
	if labels := labelText(h.pod); labels != "" {
		text += " (" + labels + ")"
	}
	return text
}

// labelText returns up to three labels of a pod.
func labelText(pod *corev1.Pod) string {
	var list []string
	for key, value := range pod.Labels {
		list = append(list, key+"="+value)
	}
	slices.Sort(list)
	return strings.Join(list[:min(len(list), 3)], ",")
}

func plural[T any](one, several string, of []T) string {
	if len(of) == 1 {
		return one
	}
	return several
}

func verb[T any](one, several string, of []T) string { return plural(one, several, of) }
