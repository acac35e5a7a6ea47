// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/acllog"
	"github.com/kiln-net/kiln/internal/trace"
)

const (
	// dropsLease is the longest time for which policies log after the plugin was killed. dropsRenewal is the pause between two renewals.
	dropsLease, dropsRenewal = 5 * time.Minute, time.Minute
	// longestDrops bounds --for.
	longestDrops = 24 * time.Hour
	// maxDropPolicies and maxDropNodes bound the policies that a run annotates, and the logs that it reads.
	maxDropPolicies, maxDropNodes = 200, 100
)

const dropsHelp = `Drops of NetworkPolicies, security groups, cluster-wide policies and acls of Subnets that apply to the pods are logged while the command runs: it sets the annotation
ovn.kubernetes.io/log_drops_until on these objects, and removes it at the end. Private subnets log at any time. Nodes log at most 1,000 packets per second of a namespace, as many of all
security groups and cluster-wide policies, and 10 of a subnet, so counts are lower bounds.

Not logged: port security, missing routes, ports that are not bound. See "kubectl ko trace".

It needs get of pods/log and list of pods in Kiln's namespace: the logs have packets of all namespaces. Of objects that you may not patch, it shows only drops that are logged already.`

// dropsFlags are the flags of `kubectl ko drops`.
type dropsFlags struct {
	duration time.Duration
	output   output
}

// dropsCommand returns the command `kubectl ko drops`.
func (p *plugin) dropsCommand() *cobra.Command {
	var o dropsFlags
	cmd := &cobra.Command{
		Use:   "drops {pod [NAMESPACE/]POD | namespace NAMESPACE | node NODE}",
		Short: "Dropped packets of a pod, of a namespace or of all pods of a node, live, with the object that drops them",
		Long:  dropsHelp,
		Example: `  kubectl ko drops pod shop/web
  kubectl ko drops namespace shop --for=10m -o json`,
		Args: cobra.ExactArgs(2), ValidArgs: []string{"pod", "namespace", "node"},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := p.newDropsRun(args[0], args[1], o)
			if err != nil {
				return err
			}
			return r.run(cmd.Context())
		},
	}
	cmd.Flags().DurationVar(&o.duration, "for", time.Minute, "how long; an interrupt ends it earlier")
	o.output.add(cmd, formatText)
	return cmd
}

// dropsRun is one run of `kubectl ko drops`.
type dropsRun struct {
	*plugin
	dropsFlags
	target dropsTarget
	// printer prints the report at the end. If it is nil, lines are printed as packets arrive.
	printer printers.ResourcePrinter
	// renewals are the times at which the cluster is read again, and the requests are renewed.
	renewals <-chan time.Time
	// offset is the difference between the clock of the API server and this one.
	offset time.Duration

	watched *watched
	// requests are the annotations that this run has written.
	requests map[trace.Object]string
	// kinds are the kinds of annotated objects.
	kinds map[string]schema.GroupVersionKind
	// ignored: Kiln does not apply NetworkPolicies and cluster-wide policies.
	ignored bool
	// followed are the nodes whose log is read. ended receives nodes whose log has ended, and packets the packets of all logs.
	followed map[string]bool
	ended    chan logEnd
	packets  chan loggedPacket

	names names
	drops drops
	// noted are notes that were printed.
	noted map[string]bool
}

// dropsTarget is a pod, a namespace or a node.
type dropsTarget struct {
	pod             types.NamespacedName
	namespace, node string
}

func (t dropsTarget) String() string {
	switch {
	case t.node != "":
		return "node " + t.node
	case t.namespace != "":
		return "namespace " + t.namespace
	}
	return "pod " + t.pod.String()
}

func (p *plugin) newDropsRun(kind, name string, o dropsFlags) (*dropsRun, error) {
	r := &dropsRun{
		plugin: p, dropsFlags: o, requests: map[trace.Object]string{}, kinds: map[string]schema.GroupVersionKind{}, followed: map[string]bool{}, noted: map[string]bool{},
		ended: make(chan logEnd, maxDropNodes), packets: make(chan loggedPacket, maxDropNodes),
	}
	r.names.plugin = p
	switch kind {
	case "pod":
		end, err := parseEnd("pod/" + name)
		if !strings.Contains(name, "/") {
			end, err = parseEnd("pod/" + metav1.NamespaceDefault + "/" + name)
		}
		if r.target.pod = end.Pod; err != nil || end.Pod.Name == "" {
			return nil, fmt.Errorf("%q is no pod: write NAMESPACE/POD", name)
		}
	case "namespace", "ns":
		r.target.namespace = name
	case "node":
		r.target.node = name
	default:
		return nil, fmt.Errorf("%q: write pod, namespace or node", kind)
	}
	switch {
	case name == "":
		return nil, fmt.Errorf("which %s?", kind)
	case o.duration < time.Second || o.duration > longestDrops:
		return nil, fmt.Errorf("--for=%s: use a duration from 1s to %s", o.duration, longestDrops)
	}
	var err error
	r.printer, err = o.output.printer()
	return r, err
}

