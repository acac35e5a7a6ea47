// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/podlabel"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// envRole makes the test's own program act as an ovn-northd with nothing but a control socket; the value is the role that it
// reports.
const envRole = "KILN_TEST_NORTHD"

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		playNorthd(role)
	}
	os.Exit(eventually.Main(m, eventually.Allowed{
		"TestADatabaseIsWrittenOnceTheOneThatRunsNowHasSaidSoTwice": {Why: "two rounds of statusInterval", Base: 10 * time.Second},
		"TestItKeepsNewMembersWhenItStartsAgainForALeader":          {Why: "four rounds of statusInterval", Base: 16 * time.Second},
		"TestItStartsAgainForALeaderThatItDoesNotFind":              {Why: "five rounds of statusInterval", Base: 20 * time.Second},
		"TestItStopsWhileTheNorthboundDatabaseIsFilled":             {Why: "two rounds of statusInterval", Base: 10 * time.Second},
	}))
}

// playNorthd records the databases that it was started with, and serves the control socket (JSON-RPC) until `exit`.
func playNorthd(role string) {
	var socket, databases, southbound string
	for _, arg := range os.Args {
		if path, ok := strings.CutPrefix(arg, "--unixctl="); ok {
			socket = path
		}
		if strings.HasPrefix(arg, "--ovnnb-db=") {
			databases = arg
		}
		if strings.HasPrefix(arg, "--ovnsb-db=") {
			southbound = arg
		}
	}
	note := func(in string, what any) {
		log, err := os.OpenFile(filepath.Join(filepath.Dir(socket), in), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			os.Exit(2)
		}
		fmt.Fprintln(log, what)
		_ = log.Close()
	}
	note("southbound", southbound)
	note("starts", databases)
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		os.Exit(2)
	}
	missed := &engine{lflow: 2, northd: 1, changes: 1, busy: 1}
	for {
		conn, err := listener.Accept()
		if err != nil {
			os.Exit(2)
		}
		go func() {
			var request struct {
				ID     any
				Method string
			}
			if json.NewDecoder(conn).Decode(&request) != nil {
				return
			}
			if request.Method == "status" {
				note("asked", os.Getpid())
			}
			answer := map[string]string{"status": "Status: " + role, "nb-connection-status": "connected", "sb-connection-status": "connected"}[request.Method]
			if strings.HasPrefix(request.Method, "inc-engine/") {
				answer, _ = missed.call(context.Background(), request.Method)
			}
			if request.Method == "inc-engine/recompute" {
				note("requested", os.Getpid())
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(socket), "cut off")); err == nil && request.Method == "sb-connection-status" {
				answer = "not connected"
			}
			_ = json.NewEncoder(conn).Encode(map[string]any{"id": request.ID, "result": answer, "error": nil})
			if request.Method == "exit" {
				os.Exit(0)
			}
		}()
	}
}

// trial is one supervised ovn-northd.
type trial struct {
	*testing.T
	options  Options
	clusters chan *v1alpha1.OVNCluster
	mu       sync.Mutex
	said     []string
	turn     chan struct{}
	ended    chan struct{}
}

