// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// trial is a set of members on loopback addresses, each with its own directories, under one operator's OVNCluster.
type trial struct {
	t                *testing.T
	servers, callers supervisortest.Authority
	members          map[string]*trialMember
}

type trialMember struct {
	options  Options
	clusters chan *v1alpha1.OVNCluster
	leads    chan bool
	stop     context.CancelFunc
	done     chan error
}

func newTrial(t *testing.T) *trial {
	return &trial{
		t:       t,
		servers: supervisortest.NewAuthority(t, "servers"), callers: supervisortest.NewAuthority(t, "operator"),
		members: map[string]*trialMember{},
	}
}

// add prepares the member of a node; start runs it.
func (tr *trial) add(node, address string) *trialMember {
	m := &trialMember{clusters: make(chan *v1alpha1.OVNCluster, 1), leads: make(chan bool, 100)}
	database := Southbound
	database.Schema = supervisortest.File(tr.t, database.Schema)
	m.options = Options{
		Database: database,
		DataDir:  filepath.Join(tr.t.TempDir(), "data"),
		RunDir:   supervisortest.RunDir(tr.t),
		TLSDir: tr.servers.TLSDir(tr.t, "ovn-sb", map[string][]byte{
			"ca.crt": tr.servers.PEM, "admin-ca.crt": tr.callers.PEM,
		}),
		Node:          node,
		Address:       netip.MustParseAddr(address),
		Listen:        netip.MustParseAddr(address),
		HealthAddress: address + ":6662",
		Programs: Programs{
			Server: supervisortest.Program(tr.t, "usr/sbin/ovsdb-server"), Tool: supervisortest.Program(tr.t, "usr/bin/ovsdb-tool"),
		},
		Clusters: m.clusters,
		Leads:    m.leads,
		Log:      supervisortest.Log(tr.t),
	}
	tr.members[node] = m
	return m
}

func (tr *trial) start(m *trialMember, status v1alpha1.DatabaseStatus) {
	tr.startWith(m, v1alpha1.OVNClusterStatus{Southbound: status})
}

func (tr *trial) startWith(m *trialMember, status v1alpha1.OVNClusterStatus) {
	ctx, cancel := context.WithCancel(tr.t.Context())
	m.stop, m.done = cancel, make(chan error, 1)
	m.clusters <- &v1alpha1.OVNCluster{Status: *status.DeepCopy()} // a copy, because tests change theirs later
	done := m.done
	go func() { done <- Run(ctx, m.options) }()
	supervisortest.Watch(ctx, tr.t, "the member on "+m.options.Node, done)
	tr.t.Cleanup(func() { cancel(); <-done })
}

// heard returns an error until the member has received its newest record.
func (m *trialMember) heard() error {
	if len(m.clusters) > 0 {
		return errors.New("it has not looked at its record")
	}
	return nil
}

// halt stops a member and returns its error.
func (m *trialMember) halt() error {
	m.stop()
	err := <-m.done
	m.done <- err // for the cleanup
	return err
}

// admin is a client of the member's endpoint with a certificate from the given CA.
func (tr *trial) admin(m *trialMember, authority supervisortest.Authority) *adminapi.Client {
	certificate, key := authority.Issue(tr.t, "operator")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		tr.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(tr.servers.PEM)
	return adminapi.NewClient(netip.AddrPortFrom(m.options.Address, adminapi.PortSouthbound), &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "ovn-sb",
	})
}

// bootstrap adds a member, starts it as the first one of a new database, and returns it and its status.
func (tr *trial) bootstrap(node, address string) (*trialMember, adminapi.Status) {
	tr.t.Helper()
	m := tr.add(node, address)
	tr.start(m, v1alpha1.DatabaseStatus{BootstrapNode: node})
	return m, tr.untilConnected(m, 1)
}

func (tr *trial) untilConnected(m *trialMember, members int) adminapi.Status {
	tr.t.Helper()
	var status adminapi.Status
	admin := tr.admin(m, tr.callers)
	supervisortest.Eventually(tr.t, m.options.Node+" serves", func() (err error) {
		status, err = admin.Status(tr.t.Context())
		if err == nil && (!status.Connected || len(status.Members) != members) {
			err = errors.New("not connected: " + status.Role)
		}
		return err
	})
	return status
}

