// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/netprobe"
)

// Families in the output.
const (
	ipv4 = "IPv4"
	ipv6 = "IPv6"
)

// podCheck is a line of the output for each family.
type podCheck struct {
	name string
	// skipped says why nothing is checked, if that is so.
	skipped string
	// silent says why a target may answer no pod, which is no failure then; empty if it must answer.
	silent string
	// before changes the cluster for the check, if it is set.
	before func(ctx context.Context) error
	// ways are none if their pods do not run.
	ways func() []way
}

// probedProtocols are the protocols between two pods.
var probedProtocols = []string{netprobe.ICMP, netprobe.TCP, netprobe.UDP}

// way is a target, tried from a pod.
type way struct {
	from   *corev1.Pod
	target netprobe.Target
	// to names the target, and node is its node if it has one.
	to, node string
	family   string
}

// outcome is the result of one part of a check.
type outcome struct {
	// nodes are the nodes of the part, as in "worker-1 → worker-2"; what describes it.
	nodes, what, family string
	// problem is empty if it passed.
	problem string
	took    time.Duration
}

func (w way) outcome(answer netprobe.Answer) outcome {
	nodes := w.from.Spec.NodeName
	if w.node != "" {
		nodes += " → " + w.node
	}
	return outcome{nodes: nodes, what: "pod " + w.from.Name + " → " + w.to, family: w.family, problem: answer.Error, took: answer.Took}
}

// judge tries all ways of a check at the same time, and prints a line for each family.
func (r *podRun) judge(ctx context.Context, check podCheck) {
	if check.skipped != "" {
		fmt.Fprintf(r.results, "-     %s: not checked: %s\n", check.name, plain(check.skipped))
		return
	}
	byPod := map[types.NamespacedName][]way{}
	for _, w := range check.ways() {
		key := types.NamespacedName{Namespace: w.from.Namespace, Name: w.from.Name}
		byPod[key] = append(byPod[key], w)
	}
	var mu sync.Mutex
	var outcomes []outcome
	var all sync.WaitGroup
	for _, ways := range byPod {
		all.Go(func() {
			targets := make([]netprobe.Target, 0, len(ways))
			for _, w := range ways {
				targets = append(targets, w.target)
			}
			answers, err := r.probe(ctx, ways[0].from, targets)
			mu.Lock()
			defer mu.Unlock()
			for i, w := range ways {
				if err != nil {
					outcomes = append(outcomes, w.outcome(netprobe.Answer{Error: err.Error()}))
					continue
				}
				outcomes = append(outcomes, w.outcome(answers[i]))
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return // the interrupt is the cause of the failures
	}
	r.report(check, outcomes)
}

// report prints the outcomes of a check, in a line for each family.
func (r *podRun) report(check podCheck, outcomes []outcome) {
	for _, family := range []string{ipv4, ipv6, ""} {
		of := slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return o.family != family })
		title := strings.TrimSpace(check.name + " " + family)
		answered := slices.ContainsFunc(of, func(o outcome) bool { return o.problem == "" })
		switch {
		case len(of) == 0:
		case check.silent != "" && !answered:
			fmt.Fprintf(r.results, "-     %s: no answer: %s\n", title, check.silent)
		default:
			r.reportFamily(title, of)
		}
	}
}

// reportFamily prints the outcomes of a check in one family, and records the nodes of failures.
func (r *podRun) reportFamily(name string, outcomes []outcome) {
	r.checks++
	longest := time.Duration(0)
	var problems []string
	for _, o := range outcomes {
		longest = max(longest, o.took)
		if o.problem == "" {
			continue
		}
		r.between = append(r.between, o.nodes)
		problems = append(problems, fmt.Sprintf("%s: %s: %s", o.nodes, o.what, plain(o.problem)))
	}
	if len(problems) == 0 {
		fmt.Fprintf(r.results, "ok    %s: %d, %.1f s\n", name, len(outcomes), longest.Seconds())
		return
	}
	r.failed++
	slices.Sort(problems)
	fmt.Fprintf(r.results, "FAIL  %s: %d of %d\n", name, len(problems), len(outcomes))
	for _, problem := range problems[:min(len(problems), listed)] {
		fmt.Fprintf(r.results, "        %.400s\n", problem)
	}
	if more := len(problems) - listed; more > 0 {
		fmt.Fprintf(r.results, "        and %d more\n", more)
	}
}

// to returns the ways between the pods of two roles.
func (r *podRun) to(from, to string, blocked bool, protocols ...string) []way {
	source, target := r.running[from], r.running[to]
	if source == nil || target == nil {
		return nil
	}
	return waysTo(source, target, blocked, protocols...)
}

// waysTo returns the ways from one pod to the server in another, with each protocol and in each family that both have.
func waysTo(source, target *corev1.Pod, blocked bool, protocols ...string) (ways []way) {
	for _, a := range addressesOf(target) {
		for _, protocol := range protocols {
			t := netprobe.Target{Protocol: protocol, Address: a.String(), Want: target.Name, Blocked: blocked}
			if protocol != netprobe.ICMP {
				t.Address = netip.AddrPortFrom(a, probedPort).String()
			}
			ways = addWay(ways, source, t, a, fmt.Sprintf("pod %s (%s %s)", target.Name, protocol, t.Address), target.Spec.NodeName)
		}
	}
	return ways
}

// addWay appends a way if its pod has an address of the family.
func addWay(ways []way, from *corev1.Pod, target netprobe.Target, family netip.Addr, to, node string) []way {
	for _, a := range addressesOf(from) {
		if a.Is4() == family.Is4() {
			target.Within = reachTime
			return append(ways, way{from: from, target: target, to: to, node: node, family: familyOf(family.String())})
		}
	}
	return ways
}

// each returns the running pods of a role with a number.
func (r *podRun) each(role string) (pods []*corev1.Pod) {
	for i := range r.hosts {
		if pod := r.running[fmt.Sprintf(role, i)]; pod != nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// mesh returns the ways from pods to the servers on other nodes; from pods in the network of the node also to the server there.
func (r *podRun) mesh(sources []*corev1.Pod, protocol string) (ways []way) {
	for _, source := range sources {
		for _, target := range r.each(clientPod) {
			if source.Spec.NodeName != target.Spec.NodeName || source.Spec.HostNetwork {
				ways = append(ways, waysTo(source, target, false, protocol)...)
			}
		}
	}
	return ways
}

func addressesOf(pod *corev1.Pod) (addresses []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// familyOf returns the family of an address.
func familyOf(address string) string {
	if strings.Contains(address, ":") {
		return ipv6
	}
	return ipv4
}
