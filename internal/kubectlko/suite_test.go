// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
	"github.com/kiln-net/kiln/internal/trace/reader"
)

// world is an API server with an OVNCluster. Programs in pods are tested by the end-to-end suite: there is no kubelet here.
type world struct {
	*testing.T
	objects    client.WithWatch
	kubeconfig string
}

// shared is the API server of the tests, from the first one that needs it until the last one has ended.
var shared *apiserver.Server

// newWorld returns a world whose API server has an OVNCluster. When the test ends, it deletes objects of the kinds that tests create.
func newWorld(t *testing.T) *world {
	t.Helper()
	if shared == nil {
		env, err := apiserver.New()
		if err == nil {
			_, err = env.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		shared = env
	}
	w := useWorld(t, shared)
	must.Succeed(w, w.objects.Create(t.Context(), &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}))
	t.Cleanup(func() {
		ctx := context.Background() // that of the test has ended
		for _, o := range []client.Object{&v1alpha1.OVNCluster{}, &kubeovnv1.Vlan{}, &corev1.Node{}} {
			must.Succeed(w, w.objects.DeleteAllOf(ctx, o))
		}
		for _, namespace := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
			must.Succeed(w, w.objects.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0)))
		}
	})
	return w
}

func useWorld(t *testing.T, env *apiserver.Server) *world {
	t.Helper()
	w := &world{T: t, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	must.Succeed(w, os.WriteFile(w.kubeconfig, env.KubeConfig, 0o600))
	scheme, err := reader.Scheme()
	must.Succeed(w, err)
	w.objects, err = client.NewWithWatch(env.Config, client.Options{Scheme: scheme})
	must.Succeed(w, err)
	return w
}

// ko runs `kubectl ko`.
func (w *world) ko(args ...string) (said string, err error) {
	w.Helper()
	out := &bytes.Buffer{}
	cmd := NewCommand(strings.NewReader(""), out, out)
	cmd.SetArgs(append([]string{"--kubeconfig=" + w.kubeconfig}, args...))
	err = cmd.ExecuteContext(w.Context())
	return out.String(), err
}

// operate changes the status like the operator, at each change of the spec.
func (w *world) operate(report func(oc *v1alpha1.OVNCluster)) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	watch, err := w.objects.Watch(ctx, &v1alpha1.OVNClusterList{})
	must.Succeed(w, err)
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
