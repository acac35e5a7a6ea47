// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

func (s *Snapshot) service(key types.NamespacedName) *corev1.Service {
	for _, service := range s.Services {
		if service.Namespace == key.Namespace && service.Name == key.Name {
			return service
		}
	}
	return nil
}

// serviceHost returns a Service with its ClusterIP of a family.
func (s *Snapshot) serviceHost(service *corev1.Service, family ipfamily.Family) (host, *problem) {
	h := host{kind: outside, addr: first(svc.ClusterIPs(service), family)}
	if h.addr.IsValid() || len(svc.ClusterIPs(service)) > 0 {
		return h, nil
	}
	o := &Object{Kind: "Service", Namespace: service.Namespace, Name: service.Name}
	text := "%s is headless: its name leads to the addresses of its endpoints, so ask for one of these pods"
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		text = "%s is an alias of a DNS name: ask for the address of that name"
	}
	return h, &problem{Step{Unclear, o, fmt.Sprintf(text, o)}, CannotTell, ""}
}

func (s *Snapshot) slicesOf(namespace, name string) []*discoveryv1.EndpointSlice {
	var list []*discoveryv1.EndpointSlice
	for _, slice := range s.Slices {
		if slice.Namespace == namespace && slice.Labels[discoveryv1.LabelServiceName] == name {
			list = append(list, slice)
		}
	}
	return list
}

// front is an address of a Service or a rule that a packet is for.
type front struct {
	object    Object
	service   *corev1.Service // nil for a rule
	backends  []netip.AddrPort
	noPort    bool   // it has the address, but not the port
	ports     string // that it has
	namespace string // of the endpoints
	vpc       string // of the endpoints, for a rule
}

// served returns the service of a packet's destination in a VPC by OVN's load balancers; nil if there is none.
func (w *walk) served(vpc string, p packet) *front {
	for _, service := range w.s.Services {
		addresses := svc.Addresses(service)
		if !slices.Contains(addresses, p.dst) || svc.Vpc(service) != vpc || service.DeletionTimestamp != nil {
			continue
		}
		rows := translate.Service(translate.ServiceInputs{Service: service, Slices: w.s.slicesOf(service.Namespace, service.Name), Vpc: vpc})
		w.m.add(translate.ServiceOwner(service.Namespace, service.Name), rows)
		f := frontOf(rows, p)
		f.object, f.service, f.namespace = Object{Kind: "Service", Namespace: service.Namespace, Name: service.Name}, service, service.Namespace
		if !f.noPort || slices.Contains(svc.ClusterIPs(service), p.dst) {
			if len(rows) == 0 || vpc == kubeovnv1.DefaultVpc && w.byNodes() || !hasAddress(rows, p.dst) {
				return nil // nodes serve it
			}
			return &f
		}
	}
	return w.ruleAt(vpc, p)
}

// byNodes reports whether nodes serve the Services of pods.
func (w *walk) byNodes() bool {
	return w.s.Cluster != nil && w.s.Cluster.Spec.Services.PodAccess == v1alpha1.PodAccessNode
}

func hasAddress(rows []desired.Row, addr netip.Addr) bool {
	for _, row := range rows {
		if lb, is := row.Model.(*nb.LoadBalancer); is {
			for vip := range lb.Vips {
				if at, err := netip.ParseAddrPort(vip); err == nil && at.Addr() == addr {
					return true
				}
			}
		}
	}
	return false
}

// frontOf returns the endpoints of a packet's destination in the rows of load balancers.
func frontOf(rows []desired.Row, p packet) front {
	f := front{noPort: true}
	var ports []string
	for _, row := range rows {
		lb, is := row.Model.(*nb.LoadBalancer)
		if !is || lb.Protocol == nil {
			continue
		}
		for vip, backends := range lb.Vips {
			at, err := netip.ParseAddrPort(vip)
			if err != nil || at.Addr() != p.dst {
				continue
			}
			ports = append(ports, fmt.Sprintf("%d/%s", at.Port(), strings.ToUpper(*lb.Protocol)))
			if *lb.Protocol != p.protocol || at.Port() != p.port {
				continue
			}
			f.noPort = false
			for text := range strings.SplitSeq(backends, ",") {
				if e, err := netip.ParseAddrPort(text); err == nil {
					f.backends = append(f.backends, e)
				}
			}
		}
	}
	slices.Sort(ports)
	f.ports = strings.Join(slices.Compact(ports), ", ")
	return f
}

