// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

const kubevirtGroup = "kubevirt.io"

var (
	machineResource    = schema.GroupVersionResource{Group: kubevirtGroup, Version: "v1", Resource: "virtualmachines"}
	definitionResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// machines watches the names of KubeVirt's VirtualMachines while their CRD exists.
type machines struct {
	mu       sync.Mutex
	defined  toolscache.SharedIndexInformer // of the CRD alone; nil before it is watched
	informer toolscache.SharedIndexInformer // nil while the CRD does not exist
	stop     context.CancelFunc
}

// mayExist reports whether a machine exists and is not being deleted. It returns true while that is unknown.
func (m *machines) mayExist(key types.NamespacedName) bool {
	m.mu.Lock()
	defined, informer := m.defined, m.informer
	m.mu.Unlock()
	switch {
	case defined == nil || !defined.HasSynced():
		return true
	case informer == nil:
		return len(defined.GetStore().ListKeys()) > 0 // the CRD exists, and its event has not been handled yet
	case !informer.HasSynced():
		return true
	}
	o, exists, err := informer.GetStore().GetByKey(key.String())
	if err != nil {
		return true
	}
	vm, ok := o.(*metav1.PartialObjectMetadata)
	return exists && (!ok || vm.DeletionTimestamp == nil)
}

// FollowMachines enqueues the retained allocations of deleted machines. It watches machines as soon as their CRD exists.
func (k *Keeper) FollowMachines(c metadata.Interface) source.Source {
	return source.Func(func(ctx context.Context, q k8s.Queue) error {
		if !k.KeepMachines {
			return nil
		}
		m := &k.machines
		defined := metadatainformer.NewFilteredMetadataInformer(c, definitionResource, metav1.NamespaceAll, 0, toolscache.Indexers{},
			func(o *metav1.ListOptions) {
				o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, machineResource.GroupResource().String()).String()
			}).Informer()
		registration, err := defined.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { k.watchMachines(ctx, c, q) },
			DeleteFunc: func(any) { m.forget(); k.enqueueRetained(q) },
		})
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.defined = defined
		m.mu.Unlock()
		go defined.RunWithContext(ctx)
		if toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			k.enqueueRetained(q) // the machines may have been deleted together with their CRD
		}
		return nil
	})
}

// watchMachines starts the informer of machines, and enqueues all their retained allocations once it has synced.
func (k *Keeper) watchMachines(ctx context.Context, c metadata.Interface, q k8s.Queue) {
	ctx, stop := context.WithCancel(ctx)
	informer := metadatainformer.NewFilteredMetadataInformer(c, machineResource, metav1.NamespaceAll, 0, toolscache.Indexers{}, nil).Informer()
	look := func(o any) {
		name, err := toolscache.DeletionHandlingObjectToName(o)
		if err != nil {
			return
		}
		if k.IsAbsent(kubeovnv1.NewPort(name.Namespace, name.Name, kubeovnv1.ProviderOVN).Name) {
			q.Add(ctrl.Request{NamespacedName: name.AsNamespacedName()})
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, o any) { look(o) },
		DeleteFunc: look,
	})
	if err != nil {
		stop()
		return
	}
	k.machines.mu.Lock()
	k.machines.informer, k.machines.stop = informer, stop
	k.machines.mu.Unlock()
	go informer.RunWithContext(ctx)
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			k.enqueueRetained(q)
		}
	}()
}

// forget stops the informer of machines after their CRD was deleted.
func (m *machines) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stop != nil {
		m.stop()
	}
	m.informer, m.stop = nil, nil
}

// enqueueRetained enqueues all retained allocations of machines.
func (k *Keeper) enqueueRetained(q k8s.Queue) {
	for _, key := range k.states.ofType(kubeovnv1.PodTypeVirtualMachine) {
		q.Add(ctrl.Request{NamespacedName: key})
	}
}

// ordinals is the half-open range [first, end) of a StatefulSet's ordinals.
type ordinals struct{ first, end int }

func ordinalsOf(set *appsv1.StatefulSet) ordinals {
	o := ordinals{}
	if set.Spec.Ordinals != nil {
		o.first = int(set.Spec.Ordinals.Start)
	}
	o.end = o.first + 1
	if set.Spec.Replicas != nil {
		o.end = o.first + int(*set.Spec.Replicas)
	}
	return o
}

// OnStatefulSet enqueues absent pods if their StatefulSet may not recreate them.
func (k *Keeper) OnStatefulSet() handler.EventHandler {
	away := func(o client.Object, q k8s.Queue) {
		for _, key := range k.states.ofSet(client.ObjectKeyFromObject(o)) {
			q.Add(ctrl.Request{NamespacedName: key})
		}
	}
	return handler.Funcs{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q k8s.Queue) {
			before, after := e.ObjectOld.(*appsv1.StatefulSet), e.ObjectNew.(*appsv1.StatefulSet)
			if ordinalsOf(before) != ordinalsOf(after) || before.DeletionTimestamp == nil != (after.DeletionTimestamp == nil) {
				away(after, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q k8s.Queue) { away(e.Object, q) },
	}
}