func TestCluster(t *testing.T) {
	tr := newTrial(t)
	first, one := tr.bootstrap("cp-1", "127.0.0.1")
	if one.Role != adminapi.RoleLeader || one.Leader != one.ServerID[:4] || one.LeaderAddress != "ssl:127.0.0.1:6644" || one.ClusterID == "" {
		t.Fatalf("status of the first member: %+v", one)
	}
	if one.Versions.Kiln == "" || !strings.Contains(one.Versions.OpenVSwitch, ".") {
		t.Errorf("it runs %+v", one.Versions)
	}
	if !<-first.leads {
		t.Error("the first member does not say that it leads")
	}

	t.Run("the kubelet's probe succeeds", func(t *testing.T) { probe(t, first, http.StatusOK) })
	t.Run("a caller of another authority is refused", func(t *testing.T) {
		_, err := tr.admin(first, supervisortest.NewAuthority(t, "stranger")).Status(t.Context())
		if err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("got %v, want a refused certificate", err)
		}
	})
	t.Run("only another member can be kicked", func(t *testing.T) {
		for _, server := range []string{"zzzz", one.ServerID, "ssl:192.0.2.1:6644", one.Address} {
			if err := tr.admin(first, tr.callers).Kick(t.Context(), server); err == nil {
				t.Errorf("%s was kicked", server)
			}
		}
	})
	t.Run("compaction", func(t *testing.T) {
		if err := tr.admin(first, tr.callers).Compact(t.Context()); err != nil {
			t.Error(err)
		}
	})

	recorded := v1alpha1.DatabaseStatus{BootstrapNode: "cp-1", ClusterID: one.ClusterID, Members: []v1alpha1.DatabaseMember{
		{Node: "cp-1", Address: "127.0.0.1", ServerID: one.ServerID},
		{Node: "cp-2", Address: "127.0.0.2"},
		{Node: "cp-3", Address: "127.0.0.3"},
		{Node: "cp-4", Address: "127.0.0.7"},
	}}
	second, third := tr.add("cp-2", "127.0.0.2"), tr.add("cp-3", "127.0.0.3")
	tr.start(second, recorded)
	tr.untilConnected(second, 2)
	tr.start(third, recorded)
	three := tr.untilConnected(third, 3)
	if three.ClusterID != one.ClusterID || three.Role != adminapi.RoleFollower {
		t.Fatalf("status of the third member: %+v", three)
	}

	t.Run("a stopped leader hands over, and joins again with its file", func(t *testing.T) {
		if err := first.halt(); err != nil {
			t.Fatal(err)
		}
		tr.untilConnected(second, 3)
		tr.start(first, recorded)
		if again := tr.untilConnected(first, 3); again.ServerID != one.ServerID {
			t.Errorf("server ID %s after the restart, %s before", again.ServerID, one.ServerID)
		}
	})
	t.Run("a member can leave", func(t *testing.T) {
		// A member that has left and has no recorded server ID would rejoin at once.
		recorded.Members[2].ServerID = three.ServerID
		third.tell(recorded, v1alpha1.Backup{})
		supervisortest.Eventually(t, "it knows", third.heard)
		if err := tr.admin(third, tr.callers).Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		tr.untilConnected(first, 2)
		for range 2 { // also after a restart
			supervisortest.Eventually(t, "it waits for a request to rejoin", func() error {
				said, err := tr.admin(third, tr.callers).Status(t.Context())
				if err == nil && !said.NeedsRejoin {
					err = fmt.Errorf("it says %+v", said)
				}
				return err
			})
			if err := third.halt(); err != nil {
				t.Fatal(err)
			}
			tr.start(third, recorded)
		}
	})
	t.Run("a lost member can be kicked", func(t *testing.T) {
		third.stop()
		fourth := tr.add("cp-4", "127.0.0.7")
		tr.start(fourth, recorded)
		four := tr.untilConnected(fourth, 3)
		if err := fourth.halt(); err != nil {
			t.Fatal(err)
		}
		supervisortest.Eventually(t, "it is kicked", func() error { return tr.admin(first, tr.callers).Kick(t.Context(), four.ServerID) })
		tr.untilConnected(first, 2)
	})
}