func newTrial(t *testing.T, role, health string) *trial {
	t.Setenv(envRole, role)
	tr := &trial{T: t, clusters: make(chan *v1alpha1.OVNCluster), turn: make(chan struct{}), ended: make(chan struct{})}
	leads, writes, runs := make(chan bool), make(chan string), make(chan string)
	tr.options = Options{
		RunDir: supervisortest.RunDir(t), TLSDir: t.TempDir(), HealthAddress: health, Program: []string{os.Args[0]}, Clusters: tr.clusters,
		Leads: leads, Writes: writes, Runs: runs, Log: testr.New(t),
		Turn: func(ctx context.Context, _ string) {
			tr.say("waits")
			select {
			case <-tr.turn:
			case <-ctx.Done():
			}
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		err := Run(ctx, tr.options)
		close(tr.ended)
		done <- err
	}()
	supervisortest.Watch(ctx, t, "the supervisor of ovn-northd", done)
	go func() {
		for {
			select {
			case l := <-leads:
				tr.say(fmt.Sprint("leads ", l))
			case w := <-writes:
				tr.say("writes " + w)
			case <-runs:
				tr.say("runs")
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return tr
}

// show gives the supervisor a new state of the OVNCluster.
func (tr *trial) show(cluster *v1alpha1.OVNCluster) {
	tr.Helper()
	select {
	case tr.clusters <- cluster:
	case <-tr.ended:
		tr.Fatal("the supervisor has ended")
	}
}

func (tr *trial) say(what string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.said = append(tr.said, what)
}

func (tr *trial) until(what string, f func() bool) {
	tr.Helper()
	eventually.Wait{For: what}.Empty(tr, func() string {
		if f() {
			return ""
		}
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return fmt.Sprintf("said %v, started %v", tr.said, tr.starts())
	})
}

func (tr *trial) untilSaid(what string) {
	tr.Helper()
	tr.until(what, func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return slices.Contains(tr.said, what)
	})
}

// starts returns the northbound databases of each start.
func (tr *trial) starts() []string { return tr.noted("starts") }

func (tr *trial) noted(in string) []string {
	content, _ := os.ReadFile(filepath.Join(tr.options.RunDir, in))
	return strings.Fields(string(content))
}

func clusterOf(id string, addresses ...string) *v1alpha1.OVNCluster {
	db := v1alpha1.DatabaseStatus{ClusterID: id}
	for _, a := range addresses {
		db.Members = append(db.Members, v1alpha1.DatabaseMember{Node: a, Address: a, ServerID: a})
	}
	return &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Northbound: *db.DeepCopy(), Southbound: db}}
}

func TestTheActiveOneStartsAgainAfterOneThatStandsBy(t *testing.T) {
	tr := newTrial(t, "active", "127.0.6.1:10671")
	tr.show(clusterOf("c", "192.0.2.1"))
	tr.untilSaid("leads true")
	tr.untilSaid("writes c")
	tr.show(clusterOf("c", "192.0.2.1", "192.0.2.2"))
	tr.untilSaid("waits")
	tr.show(clusterOf("c", "192.0.2.1", "192.0.2.2")) // nothing new
	if got := tr.starts(); len(got) != 1 {
		t.Errorf("it did not wait: %v", got)
	}
	tr.turn <- struct{}{}
	tr.until("it starts with both members", func() bool { return len(tr.starts()) == 2 && strings.Contains(tr.starts()[1], "192.0.2.2") })
}

// When two daemons restart one after the other, the first is no longer active. If it waited for the other, both would wait
// forever.
func TestTheOneThatWasActiveStartsAgainAtOnce(t *testing.T) {
	tr := newTrial(t, "active", "127.0.6.5:10671")
	tr.show(clusterOf("c", "192.0.2.1"))
	tr.untilSaid("leads true")
	t.Setenv(envRole, "standby") // the role of the next process
	tr.show(clusterOf("c", "192.0.2.1", "192.0.2.2"))
	tr.turn <- struct{}{}
	tr.until("it starts with both members", func() bool { return len(tr.starts()) == 2 })
	tr.show(clusterOf("c", "192.0.2.1", "192.0.2.2", "192.0.2.3"))
	tr.until("it starts with all members", func() bool { return len(tr.starts()) == 3 })
}

func TestItConnectsToThePortWithoutARoleOfEachMember(t *testing.T) {
	tr := newTrial(t, "active", "127.0.6.8:10671")
	tr.show(clusterOf("c", "192.0.2.1", "2001:db8::2"))
	tr.untilSaid("leads true")
	want := "--ovnsb-db=ssl:192.0.2.1:6649,ssl:[2001:db8::2]:6649"
	if got := tr.noted("southbound"); !slices.Equal(got, []string{want}) {
		t.Errorf("it is started with %q, want %q", got, want)
	}
}

func TestOneThatStandsByStartsAgainAtOnce(t *testing.T) {
	tr := newTrial(t, "standby", "127.0.6.2:10671")
	tr.show(clusterOf("c", "192.0.2.1"))
	tr.untilSaid("runs")
	tr.show(clusterOf("c", "192.0.2.2"))
	tr.until("it starts again", func() bool { return len(tr.starts()) == 2 })
}

// A daemon that waits between two connection attempts finds a new leader late.
func TestItStartsAgainForALeaderThatItDoesNotFind(t *testing.T) {
	tr := newTrial(t, "standby", "127.0.6.6:10671")
	led := func(by string) *v1alpha1.OVNCluster {
		c := clusterOf("c", "192.0.2.1", "192.0.2.2", "192.0.2.3")
		c.Status.Northbound.Leader, c.Status.Southbound.Leader = "192.0.2.1", by
		return c
	}
	asked := func(times int) {
		t.Helper()
		from := len(tr.noted("asked"))
		tr.until("it is asked some times", func() bool { return len(tr.noted("asked")) >= from+times })
	}
	starts := func(want int, why string) {
		t.Helper()
		if got := tr.starts(); len(got) != want {
			t.Errorf("%s: started %d times, want %d", why, len(got), want)
		}
	}
	tr.show(led("192.0.2.1"))
	tr.untilSaid("runs")
	tr.show(led("192.0.2.2"))
	asked(5)
	starts(1, "a new leader, and it is connected")
	cut := filepath.Join(tr.options.RunDir, "cut off")
	if err := os.WriteFile(cut, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tr.show(led(""))
	asked(5)
	starts(1, "no leader")
	tr.show(led("192.0.2.3"))
	tr.until("it starts again", func() bool { return len(tr.starts()) == 2 })
	asked(5)
	starts(2, "it has been started for this leader")
}

func TestItKeepsNewMembersWhenItStartsAgainForALeader(t *testing.T) {
	tr := newTrial(t, "active", "127.0.6.7:10671")
	led := func(by string, members ...string) *v1alpha1.OVNCluster {
		c := clusterOf("c", members...)
		c.Status.Northbound.Leader, c.Status.Southbound.Leader = by, by
		return c
	}
	tr.show(led("192.0.2.1", "192.0.2.1", "192.0.2.2"))
	tr.untilSaid("writes c") // it is active, and was connected to the first leader
	if err := os.WriteFile(filepath.Join(tr.options.RunDir, "cut off"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tr.show(led("192.0.2.2", "192.0.2.2", "192.0.2.3")) // and never again
	tr.untilSaid("waits")
	tr.until("it starts again", func() bool { return len(tr.starts()) == 2 })
	if again := tr.starts()[1]; !strings.Contains(again, "192.0.2.3") || strings.Contains(again, "192.0.2.1:") {
		t.Errorf("it starts with %s", again)
	}
}

func TestItStopsWhileTheNorthboundDatabaseIsFilled(t *testing.T) {
	tr := newTrial(t, "active", "127.0.6.3:10671")
	tr.show(clusterOf("c", "192.0.2.1"))
	tr.untilSaid("leads true")
	recovering := clusterOf("d", "192.0.2.1")
	for _, phase := range []v1alpha1.RecoveryPhase{v1alpha1.RecoveryCreating, v1alpha1.RecoveryFilling} {
		recovering.Status.Northbound.Recovery = &v1alpha1.RecoveryStatus{Phase: phase}
		tr.show(recovering.DeepCopy())
	}
	tr.untilSaid("leads false")
	if got := tr.starts(); len(got) != 1 {
		t.Errorf("it runs meanwhile: %v", got)
	}
	recovering.Status.Northbound.Recovery.Phase = v1alpha1.RecoveryCompleted
	tr.show(recovering.DeepCopy())
	tr.untilSaid("writes d") // the same addresses, another database
}

// By the second answer, ovn-northd has committed the result of its first computation. Answers of the previous process do not
// count.
func TestADatabaseIsWrittenOnceTheOneThatRunsNowHasSaidSoTwice(t *testing.T) {
	tr := newTrial(t, "active", "127.0.6.4:10671")
	tr.show(clusterOf("c", "192.0.2.1"))
	tr.untilSaid("writes c")
	tr.show(clusterOf("d", "192.0.2.1"))
	tr.untilSaid("writes d")
	asked := tr.noted("asked")
	last, times := asked[len(asked)-1], 0
	for _, process := range asked {
		if process == last {
			times++
		}
	}
	if times < 2 || last == asked[0] {
		t.Errorf("%d answers of the ovn-northd that was started again are taken for two: %v", times, asked)
	}
}

func TestPeers(t *testing.T) {
	pod := func(name, members string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{
				"app.kubernetes.io/component": "ovn-central-northd", podlabel.NorthdMembers: members,
			}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
	}
	await := func(change func(pods *fake.Clientset), all ...*corev1.Pod) <-chan struct{} {
		client := fake.NewClientset()
		for _, p := range all {
			if _, err := client.CoreV1().Pods("ns").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan struct{})
		go func() {
			Peers{Pods: client.CoreV1().Pods("ns"), Pod: "self", Log: testr.New(t)}.Await(t.Context(), "new")
			close(done)
		}()
		if change != nil {
			for watching := false; !watching; {
				for _, a := range client.Actions() {
					watching = watching || a.GetVerb() == "watch"
				}
				time.Sleep(5 * time.Millisecond)
			}
			select {
			case <-done:
				t.Error("it did not wait")
			default:
			}
			change(client)
		}
		return done
	}
	pending := pod("other", "")
	pending.Status.Phase = corev1.PodPending
	for name, done := range map[string]<-chan struct{}{
		"there is no other one":       await(nil, pod("self", "old")),
		"the other one does not run":  await(nil, pod("self", "old"), pending),
		"the other one has done so":   await(nil, pod("self", "old"), pod("other", "new")),
		"the other one does so later": await(func(c *fake.Clientset) { update(t, c, pod("other", "new")) }, pod("self", "old"), pod("other", "old")),
		"the other one goes": await(func(c *fake.Clientset) {
			if err := c.CoreV1().Pods("ns").Delete(t.Context(), "other", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}, pod("self", "old"), pod("other", "old")),
	} {
		select {
		case <-done:
		case <-time.After(2 * time.Minute):
			t.Errorf("%s: it waits", name)
		}
	}
}

func TestAWatchOfPeersThatEndsIsAnError(t *testing.T) {
	client := fake.NewClientset(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "ns", Labels: map[string]string{"app.kubernetes.io/component": "ovn-central-northd"}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	})
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		ended := watch.NewFake()
		ended.Stop()
		return true, ended, nil
	})
	err := Peers{Pods: client.CoreV1().Pods("ns"), Pod: "self"}.await(t.Context(), "new")
	if err == nil || err.Error() != "the watch of the pods of ovn-northd ended" {
		t.Errorf("got %v", err)
	}
}

func update(t *testing.T, c *fake.Clientset, pod *corev1.Pod) {
	if _, err := c.CoreV1().Pods("ns").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}