// ruleAt returns the SwitchLBRule, RouterLBRule or OvnDnatRule that has a packet's destination, or the Service that has it by an OvnEip, of several one with its port.
func (w *walk) ruleAt(vpc string, p packet) *front {
	var fronts []front
	for _, r := range w.s.SwitchRules {
		if vips := vipsOf(r); slices.Contains(vips, p.dst) {
			fronts = append(fronts, *w.rule(translate.KindSwitchLBRule, r.Name, vpc, vips, &appliedRule(r).LBRuleBackends, r.Status.Service, p))
		}
	}
	fronts = append(fronts, w.routerFronts(vpc, p)...)
	fronts = append(fronts, w.forwardsInside(vpc, p)...)
	served := func() int { return slices.IndexFunc(fronts, func(f front) bool { return !f.noPort }) }
	if served() < 0 { // a Service does not have the ports of rules that are applied
		fronts = append(fronts, w.eipFronts(vpc, p)...)
	}
	if i := served(); i >= 0 {
		return &fronts[i]
	}
	fronts = slices.DeleteFunc(fronts, func(f front) bool { return f.object.Kind == translate.KindOvnDnatRule }) // the router may answer
	if len(fronts) == 0 {
		return nil
	}
	return &fronts[0]
}

func appliedRule(r *kubeovnv1.SwitchLBRule) *kubeovnv1.SwitchLBRuleSpec {
	if r.Status.ValidatedSpec != nil {
		return r.Status.ValidatedSpec
	}
	return &r.Spec
}

// vipsOf returns the addresses of a SwitchLBRule; nil if they are not valid.
func vipsOf(r *kubeovnv1.SwitchLBRule) []netip.Addr {
	vips, problem := validation.LBRuleVIPs(appliedRule(r).VIP)
	if problem != nil {
		return nil
	}
	return vips
}

func (w *walk) rule(kind, name, vpc string, vips []netip.Addr, spec *kubeovnv1.LBRuleBackends, service string, p packet) *front {
	in := translate.LBRuleInputs{Kind: kind, Name: name, Vpc: vpc, VIPs: vips, Endpoints: ipfamily.ValidAddrs(spec.Endpoints...)}
	namespace, serviceName, _ := strings.Cut(service, "/")
	in.Slices = w.s.slicesOf(namespace, serviceName)
	for i := range spec.Ports {
		port := &spec.Ports[i]
		in.Ports = append(in.Ports, translate.LBRulePort{
			Name: validation.LBRulePortName(port), Protocol: corev1.Protocol(cmp.Or(port.Protocol, string(corev1.ProtocolTCP))),
			Port: uint16(port.Port), Target: uint16(cmp.Or(port.TargetPort, port.Port)), //nolint:gosec // the API server takes 1 to 65535
		})
	}
	rows := translate.LBRule(in)
	w.m.add(translate.LBRuleOwner(kind, name), rows)
	f := frontOf(rows, p)
	f.object, f.namespace, f.vpc = Object{Kind: kind, Name: name}, cmp.Or(spec.Namespace, namespace), vpc
	return &f
}

// balance follows a packet to each endpoint of a front. next follows it to one of them.
func (w *walk) balance(f *front, next func(w *walk, endpoint netip.AddrPort)) {
	switch {
	case f.noPort && w.q.Protocol == ICMP:
		w.drop(&f.object, "ask for a port of it, or for the address of an endpoint", "%s is the address of %s, which has no answer to pings: its ports are %s", w.to.addr, f.object, f.ports)
		return
	case f.noPort:
		w.drop(&f.object, fmt.Sprintf("add the port to %s, or use one of its ports", f.object), "%s has no %s at %s: its ports are %s", f.object, portText(w.q.Protocol, w.q.Port), w.to.addr, f.ports)
		return
	case f.service != nil && w.s.unread(ResourceSlices, f.service.Namespace) != nil:
		w.needs(ResourceSlices, f.service.Namespace, "which endpoints "+f.object.String()+" has")
		return
	case len(f.backends) == 0:
		w.noEndpoints(f)
		return
	}
	w.elsewhere = nil // it serves the address
	w.say(Changes, &f.object, "%s sends the packet to one of %d endpoints: %s", f.object, len(f.backends), some(f.backends))
	w.each(f, next)
}

func some(list []netip.AddrPort) string {
	var texts []string
	for _, e := range list[:min(len(list), 4)] {
		texts = append(texts, e.String())
	}
	if len(list) > 4 {
		texts = append(texts, fmt.Sprintf("and %d more", len(list)-4))
	}
	return strings.Join(texts, ", ")
}