// TestAMemberWithLostDataJoinsAgain plays the operator: a member whose data is lost or of another cluster waits to be kicked, and joins
// again.
func TestAMemberWithLostDataJoinsAgain(t *testing.T) {
	tr := newTrial(t)
	leader, one := tr.bootstrap("cp-1", "127.0.0.4")
	status := v1alpha1.DatabaseStatus{ClusterID: one.ClusterID, Members: []v1alpha1.DatabaseMember{
		{Node: "cp-1", Address: "127.0.0.4", ServerID: one.ServerID},
		{Node: "cp-2", Address: "127.0.0.9", Since: new(metav1.Unix(1000, 0))},
		{Node: "cp-3", Address: "127.0.0.10"},
	}}
	other, third := tr.add("cp-2", "127.0.0.9"), tr.add("cp-3", "127.0.0.10") // the third member keeps the quorum
	tr.start(other, status)
	joined := tr.untilConnected(other, 2)
	tr.start(third, status)
	tr.untilConnected(third, 3)
	for n, damage := range []func(f files){
		func(f files) { tr.must(os.Remove(f.path)) },
		func(f files) { tr.must(os.Truncate(f.path, 10)) },
		func(f files) { tr.must(errors.Join(os.Remove(f.path), f.create(t.Context()))) },
	} {
		status.Members[1].ServerID = joined.ServerID
		tr.must(other.halt())
		damage(newFiles(other.options))
		tr.start(other, status)
		admin := tr.admin(other, tr.callers)
		supervisortest.Eventually(t, "the message says that it has to join again", func() error {
			said, err := admin.Status(t.Context())
			if err == nil && (!said.NeedsRejoin || said.Waiting == "") {
				err = fmt.Errorf("it says %+v", said)
			}
			return err
		})
		supervisortest.Eventually(t, "it is kicked", func() error { return tr.admin(leader, tr.callers).Kick(t.Context(), joined.ServerID) })
		tr.untilConnected(leader, 2)
		status.Members[1].ServerID, status.Members[1].Since = "", new(metav1.Unix(int64(2000+n), 0))
		other.clusters <- &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Southbound: *status.DeepCopy()}}
		before := joined.ServerID
		if joined = tr.untilConnected(other, 3); joined.ServerID == before || joined.ClusterID != one.ClusterID {
			t.Fatalf("it is %+v again", joined)
		}
	}
	aside, err := filepath.Glob(newFiles(other.options).path + ".aside-*")
	if err != nil || len(aside) != 2 {
		t.Errorf("files set aside: %q, %v; want the truncated and the foreign one", aside, err)
	}
}

func (tr *trial) must(err error) {
	tr.t.Helper()
	if err != nil {
		tr.t.Fatal(err)
	}
}

func TestWaitsAndSaysWhy(t *testing.T) {
	tr := newTrial(t)
	m := tr.add("cp-1", "127.0.0.5")
	tr.start(m, v1alpha1.DatabaseStatus{BootstrapNode: "cp-2"})
	supervisortest.Eventually(t, "the probe gives the reason", func() error {
		if body := probe(t, m, http.StatusServiceUnavailable); !strings.Contains(body, "node cp-2 creates") {
			return errors.New(body)
		}
		return nil
	})
	m.clusters <- &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Southbound: v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"}}}
	tr.untilConnected(m, 1)
}

func TestServerThatEndsIsReported(t *testing.T) {
	tr := newTrial(t)
	m, _ := tr.bootstrap("cp-1", "127.0.0.6")
	if _, err := unixctl.Call(t.Context(), m.options.control(), "exit"); err != nil {
		t.Fatal(err)
	}
	err := <-m.done
	m.done <- err
	if err == nil || !strings.Contains(err.Error(), "ovsdb-server ended") {
		t.Errorf("got %v, want the end of the server", err)
	}
}

