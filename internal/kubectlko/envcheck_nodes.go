// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/envcheck"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/netprobe"
)

const (
	// nodePort is the UDP port of the servers on nodes with Kiln, whose tunnels have the port of tunnels.
	nodePort = 12866
	// maxClockSkew is the difference between a node's clock and the API server's that is no finding: certificates are valid from some minutes before they are issued.
	maxClockSkew = time.Minute
	// largestFinding bounds the findings of a node, and largestText the text of each: it may be a stolen one.
	largestFinding, largestText = 50, 1000
	// subjectNodes is the subject of a finding about nodes that are not checked.
	subjectNodes = "Nodes"
)

// nodesRun is the part of `kubectl ko env-check` that checks nodes, by a pod on each.
type nodesRun struct {
	podRun
	settings map[string]envcheck.NodeSettings
	reports  map[string]envcheck.NodeReport
	// port is where the servers of all nodes listen: the port of tunnels if no node has Kiln.
	port uint16
	// check runs the check of a node in its pod, and firewall lists the chains of nftables.
	check    func(ctx context.Context, in *corev1.Pod, s envcheck.NodeSettings) (envcheck.NodeReport, error)
	firewall func(ctx context.Context, in *corev1.Pod) ([]byte, error)

	found map[string][]envcheck.Finding
	// between are findings about several nodes.
	between []envcheck.Finding
}

func (p *plugin) newNodesRun(o podRunFlags) *nodesRun {
	r := &nodesRun{
		podRun: p.newPodRun(o, ""), settings: map[string]envcheck.NodeSettings{}, reports: map[string]envcheck.NodeReport{}, found: map[string][]envcheck.Finding{},
	}
	r.results = p.errOut // out has the report only
	r.check = func(ctx context.Context, in *corev1.Pod, s envcheck.NodeSettings) (report envcheck.NodeReport, err error) {
		err = p.runJSON(ctx, in, s, &report, "kiln", "netprobe", "node")
		return report, err
	}
	r.firewall = func(ctx context.Context, in *corev1.Pod) ([]byte, error) {
		out, problems := &bytes.Buffer{}, &bytes.Buffer{}
		other := *p
		other.errOut = &limited{problems, largestOutput} // text of a node is no text for the terminal
		if err := other.run(ctx, in, []string{"nft", "-j", "list", "chains"}, &limited{out, largestOutput}); err != nil {
			return nil, fmt.Errorf("%w %s", err, plain(strings.TrimSpace(problems.String())))
		}
		return out.Bytes(), nil
	}
	return r
}

// checkNodes adds findings about nodes to a report. Without an image or without rights, it adds a finding that says so.
func (r *nodesRun) checkNodes(ctx context.Context, report *envcheck.Report, c *envcheck.Cluster, spec *v1alpha1.OVNClusterSpec) error {
	linux, err := r.chooseNodes(ctx, c, spec)
	if err == nil {
		err = r.checkRights(ctx, r.podRights())
	}
	if err != nil {
		report.AddNodes([]envcheck.Finding{{Level: envcheck.Manual, Subject: subjectNodes, Message: "nodes were not checked: " + err.Error()}}, false)
		return nil
	}
	defer r.cleanUp(ctx)
	fmt.Fprintf(r.errOut, "starting pods on %d nodes, in namespace %s\n", len(r.hosts), r.name)
	if err := r.run(ctx); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
		r.between = append(r.between, envcheck.Finding{Level: envcheck.Warning, Subject: subjectNodes, Message: "nodes were not checked: " + plain(err.Error())})
	}
	report.AddNodes(append(envcheck.MergeNodes(r.found), r.between...), len(r.reports) == linux)
	return nil
}

