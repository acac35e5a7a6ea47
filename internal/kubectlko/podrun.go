// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/netprobe"
)

const (
	// podLife bounds the life of the pods, if the plugin cannot delete them. With --keep it is the time for an analysis.
	podLife = time.Hour
	// startTime bounds the start of the pods, reachTime the time until a target answers, and removal the deletion of all objects.
	startTime, reachTime, removal = time.Minute, 10 * time.Second, 90 * time.Second
	// probeTime bounds all attempts of one pod, which take reachTime and the last attempt.
	probeTime = 30 * time.Second
	// largestOutput bounds what a client prints: its node may be a stolen one.
	largestOutput = 8 << 20
	// listed is the number of failures that are printed for each check.
	listed = 10
)

// podRunFlags are the flags of commands with pods of their own.
type podRunFlags struct {
	nodes    []string
	maxNodes int
	image    string
	keep     bool
}

func (o *podRunFlags) add(f *pflag.FlagSet) {
	f.StringSliceVar(&o.nodes, "node", nil, "nodes to check, instead of the first --max-nodes; can be repeated")
	f.IntVar(&o.maxNodes, "max-nodes", 8, "number of nodes to check, each with each other")
	o.addImage(f)
}

func (o *podRunFlags) addImage(f *pflag.FlagSet) {
	f.StringVar(&o.image, "image", "", "another image with Kiln's program; by default the image of Kiln's pods on each node, which needs no pull")
	f.BoolVar(&o.keep, "keep", false, "keep the pods and the other objects, for example for `kubectl ko trace`")
}

// podRun is a run of a command with pods of its own: it creates them, runs clients in them, and deletes them.
type podRun struct {
	*plugin
	podRunFlags
	// name of the first of its namespaces, and of other objects.
	name string
	// namespaces are those that the run creates. in is another one for pods, empty if there is none.
	namespaces []string
	in         string
	// others are the objects outside of namespaces, which are deleted at the end.
	others []client.Object
	hosts  []host
	// wanted are the pods of the run; running those that run, by their roles.
	wanted             []*corev1.Pod
	running            map[string]*corev1.Pod
	startTime, removal time.Duration
	// results is where lines about checks are written.
	results io.Writer
	// probe runs the client in a pod.
	probe func(ctx context.Context, in *corev1.Pod, targets []netprobe.Target) ([]netprobe.Answer, error)

	checks, failed int
	// between are the nodes of failures, as in "worker-1 → worker-2".
	between []string
}

// host is a node to check.
type host struct{ name, image string }

// newPodRun returns a run whose namespaces have a random name, and that name with each suffix.
func (p *plugin) newPodRun(o podRunFlags, suffixes ...string) podRun {
	r := podRun{plugin: p, podRunFlags: o, name: "kiln-test-" + rand.String(5), startTime: startTime, removal: removal, results: p.out}
	for _, suffix := range suffixes {
		r.namespaces = append(r.namespaces, r.name+suffix)
	}
	r.probe = p.probeInPod
	return r
}

// cleanUp deletes all objects of the run, also after an interrupt, or prints how to delete them.
func (r *podRun) cleanUp(ctx context.Context) {
	if r.keep {
		life := time.Duration(0)
		for _, pod := range r.wanted {
			life = max(life, time.Duration(*pod.Spec.ActiveDeadlineSeconds)*time.Second)
		}
		fmt.Fprintf(r.errOut, "kept for %s: %s\n", life, r.deletion())
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.removal)
	defer cancel()
	if err := r.remove(ctx); err != nil {
		fmt.Fprintf(r.errOut, "delete the objects: %v\n%s\n", err, r.deletion())
	}
}

// deletion returns the commands that delete all objects.
func (r *podRun) deletion() string {
	var commands []string
	if pods := r.guests(); len(pods) > 0 {
		command := "kubectl -n " + r.in + " delete pods"
		for _, pod := range pods {
			command += " " + pod.Name
		}
		commands = append(commands, command)
	}
	if len(r.namespaces) > 0 {
		commands = append(commands, "kubectl delete namespace "+strings.Join(r.namespaces, " "))
	}
	for _, o := range r.others {
		if gvk, err := r.objects.GroupVersionKindFor(o); err == nil {
			commands = append(commands, fmt.Sprintf("kubectl delete %s.%s %s", strings.ToLower(gvk.Kind), gvk.Group, o.GetName()))
		}
	}
	return strings.Join(commands, "; ")
}

