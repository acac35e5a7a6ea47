// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/golden"
	"github.com/kiln-net/kiln/internal/prepared/apiserver"
)

// world is an API server with an OVNCluster. Programs in pods are tested by the end-to-end suite: there is no kubelet here.
type world struct {
	*testing.T
	objects    client.WithWatch
	kubeconfig string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	env, err := apiserver.New()
	w.must(err)
	config, err := env.Start()
	w.must(err)
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	w.must(os.WriteFile(w.kubeconfig, env.KubeConfig, 0o600))
	scheme := runtime.NewScheme()
	w.must(v1alpha1.AddToScheme(scheme))
	w.objects, err = client.NewWithWatch(config, client.Options{Scheme: scheme})
	w.must(err)
	w.must(w.objects.Create(t.Context(), &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}))
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// ko runs `kubectl ko`.
func (w *world) ko(args ...string) (said string, err error) {
	w.Helper()
	out := &bytes.Buffer{}
	cmd := NewCommand(out, out)
	cmd.SetArgs(append([]string{"--kubeconfig=" + w.kubeconfig}, args...))
	err = cmd.ExecuteContext(w.Context())
	return out.String(), err
}

// operate changes the status like the operator, at each change of the spec.
func (w *world) operate(report func(oc *v1alpha1.OVNCluster)) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	watch, err := w.objects.Watch(ctx, &v1alpha1.OVNClusterList{})
	w.must(err)
	ended := make(chan struct{})
	w.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		seen := int64(0)
		for event := range watch.ResultChan() {
			oc, is := event.Object.(*v1alpha1.OVNCluster)
			if !is || oc.Generation == seen {
				continue
			}
			seen = oc.Generation
			report(oc)
			switch err := w.objects.Status().Update(ctx, oc); {
			case apierrors.IsConflict(err):
				seen = 0 // the watch delivers the conflicting change next
			case err != nil && ctx.Err() == nil:
				w.Error(err)
			}
		}
	}()
}

func (w *world) fails(want string, args ...string) {
	w.Helper()
	if said, err := w.ko(args...); err == nil || !strings.Contains(err.Error(), want) {
		w.Errorf("%v: error %v, want one with %q; it said %s", args, err, want, said)
	}
}

func TestDatabases(t *testing.T) {
	w := newWorld(t)
	w.fails("the northbound database has no leader", "nbctl", "show")
	w.fails("the southbound database has no leader", "sb", "kick", "abcd")
	w.fails("no pod of ovs-ovn runs on node n1 in namespace kube-system", "vsctl", "n1", "show")
	w.fails("which node?", "ofctl")
	w.fails("no pod of ovs-ovn runs on node n1 in namespace elsewhere", "-n", "elsewhere", "appctl", "n1", "--help")

	oc := &v1alpha1.OVNCluster{}
	w.must(w.objects.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
	now := metav1.NewTime(time.Unix(1000, 0))
	oc.Status.Northbound = v1alpha1.DatabaseStatus{
		ClusterID: "c1", Leader: "cp-1", Term: 7,
		Members: []v1alpha1.DatabaseMember{
			{Node: "cp-1", Address: "192.0.2.1", Role: "leader", ServerID: "s1"}, {Node: "cp-2", Address: "2001:db8::2"},
		},
		LastBackup:        &v1alpha1.BackupStatus{Name: "ovnnb_db-a.db", Node: "cp-1", Rows: 12, Time: now},
		LastBackupOnClaim: &v1alpha1.BackupStatus{Name: "ovnnb_db-b.db", PersistentVolumeClaim: "backups", Rows: 11, Time: now},
		Recovery:          &v1alpha1.RecoveryStatus{ID: "r1", Phase: v1alpha1.RecoveryCompleted, Source: v1alpha1.RecoverMember},
	}
	w.must(w.objects.Status().Update(t.Context(), oc))
	said, err := w.ko("nb", "status")
	w.must(err)
	golden.Compare(t, "testdata/status.txt", []byte(said))
	w.fails("no pod of ovn-central-nb runs on node cp-2", "nb", "dbstatus") // after the attempt for cp-1
	w.fails("unknown command", "sb", "restore")
}

func TestRestore(t *testing.T) {
	w := newWorld(t)
	w.fails("--yes", "nb", "restore", "ovnnb_db-a.db")
	w.operate(func(oc *v1alpha1.OVNCluster) {
		if r := oc.Spec.Central.Recovery; r != nil {
			oc.Status.Northbound.Recovery = &v1alpha1.RecoveryStatus{ID: r.ID, Phase: v1alpha1.RecoveryCompleted, Source: r.Northbound, Backup: r.Backup}
			if r.Backup == "gone.db" {
				oc.Status.Northbound.Recovery.Phase, oc.Status.Northbound.Recovery.Message = v1alpha1.RecoveryRefused, "no such backup"
			}
		}
	})
	said, err := w.ko("nb", "restore", "--yes", "./backups/ovnnb_db-a.db")
	w.must(err)
	if !strings.HasPrefix(said, "Completed") {
		t.Errorf("it said %q", said)
	}
	oc := &v1alpha1.OVNCluster{}
	w.must(w.objects.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
	want := v1alpha1.Recovery{
		ID: oc.Spec.Central.Recovery.ID, Northbound: v1alpha1.RecoverBackup, Southbound: v1alpha1.RecoverNone, Backup: "ovnnb_db-a.db", When: v1alpha1.RecoverAlways,
	}
	if *oc.Spec.Central.Recovery != want {
		t.Errorf("asked for %+v, want %+v", *oc.Spec.Central.Recovery, want)
	}
	w.fails("the recovery was refused: no such backup", "nb", "restore", "--yes", "gone.db")
	if _, err = w.ko("nb", "restore", "--yes", "--from=Rebuild", "--node=cp-2"); err != nil {
		t.Error(err) // the previous request's backup field must be removed
	}
	w.fails("Invalid value", "nb", "restore", "--yes", "--from=nothing")
}

// If two recoveries that are requested within a second had the same name, the second would get the outcome of the first.
func TestNamesOfOneSecondDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		id := newID()
		if seen[id] {
			t.Fatalf("%s was given twice", id)
		}
		seen[id] = true
	}
}