// run follows the logs until its time has passed, or until an interrupt. Both are no errors.
func (r *dropsRun) run(ctx context.Context) error {
	if err := r.mayRead(ctx); err != nil {
		return err
	}
	if err := r.checkCluster(ctx); err != nil {
		return err
	}
	var err error
	if r.watched, err = r.read(ctx); err != nil {
		return err
	}
	r.offset = r.clockOffset(ctx)
	if r.renewals == nil {
		ticker := time.NewTicker(dropsRenewal)
		defer ticker.Stop()
		r.renewals = ticker.C
	}
	limited, cancel := context.WithTimeout(ctx, r.duration)
	defer cancel()
	defer r.withdraw(ctx)
	until, _ := limited.Deadline()
	if err := r.begin(limited, until); err != nil {
		return err
	}
	for {
		select {
		case <-limited.Done():
			r.withdraw(ctx) // before anything is written: a closed pipe ends the process
			return r.write()
		case packet := <-r.packets:
			r.record(limited, packet)
		case end := <-r.ended:
			r.end(end)
		case <-r.renewals:
			r.renew(limited, until)
		}
	}
}

// begin follows the logs, and then requests that policies log, so that the first packet is seen.
func (r *dropsRun) begin(ctx context.Context, until time.Time) error {
	if err := r.follow(ctx); err != nil {
		return err
	}
	for len(r.ended) > 0 {
		r.end(<-r.ended)
	}
	if len(r.followed) == 0 {
		return fmt.Errorf("the logs of %s cannot be read on the nodes of %s", openVSwitch, r.target)
	}
	r.request(ctx, until)
	r.explain()
	return nil
}

// renew reads the cluster again: pods and policies may be new, and addresses may have other owners. If it cannot be read, the run continues with the pods and policies that it has read before.
func (r *dropsRun) renew(ctx context.Context, until time.Time) {
	now, err := r.read(ctx)
	if err == nil {
		r.watched = now
		r.names.forget()
		err = r.follow(ctx)
	}
	if err != nil && ctx.Err() == nil {
		r.note("read the cluster again: %v", err)
	}
	r.request(ctx, until)
}

// end records the end of the log of a node. The next renewal opens it again.
func (r *dropsRun) end(e logEnd) {
	delete(r.followed, e.node)
	r.note("drops on node %s are missing for at most %s: %s", e.node, dropsRenewal, e.reason)
}

// mayRead returns an error if the user may not read the logs, before anything is changed.
func (r *dropsRun) mayRead(ctx context.Context) error {
	missing, err := r.missingRights(ctx, []right{{r.namespace, corev1.GroupName, "pods", "list"}, {r.namespace, corev1.GroupName, "pods/log", "get"}})
	if err != nil || len(missing) == 0 {
		return err
	}
	texts := make([]string, len(missing))
	for i, m := range missing {
		texts[i] = describeRight(m)
	}
	return fmt.Errorf("nothing was annotated, because you may not: %s. The logs of nodes have packets of all namespaces: ask an administrator to run this command, "+
		"or see `kubectl ko trace`, which needs no such right", strings.Join(texts, ", "))
}

// checkCluster returns an error if a setting of the OVNCluster prevents that drops are logged. It continues if the user may not read it.
func (r *dropsRun) checkCluster(ctx context.Context) error {
	oc, err := r.cluster(ctx)
	if err != nil {
		return nil //nolint:nilerr // not needed
	}
	switch level := oc.Spec.Logging.OVNController; level {
	case "", v1alpha1.DaemonLogInfo, "dbg":
	default:
		return fmt.Errorf("logging.ovnController of the OVNCluster is %s: packets are logged with info", level)
	}
	if oc.Spec.Policies.NetworkPolicies == v1alpha1.NetworkPoliciesIgnored {
		r.ignored = true
		r.note("policies.networkPolicies of the OVNCluster is Ignored: another component applies NetworkPolicies and cluster-wide policies, and its drops are not logged")
	}
	return nil
}

// clockOffset compares the clock of the API server, which has the time of its nodes, with the one of this machine. It is 0 if the server does not say it.
func (p *plugin) clockOffset(ctx context.Context) time.Duration {
	review, err := p.pods.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.CreationTimestamp.IsZero() {
		return 0
	}
	return time.Until(review.CreationTimestamp.Time)
}

// record adds a packet that concerns the target.
func (r *dropsRun) record(ctx context.Context, packet loggedPacket) {
	if p := packet.Packet; p.Verdict != "drop" && p.Verdict != "reject" || len(r.watched.addresses[p.Source])+len(r.watched.addresses[p.Destination]) == 0 {
		return
	}
	if again := r.drops.count(packet); again {
		return
	}
	if d := r.describe(ctx, packet); d != nil {
		r.drops.add(packet, d)
		if r.printer == nil {
			fmt.Fprintln(r.out, plain(d.line()))
		}
	}
}

// note prints a note once.
func (r *dropsRun) note(format string, args ...any) {
	text := plain(fmt.Sprintf(format, args...))
	if !r.noted[text] && len(r.noted) < maxDropNodes {
		r.noted[text] = true
		fmt.Fprintln(r.errOut, text)
	}
}

// loggedPacket is a packet in the log of a node.
type loggedPacket struct {
	acllog.Packet
	node string
}

// logEnd is the end of the log of a node.
type logEnd struct{ node, reason string }