// chooseNodes chooses the nodes to check, and their image. It returns the number of Linux nodes.
func (r *nodesRun) chooseNodes(ctx context.Context, c *envcheck.Cluster, spec *v1alpha1.OVNClusterSpec) (linux int, err error) {
	images, err := r.images(ctx)
	if err != nil {
		return 0, err
	}
	installed := false
	for i := range c.Nodes {
		node := &c.Nodes[i]
		if node.Labels[corev1.LabelOSStable] != string(corev1.Linux) {
			continue
		}
		linux++
		if len(r.nodes) > 0 && !slices.Contains(r.nodes, node.Name) {
			continue
		}
		image := cmp.Or(r.image, images[node.Name], images[""])
		if image == "" {
			return linux, errors.New("the image is not known, because Kiln is not installed: name it with --image. See docs/operations/kubectl-ko.md#checking-nodes")
		}
		r.hosts = append(r.hosts, host{node.Name, image})
		s := envcheck.SettingsOf(c, spec, node)
		installed = installed || !slices.Contains(s.Ports, envcheck.NodePort{Protocol: netprobe.UDP, Number: envcheck.TunnelPort(s.TunnelType)})
		r.settings[node.Name], r.port = s, envcheck.TunnelPort(s.TunnelType)
	}
	if installed {
		r.port = nodePort
	}
	for _, name := range r.nodes {
		if _, known := r.settings[name]; !known {
			return linux, fmt.Errorf("there is no Linux node %s", plain(name))
		}
	}
	if len(r.hosts) == 0 {
		return linux, errors.New("there is no Linux node")
	}
	slices.SortFunc(r.hosts, func(a, b host) int { return strings.Compare(a.name, b.name) })
	r.limitHosts()
	return linux, nil
}

// images returns the image of Kiln's pod on each node, and the operator's for the key "".
func (r *nodesRun) images(ctx context.Context) (map[string]string, error) {
	images := map[string]string{}
	for _, component := range []string{agent, operatorComponent} {
		pods, err := r.podsOf(ctx, component)
		if err != nil {
			return nil, err
		}
		for i := range pods {
			key := pods[i].Spec.NodeName
			if component == operatorComponent {
				key = ""
			}
			images[key] = pods[i].Spec.Containers[0].Image
		}
	}
	return images, nil
}

// run creates the pods, and checks the nodes and the paths between them.
func (r *nodesRun) run(ctx context.Context) error {
	if err := r.createNamespaces(ctx); err != nil {
		return err
	}
	for i, h := range r.hosts {
		r.wanted = append(r.wanted, r.nodePod(fmt.Sprintf(hostPod, i), h))
	}
	if err := r.createPods(ctx); err != nil {
		return err
	}
	if err := r.await(ctx); err != nil {
		return err
	}
	offset := r.clockOffset(ctx)
	for i, h := range r.hosts {
		pod := r.running[fmt.Sprintf(hostPod, i)]
		if pod == nil {
			r.add(h.name, envcheck.Warning, subjectNodes, "its pod does not run: the lines above the report have the reason")
			continue
		}
		if err := r.checkNode(ctx, h.name, pod, offset); err != nil {
			r.add(h.name, envcheck.Warning, subjectNodes, "it was not checked: "+err.Error())
		}
	}
	return r.probePaths(ctx)
}

// nodePod returns the pod of a node. Its first container checks the node: it is root, because files of CNI plugins are root's only, and has NET_ADMIN, without
// which the kernel lists no tables of nftables. The second one, which others reach, has no rights.
func (r *nodesRun) nodePod(role string, on host) *corev1.Pod {
	pod := waitingPod(r.name, role, on)
	server := pod.Spec.Containers[0].DeepCopy()
	server.Name, server.Command = "server", []string{"kiln", "netprobe", "serve", "--name=" + role, fmt.Sprintf("--address=:%d", r.port)}
	no, root := false, int64(0)
	c := &pod.Spec.Containers[0]
	c.SecurityContext.RunAsNonRoot, c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = &no, &root, &root
	c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
	kind := corev1.HostPathDirectoryOrCreate
	for _, m := range []struct{ name, path, inside string }{
		{"modules", "/lib/modules", envcheck.ModulesDirectory}, {"cni", r.settings[on.name].CNIDirectory, envcheck.CNIDirectory},
	} {
		source := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: m.path, Type: &kind}}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: m.name, VolumeSource: source})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: "/" + m.inside, ReadOnly: true})
	}
	pod.Spec.Containers = append(pod.Spec.Containers, *server)
	return pod
}

// add adds a finding about a node.
func (r *nodesRun) add(node string, level envcheck.Level, subject, message string) {
	if len(r.found[node]) < largestFinding {
		runes := []rune(plain(message))
		r.found[node] = append(r.found[node], envcheck.Finding{Level: level, Subject: plain(subject), Message: string(runes[:min(len(runes), largestText)])})
	}
}

