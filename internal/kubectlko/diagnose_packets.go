// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/netprobe"
	"github.com/kiln-net/kiln/internal/validation"
)

// subnetRun is one run of `kubectl ko diagnose subnet` with packets.
type subnetRun struct {
	podRun
	// subnet has its applied spec, and network the addresses of that.
	subnet  *kubeovnv1.Subnet
	network validation.Network
	// pingers are the running pods of kube-ovn-pinger on the nodes of the run.
	pingers []*corev1.Pod
}

// newSubnetRun returns a run whose pods are in another namespace, or in one of their own if in is empty.
func (p *plugin) newSubnetRun(run podRunFlags, in string) *subnetRun {
	s := &subnetRun{podRun: p.newPodRun(run, "")}
	s.in = in
	return s
}

func (s *subnetRun) run(ctx context.Context, subnet string) error {
	if err := s.checkRights(ctx, s.rights()); err != nil {
		return err
	}
	if err := s.placement(ctx, subnet); err != nil {
		return err
	}
	if err := s.findHosts(ctx); err != nil {
		return err
	}
	if err := s.withInterface(ctx); err != nil {
		return err
	}
	s.limitHosts()
	defer s.cleanUp(ctx)
	began := time.Now()
	fmt.Fprintf(s.errOut, "starting pods on %d nodes, in namespace %s\n", len(s.hosts), cmp.Or(s.in, s.name))
	if err := s.createNamespaces(ctx); err != nil {
		return err
	}
	s.wanted = s.allPods()
	if err := s.createPods(ctx); err != nil {
		return err
	}
	if err := s.await(ctx); err != nil {
		return err
	}
	s.report(podCheck{name: "pods have addresses of the subnet"}, s.addresses())
	checks, err := s.table(ctx)
	if err != nil {
		return err
	}
	if err := s.judgeAll(ctx, checks); err != nil {
		return err
	}
	if s.failed > 0 && !s.keep {
		fmt.Fprintln(s.errOut, "with --keep the pods stay, and `kubectl ko trace` names the object that drops a packet between two of them")
	}
	return s.verdict(began)
}

// rights returns the permissions that the run needs.
func (s *subnetRun) rights() []right {
	group := kubeovnv1.GroupVersion.Group
	return append(s.podRights(),
		right{s.namespace, corev1.GroupName, "pods/exec", "create"}, // in pods of kube-ovn-pinger
		right{"", group, "subnets", "get list"},
		right{"", group, "vpcs", "get list"},
		right{"", group, "vlans", "get"},
		right{"", group, "provider-networks", "get"},
		right{"", v1alpha1.GroupVersion.Group, "ovnclusters", "get"},
	)
}

// withInterface leaves out nodes without an interface in the physical network of an underlay subnet, and prints them with the cause.
func (s *subnetRun) withInterface(ctx context.Context) error {
	if s.subnet.Spec.Vlan == "" {
		return nil
	}
	vlan, network := &kubeovnv1.Vlan{}, &kubeovnv1.ProviderNetwork{}
	if err := s.objects.Get(ctx, client.ObjectKey{Name: s.subnet.Spec.Vlan}, vlan); err != nil {
		return fmt.Errorf("read the Vlan of the subnet: %w", err)
	}
	if err := s.objects.Get(ctx, client.ObjectKey{Name: vlan.Spec.Provider}, network); err != nil {
		return fmt.Errorf("read the ProviderNetwork of Vlan %s: %w", vlan.Name, err)
	}
	var ready []host
	var missing []string
	for _, h := range s.hosts {
		if slices.Contains(network.Status.ReadyNodes, h.name) {
			ready = append(ready, h)
			continue
		}
		missing = append(missing, h.name+": "+whyNotConnected(network, h.name))
	}
	s.hosts = ready
	for _, line := range missing[:min(len(missing), listed)] {
		fmt.Fprintf(s.out, "-     left out: %s\n", plain(line))
	}
	if more := len(missing) - listed; more > 0 {
		fmt.Fprintf(s.out, "-     left out: %d more nodes\n", more)
	}
	if len(ready) == 0 {
		return fmt.Errorf("no node is ready in ProviderNetwork %s: `kubectl describe provider-network %s` has the causes", network.Name, network.Name)
	}
	return nil
}

// whyNotConnected returns why a node is not ready in a ProviderNetwork.
func whyNotConnected(network *kubeovnv1.ProviderNetwork, node string) string {
	for _, c := range network.Status.Conditions {
		if c.Node == node && c.Type == kubeovnv1.ConditionReady && c.Message != "" {
			return c.Message
		}
	}
	if slices.Contains(network.Status.NotReadyNodes, node) {
		return "it is not ready in ProviderNetwork " + network.Name
	}
	return "ProviderNetwork " + network.Name + " does not select it"
}

// allPods returns the pods of all checks.
func (s *subnetRun) allPods() []*corev1.Pod {
	pods := []*corev1.Pod{s.subnetPod(neighbourPod, s.hosts[0])}
	for i, h := range s.hosts {
		pods = append(pods, s.subnetPod(fmt.Sprintf(clientPod, i), h))
		if s.nodesExcluded() == "" {
			pods = append(pods, waitingPod(s.name, fmt.Sprintf(hostPod, i), h))
		}
	}
	return pods
}