func TestBackupIsAskedFor(t *testing.T) {
	w := newWorld(t)
	w.operate(func(oc *v1alpha1.OVNCluster) {
		if id := oc.Spec.Central.Backup.Request; id != "" {
			oc.Status.Northbound.RequestedBackup = &v1alpha1.BackupStatus{Name: "ovnnb_db-" + id + ".db", Node: "cp-1", Request: id, Time: metav1.Now()}
		}
	})
	w.fails("no pod of ovn-central-nb runs on node cp-1", "nb", "backup", "--directory="+t.TempDir())
}

func TestPrograms(t *testing.T) {
	argv := map[string][]string{
		"ovn-nbctl --timeout=30 --db=unix:/run/ovn/ovnnb_db.sock --columns=name list Logical_Switch": databases[0].ctl([]string{"--columns=name", "list", "Logical_Switch"}),
		"ovn-sbctl --timeout=30 --db=unix:/run/ovn/ovnsb_db.sock":                                    databases[1].ctl(nil),
		"ovs-appctl --timeout=30 --target=/run/ovn/ovnsb_db.ctl cluster/kick OVN_Southbound ab12":    databases[1].appctl("cluster/kick", "ab12"),
	}
	for i, want := range []string{"ovs-vsctl --timeout=30 dump -x", "ovs-ofctl dump -x", "ovs-appctl dump -x", "ovs-appctl dpctl/dump -x"} {
		argv[want] = nodePrograms[i].argv([]string{"dump", "-x"})
	}
	for want, got := range argv {
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("runs %q, want %q", got, want)
		}
	}
}

func TestAFileHasItsNameOnlyWhenItIsComplete(t *testing.T) {
	p, dir := &plugin{out: &bytes.Buffer{}}, t.TempDir()
	fill := func(err error) func(*os.File) error {
		return func(f *os.File) error { _, _ = f.WriteString("half"); return err }
	}
	if err := p.save(filepath.Join(dir, "a.db"), fill(os.ErrDeadlineExceeded)); err == nil {
		t.Error("a backup that broke off is there")
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := p.save(filepath.Join(dir, "a.db"), fill(nil)); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a.db")); err != nil || string(got) != "half" {
		t.Errorf("the file has %q: %v", got, err)
	}
}

func TestAnErrorOfTheStorageIsAFailure(t *testing.T) {
	if err := checkStorage("status: ok\n"); err != nil {
		t.Error(err)
	}
	for _, answer := range []string{"status: ovsdb error: inconsistent data\n", ""} {
		if err := checkStorage(answer); err == nil || !strings.Contains(answer, err.Error()) {
			t.Errorf("the answer %q gives the error %v", answer, err)
		}
	}
}

// TestProgressOutlastsAFailureOfTheAPIServer has the API server fail once while a command prints progress.
func TestProgressOutlastsAFailureOfTheAPIServer(t *testing.T) {
	failures := []error{
		apierrors.NewServiceUnavailable("starting"), errors.New("connection refused"), apierrors.NewTooManyRequests("busy", 1), nil,
		apierrors.NewForbidden(schema.GroupResource{Resource: "ovnclusters"}, v1alpha1.OVNClusterName, nil),
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			err := failures[0]
			failures = failures[1:]
			return err
		},
	}).Build()
	errOut := &bytes.Buffer{}
	p := &plugin{objects: objects, errOut: errOut}
	if err := p.follow(t.Context(), func(*v1alpha1.OVNCluster) (bool, error) { return true, nil }); err != nil {
		t.Error(err)
	}
	if said := errOut.String(); strings.Count(said, "trying again") != 3 {
		t.Errorf("it said %q", said)
	}
	if err := p.follow(t.Context(), func(*v1alpha1.OVNCluster) (bool, error) { return true, nil }); !apierrors.IsForbidden(err) {
		t.Errorf("after it was refused: %v", err)
	}
}
