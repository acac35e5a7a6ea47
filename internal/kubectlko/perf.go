// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/kiln-net/kiln/internal/netprobe/measure"
)

const (
	// perfHostPort is the default port of the server in the network of a node: the one that IANA has assigned to netperf.
	perfHostPort = 12865
	// perfPodPort is the port of the server in the pod network, and of the Service.
	perfPodPort = 8080
	// perfMargin is the time that the measurements of a path with one protocol take in addition to their durations, and failureTime bounds the additional
	// time of one that fails.
	perfMargin, failureTime = 5 * time.Second, 90 * time.Second
)

// Roles of pods of `kubectl ko perf`. The servers are on the first node.
const (
	perfServer     = "server"
	perfHostServer = "host-server"
)

// messageSizes are the sizes of messages whose round trips are measured, in bytes.
var messageSizes = []int{64, 128, 512, 1024, 4096}

// perfFlags are the flags of `kubectl ko perf` itself.
type perfFlags struct {
	duration time.Duration
	hostPort uint16
	output   output
	// disrupt: times of recovery are measured instead. yes confirms it.
	disrupt, yes bool
}

// perf returns the command `kubectl ko perf`.
func (p *plugin) perf() *cobra.Command {
	run := podRunFlags{maxNodes: 2}
	var o perfFlags
	cmd := &cobra.Command{
		Use:   "perf [IMAGE]",
		Short: "Throughput, loss and round trips between pods, between nodes, and to a Service",
		Long: "It creates pods with Kiln's image and a Service in a namespace of its own, and deletes them at the end. The server is on the first node, clients are on\n" +
			"this node and on the second one. Measurements are made one after another, in all address families. IMAGE is another way to set --image.\n\n" +
			"With --disrupt --yes it measures what the loss of a leader means instead: it deletes the pods of the leaders of both databases and of the active\n" +
			"ovn-northd, one after another, and measures how long new pods wait for an address and until they run, and the packets that a running flow loses.\n\n" +
			"Exit codes: 0 if all measurements succeed, 1 otherwise.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && run.image == "" {
				run.image = args[0]
			}
			return p.newPerfRun(run, o).run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&run.nodes, "node", nil, "the node of the server, and the second node, instead of the first two by name; can be repeated once")
	run.addImage(f)
	f.DurationVar(&o.duration, "duration", 5*time.Second, "duration of each measurement")
	f.Uint16Var(&o.hostPort, "host-port", perfHostPort, "port of the server on the first node's addresses, for the network of nodes")
	f.BoolVar(&o.disrupt, "disrupt", false, "measure the recovery from the loss of leaders, by deleting their pods")
	f.BoolVar(&o.yes, "yes", false, "delete the pods, with --disrupt")
	o.output.add(cmd, formatText)
	return cmd
}

// perfRun is one run of `kubectl ko perf`.
type perfRun struct {
	podRun
	perfFlags

	printer printers.ResourcePrinter
	// key is what the servers answer to: others can reach them, too.
	key     string
	service *corev1.Service
	// created is the number of pods that --disrupt has created. flowTime and flowLead are the constants, unless a test changes them.
	created            int
	flowTime, flowLead time.Duration
	// measure makes measurements in a pod.
	measure func(ctx context.Context, in *corev1.Pod, list []measure.Measurement) ([]measure.Outcome, error)
}

func (p *plugin) newPerfRun(run podRunFlags, o perfFlags) *perfRun {
	r := &perfRun{podRun: p.newPodRun(run, ""), perfFlags: o, key: rand.Text(), flowTime: flowTime, flowLead: flowLead}
	r.measure, r.results = p.measureInPod, p.errOut // out has the report only
	return r
}

