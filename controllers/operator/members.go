// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

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
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// membershipDelay is the time until the operator checks a membership step again. No watch reports when the database has
// applied it.
const membershipDelay = 2 * time.Second

// askRetry is the delay before the operator retries a request to a ready member that did not answer.
const askRetry = 10 * time.Second

// addressGrace is the time in which a node without an InternalIP keeps its members. A kubelet with an external cloud provider registers a node without
// one after a restart, until the provider has added it.
const addressGrace = 5 * time.Minute

// noteAddresses records since when nodes have no InternalIP.
func (r *Reconciler) noteAddresses(p *pass) {
	now := map[string]time.Time{}
	for i := range p.nodes {
		n := &p.nodes[i]
		if len(k8s.InternalIPs(n)) > 0 {
			continue
		}
		now[n.Name] = p.now
		if since, is := r.addressless[n.Name]; is {
			now[n.Name] = since
		}
	}
	r.addressless, p.addressless = now, now
}

// membership returns the input of the next membership step.
func (p *pass) membership(db render.Database, reports map[string]adminapi.Status) raft.Membership {
	status := *p.database(db)
	m := raft.Membership{
		Want: int(p.config.Spec.Central.Replicas), Status: status, Reports: reports, Nodes: map[netip.Addr]string{},
		Now:      metav1.NewTime(p.now.Truncate(time.Second)),
		Recovery: wantedRecovery(p.config.Spec.Central.Recovery, db),
	}
	if n := p.chooseNode(status.Members); n != nil {
		m.Free = &raft.Node{Name: n.Name, Address: k8s.InternalIPs(n)[0]}
	}
	if db.Flag == render.Northbound.Flag {
		m.Archive = p.archive.Archive
	}
	m.Missing = p.missing(db, status.Members, reports)
	m.Silent = map[string]bool{}
	for _, member := range status.Members {
		m.Silent[member.Node] = silent(p.node(member.Node))
	}
	selector := p.cluster.Spec.Central.Placement.Selector()
	m.Foreign = map[string]bool{}
	for i := range p.nodes {
		n := &p.nodes[i]
		m.Foreign[n.Name] = !selector.Matches(labels.Set(n.Labels))
		for _, address := range k8s.InternalIPs(n) {
			// If several nodes have this address, the node that holds the member takes precedence.
			if m.Nodes[address] == "" || slices.ContainsFunc(status.Members, func(d v1alpha1.DatabaseMember) bool {
				return d.Node == n.Name && raft.AddressOf(d) == address
			}) {
				m.Nodes[address] = n.Name
			}
		}
	}
	for _, member := range status.Members {
		since, is := p.addressless[member.Node]
		if end := since.Add(addressGrace); is && m.Nodes[raft.AddressOf(member)] == "" && p.now.Before(end) {
			m.Nodes[raft.AddressOf(member)] = member.Node
			p.wakeAt(end)
		}
	}
	highest := -1
	for _, pod := range p.podsOf(db.Workload) {
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
	source := spec.Northbound
	if db.Flag == render.Southbound.Flag {
		source = spec.Southbound
	}
	if source == v1alpha1.RecoverNone {
		return nil
	}
	return &raft.Recovery{ID: spec.ID, Source: source, Node: spec.Node, Backup: spec.Backup, Always: spec.When == v1alpha1.RecoverAlways}
}

// missing returns, by node, why a member does not serve and will not recover by itself.
func (p *pass) missing(db render.Database, members []v1alpha1.DatabaseMember, reports map[string]adminapi.Status) map[string]string {
	missing := map[string]string{}
	for _, member := range members {
		switch n := p.node(member.Node); {
		case n == nil:
			missing[member.Node] = "the node was deleted"
		case !answers(n):
			missing[member.Node] = "the node does not answer"
		case reports[member.Node].MovedClusterID != "":
			missing[member.Node] = "the node has another address now"
		case reports[member.Node].NeedsRejoin:
			missing[member.Node] = "its data is lost"
		}
	}
	for _, pod := range p.podsOf(db.Workload) {
		if report, ok := reports[pod.Spec.NodeName]; ok && report.Waiting == "" {
			continue // it has its data and waits for the other members
		}
		if why := trouble(pod, p.waiting[pod.Name], p.now); why != "" && missing[pod.Spec.NodeName] == "" && pod.Spec.NodeName != "" {
			missing[pod.Spec.NodeName] = why
		}
	}
	return missing
}

// take executes a step and reports it in the component's row and an event.
func (r *Reconciler) take(ctx context.Context, p *pass, db render.Database, step raft.Step) error {
	if step.Message == "" {
		return nil
	}
	p.note(db.Workload, note{text: step.Message, stuck: step.Stuck})
	p.wakeAt(p.now.Add(membershipDelay))
	var err error
	switch status := p.database(db); step.Action {
	case raft.ActionNone:
		return nil
	case raft.ActionRecord:
		status.Members = step.Members
	case raft.ActionRecover:
		*status = step.Recovered
	case raft.ActionKick:
		err = r.administer(p, db, status.Leader, func(member *adminapi.Client) error { return member.Kick(ctx, step.Server) })
	case raft.ActionLeave:
		err = r.administer(p, db, step.Node, func(member *adminapi.Client) error { return member.Leave(ctx) })
	}
	if err != nil {
		return &halt{reason: "ChangingMembers", retry: err, message: fmt.Sprintf("%s: %s", db.Title, step.Message)}
	}
	kind, reason := corev1.EventTypeNormal, "MembershipChanges"
	if step.Action == raft.ActionRecover {
		kind, reason = corev1.EventTypeWarning, "DatabaseRecovery"
	}
	r.Recorder.Eventf(p.cluster, nil, kind, reason, "Reconcile", "%s", cut(db.Title+": "+step.Message, maxNote))
	return nil
}

// administer calls do with a client of the member on a node.
func (r *Reconciler) administer(p *pass, db render.Database, node string, do func(*adminapi.Client) error) error {
	config, err := adminTLS(p, db)
	if err != nil {
		return err
	}
	for _, pod := range p.podsOf(db.Workload) {
		ip, err := netip.ParseAddr(pod.Status.PodIP)
		if pod.Spec.NodeName != node || err != nil {
			continue
		}
		member := r.Admin(netip.AddrPortFrom(ip, uint16(db.AdminPort)), config) //nolint:gosec // a constant
		defer member.Close()
		return do(member)
	}
	return fmt.Errorf("node %s has no pod of the %s", node, db.Title)
}
