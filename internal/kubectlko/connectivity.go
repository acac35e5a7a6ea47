// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/kiln-net/kiln/internal/netprobe"
)

const (
	// podLife bounds the life of the pods, if the plugin cannot delete them. With --keep it is the time for an analysis.
	podLife = time.Hour
	// startTime bounds the start of the pods, reachTime the time until a target answers, and removal the deletion of all objects.
	startTime, reachTime, removal = time.Minute, 10 * time.Second, 90 * time.Second
	// probeTime bounds all attempts of one pod, which take reachTime and the last attempt.
	probeTime = 30 * time.Second
	// listed is the number of failures that are printed for each check.
	listed = 10
)

// connectivityFlags are the flags of `kubectl ko test`.
type connectivityFlags struct {
	nodes    []string
	maxNodes int
	image    string
	outside  []string
	vpcCIDRs []string
	keep     bool
}

// test returns the command `kubectl ko test`.
func (p *plugin) test() *cobra.Command {
	var o connectivityFlags
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Checks with packets that pods, nodes, Services, NetworkPolicies and VPCs work, on up to 8 nodes",
		Long: "It creates pods with Kiln's image in two namespaces of its own, a Vpc and a Subnet, and deletes all of them at the end.\n\n" +
			"Exit codes: 0 if all checks pass, 1 otherwise. A failure names the nodes.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := &connectivity{plugin: p, connectivityFlags: o, name: "kiln-test-" + rand.String(5), startTime: startTime, removal: removal}
			c.probe = c.probeInPod
			return c.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.nodes, "node", nil, "nodes to check, instead of the first --max-nodes; can be repeated")
	f.IntVar(&o.maxNodes, "max-nodes", 8, "number of nodes to check, each with each other")
	f.StringVar(&o.image, "image", "", "another image with Kiln's program; by default the image of Kiln's pods on each node, which needs no pull")
	f.StringSliceVar(&o.outside, "outside", nil, "ADDRESS:PORT of TCP servers outside of the cluster that pods must reach; can be repeated")
	f.StringSliceVar(&o.vpcCIDRs, "vpc-cidrs", []string{"198.18.17.0/24", "fd00:198:18:17::/112"}, "networks of the subnet in a VPC of its own, one of each family")
	f.BoolVar(&o.keep, "keep", false, "keep the pods and the other objects, for example for `kubectl ko trace`")
	return cmd
}

// connectivity is one run of `kubectl ko test`.
type connectivity struct {
	*plugin
	connectivityFlags
	// name of the namespace, the Vpc and the Subnet.
	name  string
	hosts []host
	// dual is true if the cluster has both families.
	dual bool
	// running are the pods that run, by name.
	running            map[string]*corev1.Pod
	service, apiServer *corev1.Service
	outsideTargets     []netip.AddrPort
	startTime, removal time.Duration
	// probe runs the client in a pod.
	probe func(ctx context.Context, in *corev1.Pod, targets []netprobe.Target) ([]netprobe.Answer, error)

	checks, failed int
	// between are the nodes of failures, as in "worker-1 → worker-2".
	between []string
}

// host is a node to check.
type host struct{ name, image string }

// vpcNamespace is the namespace of the pods in the Vpc.
func (c *connectivity) vpcNamespace() string { return c.name + "-vpc" }

func (c *connectivity) run(ctx context.Context) (err error) {
	if c.outsideTargets, err = parseOutside(c.outside); err != nil {
		return err
	}
	if err := c.checkRights(ctx); err != nil {
		return err
	}
	if err := c.selectHosts(ctx); err != nil {
		return err
	}
	defer func() {
		if c.keep {
			fmt.Fprintf(c.errOut, "kept for %s: kubectl delete namespace %s %s; kubectl delete subnet,vpc %s\n", podLife, c.name, c.vpcNamespace(), c.name)
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.removal)
		defer cancel()
		if err := c.remove(ctx); err != nil {
			fmt.Fprintf(c.errOut, "delete the objects: %v\nkubectl delete namespace %s %s; kubectl delete subnet,vpc %s\n", err, c.name, c.vpcNamespace(), c.name)
		}
	}()
	began := time.Now()
	fmt.Fprintf(c.errOut, "starting pods on %d nodes, in namespaces %s and %s\n", len(c.hosts), c.name, c.vpcNamespace())
	if err := c.create(ctx); err != nil {
		return err
	}
	if err := c.await(ctx); err != nil {
		return err
	}
	for _, check := range c.table() {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
		if check.before != nil {
			if err := check.before(ctx); err != nil {
				return fmt.Errorf("%s: %w", check.name, err)
			}
		}
		c.judge(ctx, check)
	}
	if c.failed == 0 {
		fmt.Fprintf(c.out, "all %d checks passed, in %d s\n", c.checks, int(time.Since(began).Seconds()))
		return nil
	}
	slices.Sort(c.between)
	return fmt.Errorf("%d of %d checks failed: %s", c.failed, c.checks, shortened(slices.Compact(c.between)))
}