// judgeAll judges checks one after another.
func (r *podRun) judgeAll(ctx context.Context, checks []podCheck) error {
	for _, check := range checks {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
		if check.before != nil {
			if err := check.before(ctx); err != nil {
				return fmt.Errorf("%s: %w", check.name, err)
			}
		}
		r.judge(ctx, check)
	}
	return nil
}

// verdict prints that all checks passed, or returns an error with the nodes of failures.
func (r *podRun) verdict(began time.Time) error {
	if r.failed == 0 {
		fmt.Fprintf(r.out, "all %d checks passed, in %d s\n", r.checks, int(time.Since(began).Seconds()))
		return nil
	}
	slices.Sort(r.between)
	return fmt.Errorf("%d of %d checks failed: %s", r.failed, r.checks, shortened(slices.Compact(r.between)))
}

// shortened joins the first of a list.
func shortened(list []string) string {
	if more := len(list) - listed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:listed], ", "), more)
	}
	return strings.Join(list, ", ")
}

// findHosts finds the nodes of --node, or all. Each needs a pod of Kiln, whose image the pods of the run use.
func (r *podRun) findHosts(ctx context.Context) error {
	if r.maxNodes < 1 {
		return errors.New("--max-nodes must be greater than 0")
	}
	agents, err := r.podsOf(ctx, agent)
	if err != nil {
		return err
	}
	for i := range agents {
		node := agents[i].Spec.NodeName
		known := slices.ContainsFunc(r.hosts, func(h host) bool { return h.name == node })
		if node == "" || known || len(r.nodes) > 0 && !slices.Contains(r.nodes, node) {
			continue
		}
		image := r.image
		if image == "" {
			image = agents[i].Spec.Containers[0].Image
		}
		r.hosts = append(r.hosts, host{node, image})
	}
	for _, node := range r.nodes {
		if !slices.ContainsFunc(r.hosts, func(h host) bool { return h.name == node }) {
			return fmt.Errorf("no pod of %s is on node %s in namespace %s", agent, node, r.namespace)
		}
	}
	if len(r.hosts) == 0 {
		return fmt.Errorf("no pod of %s is in namespace %s: is Kiln installed there? -n sets the namespace", agent, r.namespace)
	}
	slices.SortFunc(r.hosts, func(a, b host) int { return strings.Compare(a.name, b.name) })
	return nil
}

// limitHosts leaves out nodes after the first --max-nodes.
func (r *podRun) limitHosts() {
	if len(r.nodes) == 0 && len(r.hosts) > r.maxNodes {
		fmt.Fprintf(r.errOut, "%d of %d nodes are checked: --node selects others, --max-nodes more\n", r.maxNodes, len(r.hosts))
		r.hosts = r.hosts[:r.maxNodes]
	}
	if len(r.hosts) == 1 {
		fmt.Fprintln(r.errOut, "there is one node, so nothing is checked across nodes")
	}
}

// probeInPod runs the client of reachability in a pod.
func (p *plugin) probeInPod(ctx context.Context, in *corev1.Pod, targets []netprobe.Target) ([]netprobe.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var answers []netprobe.Answer
	if err := p.runJSON(ctx, in, targets, &answers, "kiln", "netprobe", "client"); err != nil {
		return nil, err
	}
	if len(answers) != len(targets) {
		return nil, fmt.Errorf("the client has %d outcomes of %d targets", len(answers), len(targets))
	}
	return answers, nil
}

// runJSON runs a program in a pod. Its input is at its standard input, because a command line would become too long. Input and output are JSON.
func (p *plugin) runJSON(ctx context.Context, in *corev1.Pod, input, output any, program ...string) error {
	text, err := json.Marshal(input)
	if err != nil {
		return fmt.Errorf("encode the input: %w", err)
	}
	out, problems := &bytes.Buffer{}, &bytes.Buffer{}
	other := *p
	other.in, other.stdin, other.errOut = bytes.NewReader(text), true, &limited{problems, largestOutput}
	if err := other.run(ctx, in, program, &limited{out, largestOutput}); err != nil {
		return fmt.Errorf("%w %s", err, plain(strings.TrimSpace(problems.String())))
	}
	if err := json.Unmarshal(out.Bytes(), output); err != nil {
		return fmt.Errorf("read the output: %w", err)
	}
	return nil
}