func TestAServerComesBackOnceItsDiskHasRoom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a small disk: needs root") // make test runs as root
	}
	tr := newTrial(t)
	first, second, third := tr.add("cp-1", "127.0.0.7"), tr.add("cp-2", "127.0.0.8"), tr.add("cp-3", "127.0.0.9")
	tr.must(os.MkdirAll(first.options.DataDir, 0o755))
	tr.must(syscall.Mount("small", first.options.DataDir, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { tr.must(syscall.Unmount(first.options.DataDir, syscall.MNT_DETACH)) })
	tr.start(first, v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"})
	joined := tr.untilConnected(first, 1)
	recorded := v1alpha1.DatabaseStatus{BootstrapNode: "cp-1", ClusterID: joined.ClusterID, Members: []v1alpha1.DatabaseMember{
		{Node: "cp-1", Address: "127.0.0.7", ServerID: joined.ServerID}, {Node: "cp-2", Address: "127.0.0.8"}, {Node: "cp-3", Address: "127.0.0.9"},
	}}
	tr.start(second, recorded)
	tr.untilConnected(second, 2)
	tr.start(third, recorded)
	tr.untilConnected(third, 3)
	// TestAFileThatTheServerCannotReadIsReplaced covers the file that a follower may leave behind.
	tr.fill(t, first)
}

// TestAFileThatTheServerCannotReadIsReplaced uses a file as a follower with a full disk leaves it.
func TestAFileThatTheServerCannotReadIsReplaced(t *testing.T) {
	tr := newTrial(t)
	recorded := v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"}
	for i, node := range []string{"cp-1", "cp-2", "cp-3"} {
		m := tr.add(node, "127.0.0."+strconv.Itoa(30+i))
		recorded.Members = append(recorded.Members, v1alpha1.DatabaseMember{Node: node, Address: m.options.Address.String()})
		tr.start(m, recorded)
		status := tr.untilConnected(m, i+1)
		recorded.ClusterID, recorded.Members[i].ServerID = status.ClusterID, status.ServerID
	}
	third := tr.members["cp-3"]
	tr.must(third.halt())
	file, err := os.OpenFile(newFiles(third.options).path, os.O_APPEND|os.O_WRONLY, 0)
	tr.must(err)
	record := "{\"commit_index\":9999}\n"
	_, err = fmt.Fprintf(file, "OVSDB CLUSTER %d %x\n%s", len(record), sha1.Sum([]byte(record)), record)
	tr.must(errors.Join(err, file.Close()))
	tr.start(third, recorded)
	supervisortest.Eventually(t, "it waits for a request to rejoin", func() error {
		said, err := tr.admin(third, tr.callers).Status(t.Context())
		if err == nil && (!said.NeedsRejoin || !strings.Contains(said.Waiting, "advances commit index")) {
			err = fmt.Errorf("it says %+v", said)
		}
		return err
	})
}

// fill fills the leader's disk, makes the leader write, and then frees space.
func (tr *trial) fill(t *testing.T, m *trialMember) {
	before := tr.untilConnected(m, 3)
	filler := filepath.Join(m.options.DataDir, "filler")
	if err := os.WriteFile(filler, make([]byte, 16<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	go m.overfill(t.Context(), m.options.Node) // the response may never arrive
	supervisortest.Eventually(t, "the member gives the reason", func() error {
		if body := probe(t, m, http.StatusServiceUnavailable); !strings.Contains(body, "no space left on device; make room") {
			return errors.New(body)
		}
		return nil
	})
	leads := false
	for len(m.leads) > 0 {
		leads = <-m.leads
	}
	if leads {
		t.Error("the member still says that it leads")
	}
	tr.must(os.Remove(filler))
	if again := tr.untilConnected(m, 3); again.ServerID != before.ServerID {
		t.Errorf("member %s came back as %s", before.ServerID, again.ServerID)
	}
}

// overfill writes a row that is larger than the free space in the file's last page.
func (m *trialMember) overfill(ctx context.Context, name string) {
	conn, err := jsonrpc.Dial(ctx, m.options.socket())
	if err != nil {
		return
	}
	defer conn.Close()
	var result json.RawMessage
	_ = conn.Call("transact", []any{m.options.Database.Name, map[string]any{
		"op": "insert", "table": "Address_Set", "row": map[string]string{"name": name, "addresses": strings.Repeat("x", 1<<18)},
	}}, &result)
}

// probe returns the body of /readyz, whose status must be want once the endpoint responds.
func probe(t *testing.T, m *trialMember, want int) string {
	t.Helper()
	var body string
	supervisortest.Eventually(t, "the probe answers", func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m.options.HealthAddress+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text := make([]byte, 4096)
		n, _ := response.Body.Read(text)
		body = string(text[:n])
		if response.StatusCode != want {
			return errors.New(response.Status + ": " + body)
		}
		return nil
	})
	return body
}