// shortened joins the first of a list.
func shortened(list []string) string {
	if more := len(list) - listed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:listed], ", "), more)
	}
	return strings.Join(list, ", ")
}

// selectHosts selects the nodes. Each needs a pod of Kiln, whose image the pods of the test use.
func (c *connectivity) selectHosts(ctx context.Context) error {
	if c.maxNodes < 1 {
		return errors.New("--max-nodes must be greater than 0")
	}
	agents, err := c.podsOf(ctx, agent)
	if err != nil {
		return err
	}
	for i := range agents {
		node := agents[i].Spec.NodeName
		known := slices.ContainsFunc(c.hosts, func(h host) bool { return h.name == node })
		if node == "" || known || len(c.nodes) > 0 && !slices.Contains(c.nodes, node) {
			continue
		}
		image := c.image
		if image == "" {
			image = agents[i].Spec.Containers[0].Image
		}
		c.hosts = append(c.hosts, host{node, image})
	}
	for _, node := range c.nodes {
		if !slices.ContainsFunc(c.hosts, func(h host) bool { return h.name == node }) {
			return fmt.Errorf("no pod of %s is on node %s in namespace %s", agent, node, c.namespace)
		}
	}
	if len(c.hosts) == 0 {
		return fmt.Errorf("no pod of %s is in namespace %s: is Kiln installed there? -n sets the namespace", agent, c.namespace)
	}
	slices.SortFunc(c.hosts, func(a, b host) int { return strings.Compare(a.name, b.name) })
	if len(c.nodes) == 0 && len(c.hosts) > c.maxNodes {
		fmt.Fprintf(c.errOut, "%d of %d nodes are checked: --node selects others, --max-nodes more\n", c.maxNodes, len(c.hosts))
		c.hosts = c.hosts[:c.maxNodes]
	}
	if len(c.hosts) == 1 {
		fmt.Fprintln(c.errOut, "there is one node, so nothing is checked across nodes")
	}
	return nil
}

// probeInPod runs the client with the targets at its standard input: a command line would become too long.
func (c *connectivity) probeInPod(ctx context.Context, in *corev1.Pod, targets []netprobe.Target) ([]netprobe.Answer, error) {
	text, err := json.Marshal(targets)
	if err != nil {
		return nil, fmt.Errorf("encode the targets: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	said, answer := &bytes.Buffer{}, &bytes.Buffer{}
	p := *c.plugin
	p.in, p.stdin, p.errOut = bytes.NewReader(text), true, said
	if err := p.run(ctx, in, []string{"kiln", "netprobe", "client"}, answer); err != nil {
		return nil, fmt.Errorf("%w %s", err, plain(strings.TrimSpace(said.String())))
	}
	var answers []netprobe.Answer
	if err := json.Unmarshal(answer.Bytes(), &answers); err != nil {
		return nil, fmt.Errorf("read the outcomes: %w", err)
	}
	if len(answers) != len(targets) {
		return nil, fmt.Errorf("the client has %d outcomes of %d targets", len(answers), len(targets))
	}
	return answers, nil
}

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
func (c *connectivity) judge(ctx context.Context, check connectivityCheck) {
	byPod := map[string][]way{}
	for _, w := range check.ways() {
		byPod[w.from.Name] = append(byPod[w.from.Name], w)
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
			answers, err := c.probe(ctx, ways[0].from, targets)
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
	c.report(check.name, outcomes)
}

// report prints the outcomes of a check, in a line for each family.
func (c *connectivity) report(name string, outcomes []outcome) {
	for _, family := range []string{ipv4, ipv6, ""} {
		of := slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return o.family != family })
		if title := strings.TrimSpace(name + " " + family); len(of) > 0 {
			c.reportFamily(title, of)
		}
	}
}

// reportFamily prints the outcomes of a check in one family, and records the nodes of failures.
func (c *connectivity) reportFamily(name string, outcomes []outcome) {
	c.checks++
	longest := time.Duration(0)
	var problems []string
	for _, o := range outcomes {
		longest = max(longest, o.took)
		if o.problem == "" {
			continue
		}
		c.between = append(c.between, o.nodes)
		problems = append(problems, fmt.Sprintf("%s: %s: %s", o.nodes, o.what, plain(o.problem)))
	}
	if len(problems) == 0 {
		fmt.Fprintf(c.out, "ok    %s: %d, %.1f s\n", name, len(outcomes), longest.Seconds())
		return
	}
	c.failed++
	slices.Sort(problems)
	fmt.Fprintf(c.out, "FAIL  %s: %d of %d\n", name, len(problems), len(outcomes))
	for _, problem := range problems[:min(len(problems), listed)] {
		fmt.Fprintf(c.out, "        %.400s\n", problem)
	}
	if more := len(problems) - listed; more > 0 {
		fmt.Fprintf(c.out, "        and %d more\n", more)
	}
}
