// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

const (
	// indexSubnet finds namespaces by the subnets in their annotation, and by unserved if they have none.
	indexSubnet = "namespace.subnet"
	unserved    = ""
)

func subnetsOf(o client.Object) []string {
	return strings.Split(o.GetAnnotations()[kubeovnv1.AnnotationLogicalSwitch.Key()], ",")
}

// affected calls add for each namespace that one state of a Subnet or Vpc may affect.
type affected func(ctx context.Context, o client.Object, add func(namespace string)) error

// enqueue returns a handler that enqueues the namespaces that an object affects, both before and after a change of its spec.
func enqueue(of affected) handler.EventHandler {
	all := func(ctx context.Context, q k8s.Queue, states ...client.Object) {
		for _, o := range states {
			err := of(ctx, o, func(name string) { q.Add(k8s.Request(name)) })
			if err != nil {
				log.FromContext(ctx).Error(err, "cannot list the namespaces of an object", "name", o.GetName())
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q k8s.Queue) {
			all(ctx, q, e.Object)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q k8s.Queue) {
			all(ctx, q, e.Object)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() {
				all(ctx, q, e.ObjectOld, e.ObjectNew)
			}
		},
	}
}

// bySubnet adds the namespaces that the subnet names or selects, the namespaces with the subnet in their annotation, and the namespaces
// without a subnet.
func (r *Reconciler) bySubnet(ctx context.Context, o client.Object, add func(string)) error {
	s := o.(*kubeovnv1.Subnet)
	for _, name := range s.Spec.Namespaces {
		add(name)
	}
	options := [][]client.ListOption{{client.MatchingFields{indexSubnet: s.Name}}, {client.MatchingFields{indexSubnet: unserved}}}
	for i := range s.Spec.NamespaceSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s.Spec.NamespaceSelectors[i])
		if err != nil {
			continue // the subnet's condition reports it
		}
		options = append(options, []client.ListOption{client.MatchingLabelsSelector{Selector: selector}})
	}
	return r.addListed(ctx, add, options...)
}

// byVpc adds the namespaces that the VPC lists. For the default VPC, whose default subnet may serve any namespace, it adds all.
func (r *Reconciler) byVpc(ctx context.Context, o client.Object, add func(string)) error {
	vpc := o.(*kubeovnv1.Vpc)
	for _, name := range vpc.Spec.Namespaces {
		add(name)
	}
	if vpc.Name != kubeovnv1.DefaultVpc {
		return nil
	}
	return r.addListed(ctx, add, nil)
}

// byPool adds the namespaces of an IPPool.
func byPool(_ context.Context, o client.Object, add func(string)) error {
	for _, name := range o.(*kubeovnv1.IPPool).Spec.Namespaces {
		add(name)
	}
	return nil
}

func (r *Reconciler) addListed(ctx context.Context, add func(string), lists ...[]client.ListOption) error {
	for _, options := range lists {
		var namespaces corev1.NamespaceList
		if err := r.Client.List(ctx, &namespaces, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
			return err
		}
		for i := range namespaces.Items {
			add(namespaces.Items[i].Name)
		}
	}
	return nil
}
