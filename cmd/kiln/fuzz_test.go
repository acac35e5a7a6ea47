// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/manager"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/fuzzedit"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// FuzzObjects edits one object of each kind that users write, and creates it in a real API server while the controllers run on a real
// ovsdb-server. An object that the API server accepts causes no error in a controller: ovsdb-server accepts its rows, the API server accepts
// its status, and no code panics. The object can be deleted again. Package fuzzedit defines the form of the edits.
func FuzzObjects(f *testing.F) {
	objects := readObjects(f, "testdata/objects/fuzzed.yaml")
	for i, o := range objects {
		f.Add(byte(i), "")
		for _, request := range kubeovnv1.AnnotationsOf(o.GetKind(), kubeovnv1.RoleRequest, kubeovnv1.RoleClaim) {
			f.Add(byte(i), "/metadata/annotations/"+strings.ReplaceAll(request.Key(), "/", "~1")+`="a\u0000b"`)
		}
	}
	for _, e := range readEdits(f) {
		position := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == e.Kind })
		if position < 0 {
			f.Fatalf("%s edits a %s, which is not in fuzzed.yaml", e.Name, e.Kind)
		}
		f.Add(byte(position), e.Edits)
	}
	c := newFuzzCluster(f)
	f.Fuzz(func(t *testing.T, position byte, edits string) {
		edited, err := fuzzedit.Apply(objects[int(position)%len(objects)].Object, edits)
		if err != nil {
			return
		}
		o := &unstructured.Unstructured{Object: edited}
		unstructured.RemoveNestedField(edited, "metadata", "finalizers") // nothing here would remove them
		if c.Create(t.Context(), o) != nil {
			return
		}
		c.rest(t)
		created := c.log.take()
		c.remove(t, o)
		c.rest(t)
		if lines := slices.Concat(created, c.log.take()); len(lines) > 0 {
			t.Errorf("errors of the controllers while a %s existed with the edits %q: %q", o.GetKind(), edits, lines)
		}
	})
}

func TestEachKindIsFuzzed(t *testing.T) {
	objects := readObjects(t, "testdata/objects/fuzzed.yaml")
	for _, k := range kubeovnv1.ImplementedKinds {
		if !slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == k.Kind }) {
			t.Errorf("fuzzed.yaml has no %s", k.Kind)
		}
	}
}

// fuzzCluster is an API server with `kiln controller` in this process, so that the fuzzer measures the coverage of the controllers.
type fuzzCluster struct {
	client.Client
	log *errorLog
	// passes is the number of reconciler passes when the reconcilers were last idle.
	passes float64
}

// newFuzzCluster starts the processes and creates the objects of testdata/objects/around.yaml. It runs until the test ends.
func newFuzzCluster(f *testing.F) *fuzzCluster {
	f.Helper()
	k8s.OnlyEvents()
	c := &fuzzCluster{Client: useAPIServer(f), log: &errorLog{}}
	ctrl.SetLogger(funcr.New(func(_, args string) { c.log.add(args) }, funcr.Options{Verbosity: -1}))
	certificates := newCertificates(f)
	listen(f, certificates, 7, nbtest.Start(f))
	newCluster(f, c, 7)

	f.Setenv("POD_NAMESPACE", "default")
	f.Setenv("POD_NAME", "controller")
	options := manager.Options{
		TLSDirectory: certificates.Dir, Address: "0",
		Membership: v1alpha1.MembershipGranted, ClusterAccess: kubeovnv1.ClusterAccessNone, PortSecurity: kubeovnv1.PortSecurityEnforced,
		PodAccess: v1alpha1.PodAccessOVN, NetworkPolicies: v1alpha1.NetworkPoliciesEnforced,
	}
	must.Succeed(f, parseController(&options, addressFlags{pods: "10.16.0.0/16,fd00:10:16::/64", services: "10.0.0.0/24"}))
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- runController(ctx, options) }()
	f.Cleanup(func() {
		stop()
		must.Succeed(f, <-stopped)
	})
	for _, o := range readObjects(f, "testdata/objects/around.yaml") {
		must.Succeed(f, c.Create(f.Context(), o))
	}
	eventually.Until(f, func() string { return allocated(c, "backend", "10.16.0.2,fd00:10:16::2") })
	c.rest(f)
	c.log.take() // the controllers started before their objects existed
	return c
}

// readObjects returns the objects of a YAML file.
func readObjects(t testing.TB, path string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	must.Succeed(t, err)
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		objects = append(objects, o)
	}
}

// edit is an input of FuzzObjects.
type edit struct{ Name, Kind, Edits string }

func readEdits(t testing.TB) (edits []edit) {
	t.Helper()
	text, err := os.ReadFile("testdata/objects/edits.yaml")
	must.Succeed(t, err)
	must.Succeed(t, yaml.UnmarshalStrict(text, &edits))
	return edits
}

// reaction bounds the time until a reconciler starts to work on a change; look is the interval of checks for that.
const (
	reaction = 50 * time.Millisecond
	look     = 4 * time.Millisecond
)

// rest waits until all reconcilers are idle. After a change that starts no pass it returns after the reaction time.
func (c *fuzzCluster) rest(t testing.TB) {
	t.Helper()
	before, began, last := c.passes, time.Now(), -1.0
	eventually.Wait{For: "the reconcilers must come to rest", Pause: look}.Holds(t, func() bool {
		now, working := activity(t)
		quiet := !working && now == last
		last, c.passes = now, now
		return quiet && (now > before || time.Since(began) > reaction)
	})
}

// busyMetrics are zero when all reconcilers are idle.
var busyMetrics = []string{"workqueue_depth", "controller_runtime_active_workers"}

func positive(m *dto.Metric) bool { return m.GetGauge().GetValue() > 0 }

// activity returns the number of passes of all reconcilers of this process, and whether any reconciler has work.
func activity(t testing.TB) (passes float64, working bool) {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	must.Succeed(t, err)
	for _, family := range families {
		working = working || slices.Contains(busyMetrics, family.GetName()) && slices.ContainsFunc(family.GetMetric(), positive)
		if family.GetName() == "controller_runtime_reconcile_total" {
			for _, m := range family.GetMetric() {
				passes += m.GetCounter().GetValue()
			}
		}
	}
	return passes, working
}

// remove deletes an object and waits until it does not exist. Kubernetes' own controller of namespaces does not run here.
func (c *fuzzCluster) remove(t testing.TB, o *unstructured.Unstructured) {
	t.Helper()
	must.Succeed(t, client.IgnoreNotFound(c.Delete(t.Context(), o, client.GracePeriodSeconds(0))))
	if o.GetKind() == "Namespace" {
		unstructured.RemoveNestedField(o.Object, "spec", "finalizers")
		o.SetResourceVersion("")
		must.Succeed(t, client.IgnoreNotFound(c.SubResource("finalize").Update(t.Context(), o)))
	}
	eventually.Wait{For: "the object must go", Pause: look}.Empty(t, func() string {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		if client.IgnoreNotFound(err) == nil && err != nil {
			return ""
		}
		return fmt.Sprintf("it exists: %v; errors of the controllers: %q", o, c.log.lines)
	})
}

// errorLog holds the errors that this process logged.
type errorLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *errorLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

// take returns the errors since the last call.
func (l *errorLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}
