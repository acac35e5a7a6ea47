// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// membershipDelay is the time until the operator checks a membership step again. No watch reports when the database has
// applied it.
const membershipDelay = 2 * time.Second

// askRetry is the delay before the operator retries a request to a ready member that did not answer.
const askRetry = 10 * time.Second

// addressGrace is the time in which a node without an InternalIP keeps its members. A kubelet with an external cloud provider registers a node without
// one after a restart, until the provider has added it.
const addressGrace = 5 * time.Minute

// NoteAddresses records since when nodes have no InternalIP.
func (r *Runner) NoteAddresses(seen *observed.Cluster) {
	now := map[string]time.Time{}
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		if len(k8s.InternalIPs(n)) > 0 {
			continue
		}
		now[n.Name] = seen.Now
		if since, is := r.addressless[n.Name]; is {
			now[n.Name] = since
		}
	}
	r.addressless = now
}

// membership returns the input of the next membership step.
func (p *run) membership() raft.Membership {
	m := raft.Membership{
		Want: int(p.Config.Spec.Central.Replicas), Status: *p.record, Reports: p.reports, Nodes: map[netip.Addr]string{},
		Now:      metav1.NewTime(p.Report.Now.Truncate(time.Second)),
		Recovery: wantedRecovery(p.Config.Spec.Central.Recovery, p.db),
	}
	if n := p.chooseNode(p.record.Members); n != nil {
		m.Free = &raft.Node{Name: n.Name, Address: k8s.InternalIPs(n)[0]}
	}
	if p.db.Backed {
		m.Archive = p.Archive.Archive
	}
	m.Missing = p.missing()
	m.Silent = map[string]bool{}
	for _, member := range p.record.Members {
		m.Silent[member.Node] = observed.Silent(p.Report.Node(member.Node))
	}
	selector := p.OVNCluster.Spec.Central.Selector()
	m.Foreign = map[string]bool{}
	for i := range p.Report.Nodes {
		n := &p.Report.Nodes[i]
		m.Foreign[n.Name] = !selector.Matches(labels.Set(n.Labels))
		for _, address := range k8s.InternalIPs(n) {
			// If several nodes have this address, the node that holds the member takes precedence.
			if m.Nodes[address] == "" || slices.ContainsFunc(p.record.Members, func(d v1alpha1.DatabaseMember) bool {
				return d.Node == n.Name && raft.AddressOf(d) == address
			}) {
				m.Nodes[address] = n.Name
			}
		}
	}
	for _, member := range p.record.Members {
		since, is := p.addressless[member.Node]
		if end := since.Add(addressGrace); is && m.Nodes[raft.AddressOf(member)] == "" && p.Report.Now.Before(end) {
			m.Nodes[raft.AddressOf(member)] = member.Node
			p.Report.WakeAt(end)
		}
	}
	highest := -1
	for _, pod := range p.Report.PodsOf(p.db.Workload) {
		ordinal, err := strconv.Atoi(pod.Name[strings.LastIndex(pod.Name, "-")+1:])
		if err == nil && ordinal > highest {
			highest, m.Last = ordinal, pod.Spec.NodeName
		}
	}
	return m
}

// wantedRecovery returns the recovery that the spec requests for a database, or nil.
func wantedRecovery(spec *v1alpha1.Recovery, db render.Database) *raft.Recovery {
	if spec == nil {
		return nil
	}
	source := db.Source(spec)
	if source == v1alpha1.RecoverNone {
		return nil
	}
	return &raft.Recovery{ID: spec.ID, Source: source, Node: spec.Node, Backup: spec.Backup, Always: spec.When == v1alpha1.RecoverAlways}
}

// missing returns, by node, why a member does not serve and will not recover by itself.
func (p *run) missing() map[string]string {
	missing := map[string]string{}
	for _, member := range p.record.Members {
		switch n := p.Report.Node(member.Node); {
		case n == nil:
			missing[member.Node] = "the node was deleted"
		case !observed.Answers(n):
			missing[member.Node] = "the node does not answer"
		case p.reports[member.Node].MovedClusterID != "":
			missing[member.Node] = "the node has another address now"
		case p.reports[member.Node].NeedsRejoin:
			missing[member.Node] = "its data is lost"
		}
	}
	for _, pod := range p.Report.PodsOf(p.db.Workload) {
		if report, ok := p.reports[pod.Spec.NodeName]; ok && report.Waiting == "" {
			continue // it has its data and waits for the other members
		}
		if why := p.Report.TroubleOf(pod); why != "" && missing[pod.Spec.NodeName] == "" && pod.Spec.NodeName != "" {
			missing[pod.Spec.NodeName] = why
		}
	}
	return missing
}

// take executes a step and reports it in the component's row and an event.
func (p *run) take(ctx context.Context, step raft.Step) error {
	if step.Message == "" {
		return nil
	}
	p.Report.Note(p.db.Workload, status.Note{Text: step.Message, Stuck: step.Stuck})
	p.Report.WakeAfter(membershipDelay)
	var err error
	switch step.Action {
	case raft.ActionNone:
		return nil
	case raft.ActionRecord:
		p.record.Members = step.Members
	case raft.ActionRecover:
		*p.record = step.Recovered
	case raft.ActionKick:
		err = p.administer(p.record.Leader, func(member *adminapi.Client) error { return member.Kick(ctx, step.Server) })
	case raft.ActionLeave:
		err = p.administer(step.Node, func(member *adminapi.Client) error { return member.Leave(ctx) })
	}
	if err != nil {
		return &status.Halt{Reason: "ChangingMembers", Retry: err, Message: fmt.Sprintf("%s: %s", p.db.Title, step.Message)}
	}
	kind, reason := corev1.EventTypeNormal, "MembershipChanges"
	if step.Action == raft.ActionRecover {
		kind, reason = corev1.EventTypeWarning, "DatabaseRecovery"
	}
	p.Recorder.Eventf(p.OVNCluster, nil, kind, reason, "Reconcile", "%s", status.EventNote(p.db.Title+": "+step.Message))
	return nil
}

// administer calls do with a client of the member on a node.
func (p *run) administer(node string, do func(*adminapi.Client) error) error {
	config, err := p.adminTLS()
	if err != nil {
		return err
	}
	for _, pod := range p.Report.PodsOf(p.db.Workload) {
		ip, err := netip.ParseAddr(pod.Status.PodIP)
		if pod.Spec.NodeName != node || err != nil {
			continue
		}
		member := p.Admin(netip.AddrPortFrom(ip, uint16(p.db.AdminPort)), config) //nolint:gosec // a constant
		defer member.Close()
		return do(member)
	}
	return fmt.Errorf("node %s has no pod of the %s", node, p.db.Title)
}