// checkNode checks a node in its pod. offset is the difference between the API server's clock and this one.
func (r *nodesRun) checkNode(ctx context.Context, node string, pod *corev1.Pod, offset time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	began := time.Now()
	report, err := r.check(ctx, pod, r.settings[node])
	if err != nil {
		return fmt.Errorf("check the node: %w", err)
	}
	took := time.Since(began)
	r.reports[node] = report
	for _, f := range report.Findings {
		if slices.Contains([]envcheck.Level{envcheck.Failed, envcheck.Warning, envcheck.Manual, envcheck.OK}, f.Level) {
			r.add(node, f.Level, f.Subject, f.Message)
		}
	}
	if skew := report.Time.Sub(began.Add(took/2 + offset)).Abs(); skew > maxClockSkew+took/2 {
		r.add(node, envcheck.Warning, "Clocks of nodes", fmt.Sprintf("its clock differs by %s from the API server's: certificates are not valid there in time; synchronize the clocks", skew.Round(time.Minute)))
	}
	output, err := r.firewall(ctx, pod)
	if err != nil {
		r.add(node, envcheck.Warning, "Firewalls of nodes", "they were not checked: "+err.Error())
		return nil
	}
	for _, f := range envcheck.Firewall(output, r.settings[node]) {
		r.add(node, f.Level, f.Subject, f.Message)
	}
	return nil
}

// nodePath is a path between two nodes with the result of its probes.
type nodePath struct {
	from, to string
	size     int
	// small and large are problems of packets; "" if they arrive.
	small, large string
}

// probePaths sends packets between the nodes, small ones and the largest ones of tunnels.
func (r *nodesRun) probePaths(ctx context.Context) error {
	var all []nodePath
	for i, from := range r.hosts {
		pod := r.running[fmt.Sprintf(hostPod, i)]
		own := r.reports[from.name].Tunnel
		size := r.settings[from.name].LargestTunnelPacket(own)
		var targets []netprobe.Target
		var paths []nodePath
		for j, to := range r.hosts {
			other := r.reports[to.name].Tunnel.Address
			if pod == nil || i == j || size == 0 || !other.IsGlobalUnicast() || other.Is4() != own.Address.Is4() {
				continue
			}
			t := netprobe.Target{Protocol: netprobe.UDP, Address: netip.AddrPortFrom(other, r.port).String(), Want: fmt.Sprintf(hostPod, j), Within: reachTime}
			large := t
			large.Size = size
			targets = append(targets, t, large)
			paths = append(paths, nodePath{from: from.name, to: to.name, size: size})
		}
		if len(targets) == 0 {
			continue
		}
		answers, err := r.probe(ctx, pod, targets)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.add(from.name, envcheck.Warning, subjectNodes, "the paths to other nodes were not checked: "+err.Error())
			continue
		}
		for k := range paths {
			paths[k].small, paths[k].large = answers[2*k].Error, answers[2*k+1].Error
		}
		all = append(all, paths...)
	}
	r.between = append(r.between, pathFindings(all, r.port)...)
	return nil
}

// pathFindings are the findings of paths that were probed at a port.
func pathFindings(all []nodePath, port uint16) (found []envcheck.Finding) {
	const subject = "Packets between nodes"
	var silent, narrow, sizes []string
	for _, p := range all {
		between := p.from + " → " + p.to
		switch size := fmt.Sprint(p.size); {
		case p.small != "":
			silent = append(silent, between)
		case p.large != "":
			narrow = append(narrow, fmt.Sprintf("%s (%.200s)", between, plain(p.large)))
			fallthrough
		default:
			sizes = append(sizes, size)
		}
	}
	slices.Sort(sizes)
	size := strings.Join(slices.Compact(sizes), " or ")
	if len(silent) > 0 {
		f := envcheck.Finding{Level: envcheck.Failed, Subject: subject, Message: fmt.Sprintf("packets to port %d/udp, the port of tunnels, get no answer: %s: open it in the firewalls of and between these nodes", port, k8s.Some(silent, listed))}
		if port == nodePort {
			f.Level, f.Message = envcheck.Warning, fmt.Sprintf("packets to port %d/udp get no answer: %s: their path was not checked. Open the port for the check, or see `kubectl ko test` for tunnels", port, k8s.Some(silent, listed))
		}
		found = append(found, f)
	}
	if len(narrow) > 0 {
		found = append(found, envcheck.Finding{Level: envcheck.Failed, Subject: subject, Message: fmt.Sprintf("packets of %s bytes, the largest ones of tunnels, do not pass without fragments: %s: raise the MTU of the network between "+
			"these nodes, or lower network.mtu", size, k8s.Some(narrow, listed))})
	}
	if len(found) == 0 && len(all) > 0 {
		found = []envcheck.Finding{{Level: envcheck.OK, Subject: subject, Message: fmt.Sprintf("packets of %s bytes, the largest ones of tunnels, pass on %d paths without fragments (port %d/udp)", size, len(all), port)}}
	}
	return found
}
