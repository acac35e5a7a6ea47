// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
)

// busyClient calls a function after each list.
type busyClient struct {
	client.Client
	after func(client.ObjectList)
}

func (c busyClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := c.Client.List(ctx, list, options...)
	c.after(list)
	return err
}

// TestWhatHappensDuringTheStartIsKept: events that arrive only once, while the index is filled, are not lost.
func TestWhatHappensDuringTheStartIsKept(t *testing.T) {
	w := newWorld(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "start-" + rand.String(8), Labels: map[string]string{"team": "a"}}}
	w.Create(namespace)
	onHost := func(name, node string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: name},
			Spec:       corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		w.Create(p)
		return p
	}
	_, goes := onHost("stays", "n1"), onHost("goes", "n2")
	sets := podset.New()
	relabel := func(team string) (event func()) {
		w.Change(namespace, func() { namespace.Labels["team"] = team })
		labels := maps.Clone(namespace.Labels)
		return func() { sets.SetNamespace(namespace.Name, labels) }
	}
	done := make(chan struct{})
	c := busyClient{Client: w.Client, after: func(list client.ObjectList) {
		switch list.(type) {
		case *networkingv1.NetworkPolicyList:
			relabel("b")()
			w.Delete(goes)
			sets.DeletePod(podset.KeyOf(goes, kubeovnv1.ProviderOVN), goes.UID)
		case *corev1.PodList:
			event := relabel("c")
			go func() {
				defer close(done)
				event()
			}()
		}
	}}
	w.Must((&policy.Reconciler{Client: c, Sets: sets}).Restore(t.Context()))
	<-done
	selector := podset.Selector{Role: podset.Peers, Namespaces: "team=c"}
	sets.Use(translate.NetworkPolicyOwner("default", "web"), []podset.Selector{selector})
	if nodes := sets.HostNodes(selector)[0]; !slices.Equal(nodes, []string{"n1"}) {
		t.Errorf("host-network pods of the namespace are on %v", nodes)
	}
}