// noEndpoints reports a port without endpoints: connections are refused.
func (w *walk) noEndpoints(f *front) {
	change := "make a pod that its selector selects ready"
	detail := ""
	switch {
	case f.service == nil:
		change = fmt.Sprintf("make a pod in namespace %s that the rule's selector selects ready, or correct selector and namespace of %s", cmp.Or(f.namespace, "default"), f.object)
	case len(f.service.Spec.Selector) == 0:
		change = "create an EndpointSlice for it"
	default:
		var unready []string
		matching := 0
		for _, pod := range w.s.Pods {
			if pod.Namespace == f.service.Namespace && matches(f.service.Spec.Selector, pod.Labels) {
				if matching++; !isReady(pod) {
					unready = append(unready, pod.Name)
				}
			}
		}
		slices.Sort(unready)
		if len(unready) > 0 {
			detail = fmt.Sprintf(": its pods are not ready (%s)", strings.Join(unready[:min(len(unready), 4)], ", "))
			change = "find out by the readiness probes and the logs of these pods why they are not ready"
		} else if matching > 0 {
			detail = ": its pods are ready, but have no port of the name that targetPort has, or another family"
			change = "correct targetPort of the Service"
		} else if w.s.unread(ResourcePods, f.service.Namespace) == nil {
			detail = ": no pod has the labels of its selector"
			change = "correct the selector of the Service or the labels of its pods"
		}
	}
	w.drop(&f.object, change, "%s has no endpoint for %s%s: connections are refused", f.object, portText(w.q.Protocol, w.q.Port), detail)
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// outcome is the end of a way to an endpoint.
type outcome struct {
	verdict Verdict
	// by is the object that decides; "" if there is none.
	by string
}

func (w *walk) outcome() outcome {
	o := outcome{verdict: w.verdict()}
	if w.decidedBy != nil {
		o.by = describe(w.decidedBy)
	}
	return o
}

// each follows a packet to the endpoints of a front, and joins the outcomes.
func (w *walk) each(f *front, next func(w *walk, endpoint netip.AddrPort)) {
	followed := slices.DeleteFunc(slices.Clone(f.backends), func(e netip.AddrPort) bool { return w.s.Omitted[e.Addr()] })
	omitted := ""
	if n := len(f.backends) - len(followed); n > 0 {
		omitted = fmt.Sprintf("; %d of %d endpoints were not followed, because there are too many", n, len(f.backends))
	}
	var worst *walk
	var order []outcome // the most severe first
	groups, verdicts := map[outcome][]netip.AddrPort{}, map[Verdict]int{}
	for _, e := range followed {
		branch := w.branch(w.s.hostAt(e.Addr(), f.vpcOf()))
		branch.q.Port = e.Port()
		if branch.ready(branch.to); !branch.ended() {
			next(branch, e)
		}
		o := branch.outcome()
		if groups[o] == nil {
			order = append(order, o)
		}
		groups[o] = append(groups[o], e)
		verdicts[o.verdict]++
		w.endpoints = append(w.endpoints, Endpoint{Address: e.String(), Verdict: o.verdict})
		if worst == nil || rank(o.verdict) > rank(worst.verdict()) {
			worst = branch
		}
	}
	slices.SortStableFunc(order, func(a, b outcome) int { return rank(b.verdict) - rank(a.verdict) })
	switch {
	case worst == nil:
		w.doubt(&f.object, "it is not known which endpoints of %s the packet reaches%s", f.object, omitted)
		return
	case len(order) == 1 && omitted == "":
		if len(followed) > 1 {
			w.say(Notes, &f.object, "all %d endpoints were followed, with one outcome; the steps below are for %s", len(followed), worst.to.addr)
		}
	case len(verdicts) == 1 && omitted == "":
		w.say(Notes, &f.object, "all %d endpoints were followed: %s; the steps below are for %s", len(followed), grouped(order, groups), worst.to.addr)
	default:
		w.steps = append(w.steps, worst.steps...)
		w.unclear, w.decidedBy, w.change = true, worst.decidedBy, worst.change
		text := fmt.Sprintf("%d endpoints were followed", len(followed))
		if len(verdicts) > 1 {
			text = fmt.Sprintf("it depends on the endpoint: of %d, the packet reaches %d and is dropped on the way to %d", len(followed), verdicts[Delivered], verdicts[Dropped])
		}
		w.say(Unclear, &f.object, "%s: %s%s; the steps above are for %s", text, grouped(order, groups), omitted, worst.to.addr)
		return
	}
	w.steps = append(w.steps, worst.steps...)
	w.dropped, w.delivered, w.unclear = worst.dropped, worst.delivered, w.unclear || worst.unclear
	w.decidedBy, w.change, w.translated = worst.decidedBy, worst.change, true
}

// grouped says how many endpoints have each outcome.
func grouped(order []outcome, groups map[outcome][]netip.AddrPort) string {
	var texts []string
	for _, o := range order {
		text := fmt.Sprintf("%d %s", len(groups[o]), o.verdict.text())
		switch {
		case o.by == "":
		case o.verdict == Dropped:
			text += " by " + o.by
		default:
			text += " because of " + o.by
		}
		texts = append(texts, fmt.Sprintf("%s (%s)", text, some(groups[o])))
	}
	return strings.Join(texts, ", ")
}

// vpcOf returns the VPC of the endpoints.
func (f *front) vpcOf() string {
	if f.service != nil {
		return svc.Vpc(f.service)
	}
	return f.vpc
}

func rank(v Verdict) int { return map[Verdict]int{Delivered: 0, CannotTell: 1, Dropped: 2}[v] }
