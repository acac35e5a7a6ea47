// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package unimplemented_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/unimplemented"
)

func TestMain(m *testing.M) { controllertest.MainWithAllKinds(m) }

// specs are the required fields of each kind.
var specs = map[string]map[string]any{
	"DNSNameResolver": {"name": "example.com."},
	"VpcEgressGateway": {
		"externalSubnet": "none", "policies": []any{map[string]any{"subnets": []any{"none"}}},
	},
}

func start(t *testing.T) *controllertest.World {
	w := controllertest.New(t)
	w.Start(controllertest.Steps{Setup: func(ctx context.Context, p *controllertest.Process) error {
		return (&unimplemented.Reconciler{Client: p.Client, Recorder: p.Recorder}).SetupWithManager(ctx, p.Manager)
	}})
	return w
}

func newObject(kind *kubeovnv1.Kind) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	if spec := specs[kind.Kind]; spec != nil {
		o.Object["spec"] = spec
	}
	o.SetGroupVersionKind(kubeovnv1.GroupVersion.WithKind(kind.Kind))
	o.SetName("mine")
	if kind.Namespaced {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	return o
}

// state returns the condition Ready and the field ready of an object as text.
func state(w *controllertest.World, o *unstructured.Unstructured) string {
	if !w.Get(o) {
		return "gone"
	}
	var text []string
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		c := c.(map[string]any)
		text = append(text, strings.Join([]string{c["type"].(string), c["status"].(string), c["reason"].(string), c["message"].(string)}, " "))
	}
	if ready, ok, _ := unstructured.NestedBool(o.Object, "status", "ready"); ok {
		text = append(text, map[bool]string{true: "ready", false: "not ready"}[ready])
	}
	return strings.Join(text, ", ")
}

func TestObjectsOfEachKindSayThatTheyHaveNoEffect(t *testing.T) {
	w := start(t)
	for _, kind := range kubeovnv1.UnimplementedKinds {
		t.Run(kind.Kind, func(t *testing.T) {
			o := newObject(kind)
			o.SetFinalizers([]string{"kubeovn.io/kube-ovn-controller", "kube-ovn-controller", "example.com/other"})
			w.Create(o)
			want := "Ready False NotImplemented this version of Kiln does not implement the kind " + kind.Kind + ": the object has no effect"
			if kind.StatusReady {
				want += ", not ready"
			}
			w.Eventually(func() string {
				if got := state(w, o); got != want {
					return "status: " + got
				}
				return ""
			})
			w.Event(o, eventsv1.Event{Reason: "NotImplemented", Type: "Warning"})

			w.Delete(o)
			w.Eventually(func() string {
				if !w.Get(o) || !slices.Equal(o.GetFinalizers(), []string{"example.com/other"}) {
					return "finalizers: " + strings.Join(o.GetFinalizers(), ", ")
				}
				return ""
			})
			w.Change(o, func() { o.SetFinalizers(nil) })
			w.Gone(o)
		})
	}
}

// A status that Kube-OVN wrote no longer holds.
func TestTheStatusOfKubeOVNIsReplaced(t *testing.T) {
	w := start(t)
	o := newObject(&kubeovnv1.Kind{Kind: "IptablesEIP"})
	w.Create(o)
	want := state(w, o)
	w.Eventually(func() string {
		if want = state(w, o); want == "" {
			return "no status"
		}
		return ""
	})
	o.Object["status"] = map[string]any{"ready": true, "conditions": []any{
		map[string]any{"type": "Ready", "status": "True", "reason": "", "message": "", "lastUpdateTime": "2026-01-01T00:00:00Z"},
		map[string]any{"type": "Validated", "status": "True", "reason": "", "message": ""},
	}}
	w.Must(w.Client.Status().Update(t.Context(), o))
	w.Eventually(func() string {
		if got := state(w, o); got != want {
			return "status: " + got
		}
		return ""
	})
	w.Delete(o)
	w.Gone(o)
}

// After a rollback of the operator, the controller may run for a while without its rights on these kinds.
func TestKindsThatCannotBeReadAreSkipped(t *testing.T) {
	w := controllertest.New(t)
	account := rest.CopyConfig(controllertest.Config())
	account.Impersonate = rest.ImpersonationConfig{UserName: "nobody", Groups: []string{"system:authenticated"}}
	mgr, err := ctrl.NewManager(account, ctrl.Options{Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{
		SkipNameValidation: new(true), CacheSyncTimeout: time.Second,
	}})
	w.Must(err)
	w.Must((&unimplemented.Reconciler{Client: mgr.GetClient()}).SetupWithManager(t.Context(), mgr))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	select {
	case err := <-ended:
		t.Errorf("the manager ended: %v", err)
	case <-time.After(3 * time.Second): // longer than CacheSyncTimeout
		cancel()
		w.Must(<-ended)
	}
	cancel()
}
