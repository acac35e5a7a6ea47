// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/netprobe/measure"
)

const (
	// flowTime is the duration of the flow during a disruption, and flowLead the time from its begin until the leader is deleted.
	flowTime, flowLead = 30 * time.Second, 3 * time.Second
	// flowRate is the rate of the flow in bit/s: about 100 packets per second.
	flowRate = 1_040_000
	// recoveryTime bounds the time until pods start again.
	recoveryTime = 3 * time.Minute
)

// leaders are the pods that a disruption deletes. Each sets the label while it is the leader or the active instance.
var leaders = []struct {
	component, label string
	// least is the number of ready pods without which nothing takes over.
	least int32
}{
	{"ovn-central-nb", "ovn-nb-leader", 3}, {"ovn-central-sb", "ovn-sb-leader", 3}, {"ovn-central-northd", "ovn-northd-leader", 2},
}

// PerfRecovery is the recovery from the deletion of one pod.
type PerfRecovery struct {
	Component string `json:"component"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	// UsualAddress and UsualStart are the times in seconds until a new pod had an address and until it ran, before the deletion.
	UsualAddress float64 `json:"usualAddressSeconds"`
	UsualStart   float64 `json:"usualStartSeconds"`
	// Address and Start are the longest of these times after the deletion, until another pod is the leader. Pods is the number of new pods.
	Address float64 `json:"addressSeconds"`
	Start   float64 `json:"startSeconds"`
	Pods    int     `json:"pods"`
	// Sent and Lost are the packets of a UDP flow that existed before.
	Sent int `json:"sentPackets"`
	Lost int `json:"lostPackets"`
	// Errors are of parts that could not be measured.
	Errors []string `json:"errors,omitempty"`
}

// disruptRights returns the permissions that --disrupt needs in addition.
func (r *perfRun) disruptRights() []right {
	if !r.disrupt {
		return nil
	}
	return []right{{r.namespace, corev1.GroupName, "pods", "delete"}, {r.name, corev1.GroupName, "pods", "watch"}, {"", v1alpha1.GroupVersion.Group, "ovnclusters", "get"}}
}

// mayDisrupt returns an error, before anything is created, if --disrupt is not confirmed, or if the loss of a pod could stop a database.
func (r *perfRun) mayDisrupt(ctx context.Context) error {
	if !r.disrupt {
		return nil
	}
	oc, err := r.cluster(ctx)
	if err != nil {
		return err
	}
	for _, l := range leaders {
		if err := safeToLose(oc, l.component, l.least); err != nil {
			return err
		}
	}
	if !r.yes {
		return errors.New("--disrupt deletes the pods of the leaders of both databases and of the active ovn-northd, one after another: new pods wait meanwhile. Repeat the command with --yes")
	}
	return nil
}

// safeToLose returns an error if a component has too few pods, or if the operator is changing the cluster.
func safeToLose(oc *v1alpha1.OVNCluster, component string, least int32) error {
	if meta.IsStatusConditionTrue(oc.Status.Conditions, v1alpha1.ConditionProgressing) || meta.IsStatusConditionTrue(oc.Status.Conditions, v1alpha1.ConditionDegraded) {
		return errors.New("the OVNCluster is Progressing or Degraded: `kubectl ko status` has the reason; nothing was deleted")
	}
	at := slices.IndexFunc(oc.Status.Components, func(c v1alpha1.ComponentStatus) bool { return c.Name == component })
	switch {
	case at < 0:
		return fmt.Errorf("the status of the OVNCluster has no component %s; nothing was deleted", component)
	case oc.Status.Components[at].Desired < least:
		return fmt.Errorf("%s has %d pods, and without one of them no other could take over: %d are needed; nothing was deleted", component, oc.Status.Components[at].Desired, least)
	case oc.Status.Components[at].Ready < oc.Status.Components[at].Desired:
		return fmt.Errorf("%d of %d pods of %s are ready: the loss of another one could stop it; nothing was deleted", oc.Status.Components[at].Ready, oc.Status.Components[at].Desired, component)
	}
	return nil
}

// disruptAll deletes the leaders, one after another. With an error, the report has the measurements until then.
func (r *perfRun) disruptAll(ctx context.Context) (*PerfReport, error) {
	report := &PerfReport{Seconds: r.flowTime.Seconds(), Rows: []PerfRow{}}
	for _, l := range leaders {
		recovery, err := r.disruptOne(ctx, l.component, l.label, l.least)
		if recovery != nil {
			report.Recovery = append(report.Recovery, *recovery)
		}
		if ctx.Err() != nil {
			return report, fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
		if err != nil {
			return report, fmt.Errorf("%s: %w", l.component, err)
		}
	}
	return report, nil
}

// disruptOne deletes the leader of a component, and measures until another one is the leader and new pods start. At the end it waits until the component has
// all its pods again, so that never two are missing.
func (r *perfRun) disruptOne(ctx context.Context, component, label string, least int32) (*PerfRecovery, error) {
	if err := r.awaitSafe(ctx, component, least); err != nil {
		return nil, err
	}
	leader, err := r.leaderOf(ctx, component, label)
	if err != nil || leader == nil {
		return nil, errors.Join(err, fmt.Errorf("no pod has the label %s=true; nothing was deleted", label))
	}
	recovery := &PerfRecovery{Component: component, Pod: leader.Name, Node: leader.Spec.NodeName}
	usual, err := r.newPod(ctx)
	if err != nil {
		return nil, fmt.Errorf("start a pod before the deletion: %w", err)
	}
	recovery.UsualAddress, recovery.UsualStart = usual.address.Seconds(), usual.start.Seconds()
	flow := r.startFlow(ctx)
	select {
	case <-time.After(r.flowLead): // the flow exists on both nodes
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	fmt.Fprintf(r.errOut, "deleting pod %s of %s\n", leader.Name, component)
	if err := r.pods.CoreV1().Pods(leader.Namespace).Delete(ctx, leader.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &leader.UID}}); err != nil {
		return nil, fmt.Errorf("delete pod %s: %w", leader.Name, err)
	}
	if err := r.recover(ctx, recovery, component, label, leader); err != nil {
		recovery.Errors = append(recovery.Errors, plain(err.Error()))
	}
	select {
	case o := <-flow:
		if recovery.Sent, recovery.Lost = o.Sent, int(math.Round(o.Lost*float64(o.Sent))); o.Error != "" {
			recovery.Errors = append(recovery.Errors, "flow: "+plain(o.Error))
		}
	case <-ctx.Done():
		return recovery, ctx.Err()
	}
	if err := r.awaitReady(ctx, component, string(leader.UID)); err != nil {
		return recovery, err
	}
	if len(recovery.Errors) > 0 {
		return recovery, errors.New(strings.Join(recovery.Errors, "; "))
	}
	return recovery, nil
}

// awaitSafe waits until the loss of a pod of a component stops nothing: the operator may still report the former disruption.
func (r *perfRun) awaitSafe(ctx context.Context, component string, least int32) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryTime)
	defer cancel()
	var unsafe error
	err := r.follow(ctx, func(oc *v1alpha1.OVNCluster) (bool, error) {
		unsafe = safeToLose(oc, component, least)
		return unsafe == nil, nil
	})
	if err != nil {
		return errors.Join(unsafe, err)
	}
	return nil
}

// leaderOf returns the pod that says that it is the leader of a component; nil if none does.
func (r *perfRun) leaderOf(ctx context.Context, component, label string) (*corev1.Pod, error) {
	pods, err := r.podsOf(ctx, component)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pod := &pods[i]; pod.Labels[label] == "true" && isReady(pod) {
			return pod, nil
		}
	}
	return nil, nil
}

// recover creates one pod after another until one was created after another leader existed.
func (r *perfRun) recover(ctx context.Context, recovery *PerfRecovery, component, label string, former *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryTime)
	defer cancel()
	for {
		now, err := r.leaderOf(ctx, component, label)
		if err != nil {
			return err
		}
		last := now != nil && now.UID != former.UID
		times, err := r.newPod(ctx)
		if err != nil {
			return fmt.Errorf("after the deletion, no pod starts within %s: %w", recoveryTime, err)
		}
		recovery.Pods++
		recovery.Address, recovery.Start = max(recovery.Address, times.address.Seconds()), max(recovery.Start, times.start.Seconds())
		if last {
			return nil
		}
	}
}

// podTimes are the times from the creation of a pod until it has an address, and until it runs.
type podTimes struct{ address, start time.Duration }

// newPod creates a pod on the last node, measures its start, and deletes it.
func (r *perfRun) newPod(ctx context.Context) (times podTimes, err error) {
	r.created++
	pod := waitingPod(r.name, fmt.Sprintf("new-%d", r.created), r.hosts[len(r.hosts)-1])
	pod.Spec.HostNetwork = false
	began := time.Now()
	if err := r.createPod(ctx, pod); err != nil {
		return times, err
	}
	err = r.watch(ctx, pod, func(now *corev1.Pod) bool {
		if times.address == 0 && (kubeovnv1.IsPublished(now) || len(now.Status.PodIPs) > 0) {
			times.address = time.Since(began)
		}
		times.start = time.Since(began)
		return now.Status.Phase == corev1.PodRunning
	})
	if deleted := r.pods.CoreV1().Pods(r.name).Delete(context.WithoutCancel(ctx), pod.Name, metav1.DeleteOptions{}); err == nil {
		err = deleted
	}
	return times, err
}

// startFlow starts a UDP flow from the client's pod on the last node to the server's pod.
func (r *perfRun) startFlow(ctx context.Context) <-chan measure.Outcome {
	flow := make(chan measure.Outcome, 1)
	client, server := r.running[fmt.Sprintf(clientPod, len(r.hosts)-1)], r.running[perfServer]
	if client == nil || server == nil || len(addressesOf(server)) == 0 {
		flow <- measure.Outcome{Error: "its pods do not run"}
		return flow
	}
	m := measure.Measurement{
		Kind: measure.Steady, Address: netip.AddrPortFrom(addressesOf(server)[0], perfPodPort).String(), Key: r.key, Duration: r.flowTime, Rate: flowRate,
	}
	go func() {
		outcomes, err := r.measure(ctx, client, []measure.Measurement{m})
		if err != nil {
			outcomes = []measure.Outcome{{Error: err.Error()}}
		}
		flow <- outcomes[0]
	}()
	return flow
}

// writeRecovery writes the measurements of --disrupt as a table.
func (p *PerfReport) writeRecovery(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DELETED\tNODE\tADDRESS\tUSUALLY\tSTART\tUSUALLY\tLOST PACKETS")
	for i := range p.Recovery {
		c := &p.Recovery[i]
		fmt.Fprintf(w, "%s\t%s\t%.1f s\t%.1f s\t%.1f s\t%.1f s\t%d of %d\n", c.Component, c.Node, c.Address, c.UsualAddress, c.Start, c.UsualStart, c.Lost, c.Sent)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	fmt.Fprintln(out, "ADDRESS and START are the longest times until a new pod had an address and ran; LOST PACKETS are of a flow that existed before.")
	for i := range p.Recovery {
		for _, problem := range p.Recovery[i].Errors {
			fmt.Fprintf(out, "FAIL  %s: %.400s\n", p.Recovery[i].Component, problem)
		}
	}
	return nil
}
