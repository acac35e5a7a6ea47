// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllertest runs reconcilers as processes against a real API server and a real northbound database. Tests can stop and
// restart the processes, and count their requests. The package stands in for the controllers of VPCs, subnets and nodes.
package controllertest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/policy/beta"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/panics"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/golden"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

var (
	config *rest.Config
	// account is config with the controller's permissions.
	account *rest.Config
	scheme  = runtime.NewScheme()
)

// Main runs the tests of a package with their own API server. Waits of the allowed tests may take longer.
func Main(m *testing.M, allowed ...eventually.Allowed) {
	os.Exit(run(m, kubeovnv1.Resources("", func(k *kubeovnv1.Kind) bool { return k.Implemented }), allowed...))
}

// MainDualStack is Main with an API server that assigns ClusterIPs of both families.
func MainDualStack(m *testing.M) {
	serviceCIDRs = "10.0.0.0/24,fd00:10::/112"
	Main(m)
}

// serviceCIDRs is --service-cluster-ip-range of the API server; empty for its default.
var serviceCIDRs string

// MainWithAllKinds is Main with every CRD; it takes longer.
func MainWithAllKinds(m *testing.M) { os.Exit(run(m, nil)) }

func run(m *testing.M, resources []string, allowed ...eventually.Allowed) int {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kubeovnv1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.Install(scheme))
	utilruntime.Must(v1alpha2.Install(scheme))
	utilruntime.Must(beta.AddToScheme(scheme))
	ctrl.SetLogger(funcr.New(func(_, args string) { fmt.Fprintln(os.Stderr, args) }, funcr.Options{Verbosity: -1})) // errors only
	server, err := apiserver.New(resources...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// As in some distributions: to set an owner reference that blocks the deletion of the owner, a client needs permission to update the
	// owner's finalizers.
	flags := server.ControlPlane.GetAPIServer().Configure()
	flags.Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	// Otherwise the API server writes the endpoints of its own Service again, up to ten seconds after a test has deleted them, during
	// another test.
	flags.Set("endpoint-reconciler-type", "none")
	if serviceCIDRs != "" {
		flags.Set("service-cluster-ip-range", serviceCIDRs)
	}
	return server.Run(func(started *rest.Config) int {
		config = started
		var err error
		if account, err = asController(context.Background(), config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		repeat = k8s.OnlyEvents()
		panics.Record()
		return golden.Check(panics.Code(eventually.Main(m, allowed...)))
	})
}

// repeat ends k8s.OnlyEvents.
var repeat func()

// Repeats lets controllers repeat failed passes until the test ends, for changes that cause no event: those of other systems to their own
// rows.
func (w *World) Repeats() {
	repeat()
	w.Cleanup(func() { repeat = k8s.OnlyEvents() })
}

// World is an empty cluster with an empty northbound database.
type World struct {
	*testing.T

	// Client reads and writes the API server as users do. Its requests are not counted.
	Client client.Client
	// Database is the northbound database.
	Database *nbtest.Server
	// Nodes are the names of the connected nodes.
	Nodes []string

	subnets   []*kubeovnv1.Subnet
	log       logr.Logger
	processes []*Process // in the order of their start
	differs   string     // see DiffersFromFresh
}

// New returns a world without objects from previous tests. It has the nodes n1 and n2.
func New(t *testing.T) *World {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &World{T: t, Client: c, Database: nbtest.Start(t), Nodes: []string{"n1", "n2"}, log: ctrl.Log}
	w.Clear()
	return w
}

// Logged makes processes that start later log decisions (verbosity 1). It returns a function that waits until a line has all of these texts.
func (w *World) Logged() (until func(texts ...string)) {
	var mu sync.Mutex
	var lines []string
	w.log = funcr.New(func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}, funcr.Options{Verbosity: 1})
	has := func(texts []string) func(string) bool {
		return func(line string) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
		}
	}
	return func(texts ...string) {
		w.Helper()
		w.Eventually(func() string {
			mu.Lock()
			defer mu.Unlock()
			if slices.ContainsFunc(lines, has(texts)) {
				return ""
			}
			return fmt.Sprintf("no line has %q:\n%s", texts, strings.Join(lines, "\n"))
		})
	}
}

// Clear deletes all objects that tests create, with or without finalizers.
func (w *World) Clear() {
	w.Helper()
	var namespaces corev1.NamespaceList
	w.Must(w.Client.List(w.Context(), &namespaces))
	for i := range namespaces.Items {
		ns := &namespaces.Items[i]
		in := client.InNamespace(ns.Name)
		w.Must(w.Client.DeleteAllOf(w.Context(), &corev1.Pod{}, in, client.GracePeriodSeconds(0)))
		w.Must(w.Client.DeleteAllOf(w.Context(), &appsv1.StatefulSet{}, in))
		w.Must(w.Client.DeleteAllOf(w.Context(), &discoveryv1.EndpointSlice{}, in))
		w.Must(w.Client.DeleteAllOf(w.Context(), &networkingv1.NetworkPolicy{}, in))
		// The API server recreates its own Service.
		others := client.MatchingFieldsSelector{Selector: fields.OneTermNotEqualSelector("metadata.name", "kubernetes")}
		w.Must(w.Client.DeleteAllOf(w.Context(), &corev1.Service{}, in, others))
		if len(ns.Annotations) > 0 {
			base := ns.DeepCopy()
			ns.Annotations = nil
			w.Must(w.Client.Patch(w.Context(), ns, client.MergeFrom(base)))
		}
	}
	lists := []client.ObjectList{&corev1.NodeList{}}
	for _, k := range slices.Backward(kubeovnv1.ImplementedKinds) { // Subnets and Vpcs last, because others use them
		lists = append(lists, k.List.DeepCopyObject().(client.ObjectList))
	}
	for _, list := range lists {
		w.Must(w.Client.List(w.Context(), list))
		w.Must(apimeta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			w.LetGo(o)
			return client.IgnoreNotFound(w.Client.Delete(w.Context(), o))
		}))
	}
}

// LetGo removes the finalizers of an object, as an impatient user does.
func (w *World) LetGo(o client.Object) {
	w.Helper()
	if len(o.GetFinalizers()) == 0 {
		return
	}
	base := o.DeepCopyObject().(client.Object)
	o.SetFinalizers(nil)
	w.Must(client.IgnoreNotFound(w.Client.Patch(w.Context(), o, client.MergeFrom(base))))
}

// Must fails the test if err is not nil.
func (w *World) Must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// Create creates objects.
func (w *World) Create(objects ...client.Object) {
	w.Helper()
	for _, o := range objects {
		w.Must(w.Client.Create(w.Context(), o))
	}
}

// Get reads an object again. It reports whether the object exists.
func (w *World) Get(o client.Object) bool {
	w.Helper()
	err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(o), o)
	w.Must(client.IgnoreNotFound(err))
	return err == nil
}

// Change patches an object with the changes that f makes.
func (w *World) Change(o client.Object, f func()) {
	w.Helper()
	base := o.DeepCopyObject().(client.Object)
	f()
	w.Must(w.Client.Patch(w.Context(), o, client.MergeFrom(base)))
}

// Delete deletes objects with a grace period of zero, because no kubelet runs.
func (w *World) Delete(objects ...client.Object) {
	w.Helper()
	for _, o := range objects {
		w.Must(w.Client.Delete(w.Context(), o, client.GracePeriodSeconds(0)))
	}
}

// Config returns the admin's config for the API server.
func Config() *rest.Config { return config }
