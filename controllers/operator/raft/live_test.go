// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/ovsdb"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// live is a database of real ovsdb-servers under their supervisors. This package decides its steps, and schedule
// acts as the StatefulSet.
type live struct {
	*testing.T
	servers, callers supervisortest.Authority
	m                Membership
	nodes            map[string]*liveNode
	pods             []string
	clock            int64
}

type liveNode struct {
	options  ovsdb.Options
	clusters chan *v1alpha1.OVNCluster
	admin    *adminapi.Client
	stop     func()
}

func newLive(t *testing.T, nodes int) *live {
	l := &live{
		T: t, nodes: map[string]*liveNode{}, clock: 1000,
		servers: supervisortest.NewAuthority(t, "servers"), callers: supervisortest.NewAuthority(t, "operator"),
	}
	l.m = Membership{Want: 1, Nodes: map[netip.Addr]string{}}
	for i := range nodes {
		name, address := fmt.Sprintf("n%d", i+1), supervisortest.Loopback(byte(i+1))
		l.m.Nodes[address] = name
		l.nodes[name] = l.node(name, address)
	}
	l.m.Status = v1alpha1.DatabaseStatus{BootstrapNode: "n1", Members: []v1alpha1.DatabaseMember{{Node: "n1", Address: supervisortest.Loopback(1).String()}}}
	t.Cleanup(func() {
		for _, n := range l.nodes {
			n.halt()
		}
	})
	return l
}

func (l *live) node(name string, address netip.Addr) *liveNode {
	n := &liveNode{clusters: make(chan *v1alpha1.OVNCluster, 1)}
	database := ovsdb.Southbound
	database.Schema = supervisortest.File(l.T, database.Schema)
	n.options = ovsdb.Options{
		Database: database, DataDir: filepath.Join(l.TempDir(), "data"), RunDir: supervisortest.RunDir(l.T), Node: name, Address: address, Listen: address,
		TLSDir:        l.servers.TLSDir(l.T, "ovn-sb", map[string][]byte{"ca.crt": l.servers.PEM, "admin-ca.crt": l.callers.PEM}),
		HealthAddress: netip.AddrPortFrom(address, 6662).String(),
		Programs: ovsdb.Programs{
			Server: supervisortest.Program(l.T, "usr/sbin/ovsdb-server"), Tool: supervisortest.Program(l.T, "usr/bin/ovsdb-tool"),
		},
		Clusters: n.clusters, Leads: make(chan bool, 10000), Log: logr.Discard(),
	}
	certificate, key := l.callers.Issue(l.T, "operator")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		l.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(l.servers.PEM)
	n.admin = adminapi.NewClient(netip.AddrPortFrom(address, adminapi.PortSouthbound), &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "ovn-sb",
	})
	return n
}

func (n *liveNode) file() string {
	return filepath.Join(n.options.DataDir, n.options.Database.Stem+".db")
}

// run acts as a kubelet: it restarts a container that ends.
func (n *liveNode) run(status v1alpha1.DatabaseStatus) {
	n.tell(status)
	if n.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	n.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = ovsdb.Run(ctx, n.options)
		}
	}()
}

func (n *liveNode) tell(status v1alpha1.DatabaseStatus) {
	select {
	case <-n.clusters:
	default:
	}
	n.clusters <- &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Southbound: *status.DeepCopy()}}
}

func (n *liveNode) halt() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// schedule places pods and sends the record to all members.
func (l *live) schedule() {
	members := l.m.Status.Members
	for len(l.pods) > len(members) {
		l.nodes[l.pods[len(l.pods)-1]].halt()
		l.pods = l.pods[:len(l.pods)-1]
	}
	for len(l.pods) < len(members) {
		l.pods = append(l.pods, "")
	}
	for i, on := range l.pods {
		if slices.ContainsFunc(members, func(d v1alpha1.DatabaseMember) bool { return d.Node == on }) {
			continue
		}
		if on != "" {
			l.nodes[on].halt()
		}
		at := slices.IndexFunc(members, func(d v1alpha1.DatabaseMember) bool { return !slices.Contains(l.pods, d.Node) })
		l.pods[i] = members[at].Node
	}
	for _, on := range l.pods {
		l.nodes[on].run(l.m.Status)
	}
}

