// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

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
	must.Succeed(w, err)
	if !strings.HasPrefix(said, "Completed") {
		t.Errorf("it said %q", said)
	}
	oc := &v1alpha1.OVNCluster{}
	must.Succeed(w, w.objects.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
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