// subnetPod returns a pod that requests an address of the subnet.
func (s *subnetRun) subnetPod(role string, on host) *corev1.Pod {
	pod := serverPod(s.name, role, on)
	if s.in != "" {
		pod = serverPod(s.in, s.name+"-"+role, on) // a name that no pod of the namespace has
		pod.Labels[roleLabel] = role
	}
	pod.Annotations = map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): s.subnet.Name}
	if s.nodesExcluded() != "" {
		pod.Spec.Containers[0].ReadinessProbe = nil
	}
	return pod
}

// addresses checks that each pod has an address of each CIDR.
func (s *subnetRun) addresses() (outcomes []outcome) {
	for _, wanted := range s.wanted {
		pod := s.running[wanted.Labels[roleLabel]]
		if pod == nil || pod.Spec.HostNetwork {
			continue
		}
		for _, cidr := range s.network.CIDRs {
			o := outcome{nodes: pod.Spec.NodeName, what: "pod " + pod.Name, family: familyOf(cidr.String())}
			if !slices.ContainsFunc(addressesOf(pod), cidr.Contains) {
				o.problem = fmt.Sprintf("none of its addresses %v is in %s", addressesOf(pod), cidr)
			}
			outcomes = append(outcomes, o)
		}
	}
	return outcomes
}

// table returns the checks in their order.
func (s *subnetRun) table(ctx context.Context) ([]podCheck, error) {
	podsExcluded, err := s.podsExcluded(ctx)
	if err != nil {
		return nil, err
	}
	gateway := podCheck{name: "pod → gateway, icmp", ways: s.toGateways}
	if s.subnet.Spec.PhysicalGateway() {
		gateway.silent = "routers of physical networks need not answer echo requests"
	}
	checks := []podCheck{gateway, {name: "pod → pod, same node", ways: func() []way { return s.to(fmt.Sprintf(clientPod, 0), neighbourPod, false, probedProtocols...) }}}
	for _, protocol := range probedProtocols {
		checks = append(checks, podCheck{name: "pod → pod, across nodes, " + protocol, ways: func() []way { return s.mesh(s.each(clientPod), protocol) }})
	}
	for _, protocol := range []string{netprobe.TCP, netprobe.UDP} {
		checks = append(checks, podCheck{name: "node → pod, " + protocol, skipped: s.nodesExcluded(), ways: func() []way { return s.mesh(s.each(hostPod), protocol) }})
	}
	return append(checks, podCheck{name: "pod of " + pinger + " → pod", skipped: podsExcluded, ways: s.fromPingers}), nil
}

func (s *subnetRun) toGateways() (ways []way) {
	for _, pod := range s.each(clientPod) {
		for _, gateway := range s.network.Gateways {
			ways = addWay(ways, pod, netprobe.Target{Protocol: netprobe.ICMP, Address: gateway.String()}, gateway, "gateway "+gateway.String(), "")
		}
	}
	return ways
}

func (s *subnetRun) fromPingers() (ways []way) {
	for _, from := range s.pingers {
		for _, to := range s.each(clientPod) {
			ways = append(ways, waysTo(from, to, false, probedProtocols...)...)
		}
	}
	return ways
}

// nodesExcluded returns why nodes need not reach pods of the subnet; "" if they must.
func (s *subnetRun) nodesExcluded() string {
	switch {
	case lookup.VpcOf(s.subnet) != kubeovnv1.DefaultVpc:
		return "nodes reach no pods of a custom VPC"
	case s.subnet.Spec.PhysicalGateway():
		return "nodes reach the pods by routers of the physical network"
	}
	return ""
}

// podsExcluded returns why pods of kube-ovn-pinger need not reach pods of the subnet, or finds these pods and returns "" if they must.
func (s *subnetRun) podsExcluded(ctx context.Context) (string, error) {
	switch {
	case lookup.VpcOf(s.subnet) != kubeovnv1.DefaultVpc:
		return "pods of other VPCs reach no pods of this one", nil
	case s.subnet.Spec.Private:
		return "the subnet is private", nil
	case !s.subnet.Spec.OnRouter():
		return "pods of other subnets reach the pods by routers of the physical network", nil
	}
	pods, err := s.podsOf(ctx, pinger)
	if err != nil {
		return "", err
	}
	for i := range pods {
		if on := pods[i].Spec.NodeName; runs(&pods[i]) && slices.ContainsFunc(s.hosts, func(h host) bool { return h.name == on }) {
			s.pingers = append(s.pingers, &pods[i])
		}
	}
	if len(s.pingers) == 0 {
		return "no pod of " + pinger + " runs on these nodes", nil
	}
	own := &kubeovnv1.Subnet{}
	name := cmp.Or(s.pingers[0].Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()], kubeovnv1.DefaultSubnet)
	if err := s.objects.Get(ctx, client.ObjectKey{Name: name}, own); err != nil {
		return "", fmt.Errorf("read the Subnet of %s: %w", pinger, err)
	}
	own = k8s.Applied(own)
	if apart := lookup.VpcOf(own) != kubeovnv1.DefaultVpc || own.Spec.Private || !own.Spec.OnRouter(); apart && name != s.subnet.Name {
		return fmt.Sprintf("subnet %s of these pods is private or in another network", name), nil
	}
	return "", nil
}