// pass is one pass of the operator.
func (l *live) pass() {
	l.schedule()
	m := &l.m
	l.clock++
	m.Now, m.Last, m.Free = metav1.Unix(l.clock, 0), l.pods[len(l.pods)-1], nil
	m.Reports, m.Missing = map[string]adminapi.Status{}, map[string]string{}
	for _, on := range l.pods {
		if report, err := l.nodes[on].admin.Status(l.Context()); err == nil {
			m.Reports[on] = report
		}
		if m.Reports[on].NeedsRejoin {
			m.Missing[on] = "its data is lost"
		}
	}
	for i := len(l.nodes); i > 0; i-- {
		if name := nodeOf(i); !slices.ContainsFunc(m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return d.Node == name }) {
			m.Free = &Node{Name: name, Address: supervisortest.Loopback(byte(i))}
		}
	}
	if err := Record(&m.Status, m.Reports); err != nil {
		l.Fatal(err)
	}
	if r := m.Status.Recovery; r != nil && r.Phase == v1alpha1.RecoveryFilling && m.Status.Leader != "" {
		r.Phase = v1alpha1.RecoveryCompleted
	}
	step := m.Next()
	var err error
	switch step.Action {
	case ActionRecord:
		m.Status.Members = step.Members
	case ActionRecover:
		m.Status = step.Recovered
	case ActionKick:
		err = l.nodes[m.Status.Leader].admin.Kick(l.Context(), step.Server)
	case ActionLeave:
		err = l.nodes[step.Node].admin.Leave(l.Context())
	case ActionNone:
	}
	if err != nil {
		l.Logf("%s: %v", step.Message, err) // the next pass decides again
	}
	l.schedule()
}

// until runs passes until this number of members serves.
func (l *live) until(what string, members int) {
	l.Helper()
	// Each join or removal of a member needs elections, and each step needs a pass.
	wait := eventually.Wait{For: what, Limit: 5 * time.Minute, Base: time.Minute}
	wait.Empty(l, func() string {
		l.pass()
		serving := 0
		for _, r := range l.m.Reports {
			if r.Connected && r.ClusterID == l.m.Status.ClusterID && len(r.Members) == members {
				serving++
			}
		}
		joined := !slices.ContainsFunc(l.m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return d.ServerID == "" })
		if serving == members && len(l.m.Status.Members) == members && joined && l.m.Status.Leader != "" && l.m.Next().Message == "" {
			return ""
		}
		return fmt.Sprintf("recorded %+v, reported %+v", l.m.Status, l.m.Reports)
	})
}

// wipe stops members and deletes their files.
func (l *live) wipe(nodes ...string) {
	l.Helper()
	for _, name := range nodes {
		l.nodes[name].halt()
		if err := os.Remove(l.nodes[name].file()); err != nil {
			l.Fatal(err)
		}
	}
}

// TestMembersComeAreRepairedAndGo repeats growth, repair, the loss of a quorum with its recovery, and shrinking on real
// servers. MEMBERSHIP_LOOPS sets the number of repetitions.
func TestMembersComeAreRepairedAndGo(t *testing.T) {
	loops, err := strconv.Atoi(os.Getenv("MEMBERSHIP_LOOPS"))
	if err != nil {
		loops = 2
	}
	l := newLive(t, 4)
	l.until("the first member serves", 1)
	for i := range loops {
		start := time.Now()
		l.m.Want = 3
		l.until("three members serve", 3)
		id := l.m.Status.ClusterID
		victim := l.m.Status.Members[i%3].Node // the leader, too
		was := l.m.Reports[victim].ServerID
		l.wipe(victim)
		l.until("the member is repaired", 3)
		if now := l.m.Reports[victim].ServerID; now == was || l.m.Status.ClusterID != id {
			t.Fatalf("loop %d: server %s is back in cluster %s", i, now, l.m.Status.ClusterID)
		}
		others := slices.DeleteFunc(slices.Clone(l.pods), func(n string) bool { return n == victim })
		l.wipe(others...)
		l.m.Recovery = &Recovery{ID: fmt.Sprint("loop-", i), Source: v1alpha1.RecoverMember}
		l.until("the database is recovered", 3)
		if l.m.Status.ClusterID == id || l.m.Status.Recovery.Node != victim {
			t.Fatalf("loop %d: cluster %s, recovered %+v", i, l.m.Status.ClusterID, l.m.Status.Recovery)
		}
		l.m.Want = 1
		l.until("one member serves", 1)
		t.Logf("loop %d took %s", i, time.Since(start).Round(time.Millisecond))
	}
}