// measureInPod makes measurements in a pod.
func (p *plugin) measureInPod(ctx context.Context, in *corev1.Pod, list []measure.Measurement) ([]measure.Outcome, error) {
	limit := perfMargin
	for _, m := range list {
		limit += m.Duration + failureTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var outcomes []measure.Outcome
	if err := p.runJSON(ctx, in, list, &outcomes, "kiln", "netprobe", "measure"); err != nil {
		return nil, err
	}
	if len(outcomes) != len(list) {
		return nil, fmt.Errorf("the client has %d outcomes of %d measurements", len(outcomes), len(list))
	}
	return outcomes, nil
}

func (r *perfRun) run(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	if err := r.checkRights(ctx, append(append(r.podRights(), right{r.name, corev1.GroupName, "services", "create"}), r.disruptRights()...)); err != nil {
		return err
	}
	if err := r.mayDisrupt(ctx); err != nil {
		return err
	}
	if err := r.findHosts(ctx); err != nil {
		return err
	}
	r.chooseHosts()
	defer r.cleanUp(ctx)
	fmt.Fprintf(r.errOut, "starting pods on %d nodes, in namespace %s\n", len(r.hosts), r.name)
	if err := r.create(ctx); err != nil {
		return err
	}
	if r.disrupt {
		report, err := r.disruptAll(ctx)
		return errors.Join(err, writeAs(r.out, r.printer, report, report.write))
	}
	report, err := r.measureAll(ctx)
	return errors.Join(err, writeAs(r.out, r.printer, report, report.write), r.failure(report))
}

func (r *perfRun) check() error {
	switch {
	case len(r.nodes) > 2:
		return errors.New("--node names the node of the server and at most one other")
	case r.duration < 100*time.Millisecond || r.duration > time.Minute:
		return fmt.Errorf("--duration=%s: use a duration from 100ms to 1m", r.duration)
	case r.hostPort == 0:
		return errors.New("--host-port must be greater than 0")
	}
	var err error
	r.printer, err = r.output.printer()
	return err
}

// chooseHosts puts the node of the server first, and leaves out nodes after the second one.
func (r *perfRun) chooseHosts() {
	if len(r.nodes) > 0 {
		slices.SortFunc(r.hosts, func(a, b host) int { return slices.Index(r.nodes, a.name) - slices.Index(r.nodes, b.name) })
	}
	r.hosts = r.hosts[:min(len(r.hosts), r.maxNodes)]
	if len(r.hosts) == 1 {
		fmt.Fprintln(r.errOut, "there is one node, so nothing is measured between nodes")
	}
}

// create creates the pods and the Service, and waits until the pods are ready.
func (r *perfRun) create(ctx context.Context) error {
	if err := r.createNamespaces(ctx); err != nil {
		return err
	}
	policy := corev1.IPFamilyPolicyPreferDualStack
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: perfServer}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{roleLabel: perfServer}, IPFamilyPolicy: &policy,
		Ports: []corev1.ServicePort{{Name: "tcp", Port: perfPodPort}, {Name: "udp", Port: perfPodPort, Protocol: corev1.ProtocolUDP}},
	}}
	var err error
	if r.service, err = r.pods.CoreV1().Services(r.name).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the Service: %w", err)
	}
	r.wanted = []*corev1.Pod{r.serverPod(perfServer, perfPodPort, false), r.serverPod(perfHostServer, r.hostPort, true)}
	for i, h := range r.hosts {
		inPodNetwork := waitingPod(r.name, fmt.Sprintf(clientPod, i), h)
		inPodNetwork.Spec.HostNetwork = false
		r.wanted = append(r.wanted, inPodNetwork, waitingPod(r.name, fmt.Sprintf(hostPod, i), h))
	}
	const paths, families, protocols = 3, 2, 2
	life := int64((podLife + time.Duration(len(r.hosts)*paths*families*protocols)*r.rowTime()).Seconds())
	for _, pod := range r.wanted {
		pod.Spec.ActiveDeadlineSeconds = &life
		if pod.Spec.Containers[0].ReadinessProbe == nil {
			pod.Spec.Containers[0].Command = []string{"sleep", fmt.Sprint(life)}
		}
	}
	if err := r.createPods(ctx); err != nil {
		return err
	}
	return r.await(ctx)
}

// serverPod returns a pod with a server at all its addresses.
func (r *perfRun) serverPod(role string, port uint16, inHostNetwork bool) *corev1.Pod {
	pod := serverPod(r.name, role, r.hosts[0])
	pod.Spec.HostNetwork, pod.Spec.SecurityContext.Sysctls = inHostNetwork, nil
	c := &pod.Spec.Containers[0]
	c.Command = []string{"kiln", "netprobe", "measure", "serve", "--addresses=$(POD_IPS)", fmt.Sprintf("--port=%d", port), "--key=" + r.key}
	c.Env = []corev1.EnvVar{{Name: "POD_IPS", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIPs"}}}}
	c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(int32(port))}}
	return pod
}

// perfPath is a path to measure: from a pod to an address of a server.
type perfPath struct {
	name string
	from *corev1.Pod
	to   netip.AddrPort
	node string // of the server
}

// paths returns the paths in the families that both ends have.
func (r *perfRun) paths() (paths []perfPath) {
	for i := range r.hosts {
		for _, of := range []struct {
			name, client, server string
			port                 uint16
			service              bool
		}{
			{"pod network", clientPod, perfServer, perfPodPort, false},
			{"Service", clientPod, perfServer, perfPodPort, true},
			{"host network", hostPod, perfHostServer, r.hostPort, false},
		} {
			client, server := r.running[fmt.Sprintf(of.client, i)], r.running[of.server]
			if client == nil || server == nil {
				continue
			}
			addresses := addressesOf(server)
			if of.service {
				addresses = clusterIPs(r.service)
			}
			for _, a := range addresses {
				if slices.ContainsFunc(addressesOf(client), func(own netip.Addr) bool { return own.Is4() == a.Is4() }) {
					paths = append(paths, perfPath{of.name, client, netip.AddrPortFrom(a, of.port), server.Spec.NodeName})
				}
			}
		}
	}
	return paths
}

// rowTime is the time of the measurements of a path with one protocol.
func (r *perfRun) rowTime() time.Duration {
	return time.Duration(1+len(messageSizes))*r.duration + perfMargin
}
