// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/speaker/routes"
	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// key is an object that changed, or a change of the sessions.
type key struct {
	kind string
	types.NamespacedName
}

// sessions is the kind of the key for the settings of sessions.
const sessions = "sessions"

// kind is how the table follows the objects of a kind.
type kind struct {
	name   string
	object func() client.Object
	set    func(*routes.Table, client.Object)
	delete func(*routes.Table, types.NamespacedName)
}

// kinds are the inputs of the table.
var kinds = []kind{
	{
		"Node", func() client.Object { return &corev1.Node{} },
		func(t *routes.Table, o client.Object) { t.SetNode(o.(*corev1.Node)) },
		func(t *routes.Table, k types.NamespacedName) { t.DeleteNode(k.Name) },
	},
	{
		"Subnet", func() client.Object { return &kubeovnv1.Subnet{} },
		func(t *routes.Table, o client.Object) { t.SetSubnet(o.(*kubeovnv1.Subnet)) },
		func(t *routes.Table, k types.NamespacedName) { t.DeleteSubnet(k.Name) },
	},
	{
		"Pod", func() client.Object { return &corev1.Pod{} },
		func(t *routes.Table, o client.Object) { t.SetPod(o.(*corev1.Pod)) },
		(*routes.Table).DeletePod,
	},
	{
		"EndpointSlice", func() client.Object { return &discoveryv1.EndpointSlice{} },
		func(t *routes.Table, o client.Object) { t.SetSlice(o.(*discoveryv1.EndpointSlice)) },
		(*routes.Table).DeleteSlice,
	},
	{
		"Service", func() client.Object { return &corev1.Service{} },
		func(t *routes.Table, o client.Object) { t.SetService(o.(*corev1.Service)) },
		(*routes.Table).DeleteService,
	},
	{
		"EgressAddress", func() client.Object { return &kubeovnv1.EgressAddress{} },
		func(t *routes.Table, o client.Object) { t.SetEgress(o.(*kubeovnv1.EgressAddress)) },
		func(t *routes.Table, k types.NamespacedName) { t.DeleteEgress(k.Name) },
	},
	{
		"OvnEip", func() client.Object { return &kubeovnv1.OvnEip{} },
		func(t *routes.Table, o client.Object) { t.SetEip(o.(*kubeovnv1.OvnEip)) },
		func(t *routes.Table, k types.NamespacedName) { t.DeleteEip(k.Name) },
	},
}

// settings returns the parts of spec.speaker that the table depends on.
func settings(spec *v1alpha1.Speaker, pools []v1alpha1.LoadBalancerPool) routes.Settings {
	if spec == nil {
		return routes.Settings{}
	}
	s := routes.Settings{Namespaces: spec.Namespaces, Nodes: spec.Selector(), MaxPrefixes: int(spec.MaxPrefixesPerNamespace)}
	for i := range pools {
		if pools[i].Announcement == v1alpha1.AnnounceAlways {
			s.Classes = append(s.Classes, pools[i].Class)
		}
	}
	for _, p := range spec.Peers {
		if a, err := netip.ParseAddr(p.Address); err == nil {
			s.Peers = append(s.Peers, a.Unmap())
		}
	}
	return s
}

// update reads one object from the cache into the table.
func (r *Reconciler) update(ctx context.Context, k key) error {
	for _, kind := range kinds {
		if kind.name != k.kind {
			continue
		}
		o := kind.object()
		err := r.Client.Get(ctx, k.NamespacedName, o)
		switch {
		case apierrors.IsNotFound(err):
			kind.delete(r.table, k.NamespacedName)
		case err != nil:
			return fmt.Errorf("read %s %s: %w", k.kind, k.NamespacedName, err)
		default:
			kind.set(r.table, o)
		}
	}
	return nil
}

// load reads all objects from the cache into the table.
func (r *Reconciler) load(ctx context.Context) error {
	var nodes corev1.NodeList
	var subnets kubeovnv1.SubnetList
	var pods corev1.PodList
	var endpoints discoveryv1.EndpointSliceList
	var services corev1.ServiceList
	var egresses kubeovnv1.EgressAddressList
	var eips kubeovnv1.OvnEipList
	for _, list := range []client.ObjectList{&nodes, &subnets, &pods, &endpoints, &services, &egresses, &eips} {
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	for i := range nodes.Items {
		r.table.SetNode(&nodes.Items[i])
	}
	for i := range subnets.Items {
		r.table.SetSubnet(&subnets.Items[i])
	}
	for i := range pods.Items {
		r.table.SetPod(&pods.Items[i])
	}
	for i := range endpoints.Items {
		r.table.SetSlice(&endpoints.Items[i])
	}
	for i := range services.Items {
		r.table.SetService(&services.Items[i])
	}
	for i := range egresses.Items {
		r.table.SetEgress(&egresses.Items[i])
	}
	for i := range eips.Items {
		r.table.SetEip(&eips.Items[i])
	}
	return nil
}

// trim removes from objects what the table does not use, so that the cache is small.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Node:
		meta := trimmedMeta(o, nil)
		meta.Labels = o.Labels
		return &corev1.Node{
			TypeMeta: o.TypeMeta, ObjectMeta: meta, Spec: corev1.NodeSpec{Unschedulable: o.Spec.Unschedulable},
			Status: corev1.NodeStatus{Addresses: o.Status.Addresses, Conditions: slices.DeleteFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type != corev1.NodeReady && c.Type != corev1.NodeNetworkUnavailable
			})},
		}, nil
	case *corev1.Pod:
		annotations := map[string]string{}
		for k, v := range o.Annotations {
			if podKeys[k] {
				annotations[k] = v
			}
		}
		return &corev1.Pod{
			TypeMeta: o.TypeMeta, ObjectMeta: trimmedMeta(o, annotations),
			Spec:   corev1.PodSpec{NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork},
			Status: corev1.PodStatus{Phase: o.Status.Phase},
		}, nil
	case *discoveryv1.EndpointSlice:
		o.ObjectMeta = trimmedMeta(o, nil)
		o.Ports = nil
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			trimmed := discoveryv1.Endpoint{Conditions: e.Conditions, NodeName: e.NodeName}
			if routes.IsOfAPIServer(o) {
				trimmed.Addresses = e.Addresses
			}
			o.Endpoints[i] = trimmed
		}
	case *kubeovnv1.OvnEip:
		o.ManagedFields, o.Status.Conditions, o.Status.Releasing = nil, nil, nil
	case client.Object:
		o.SetManagedFields(nil)
	}
	return object, nil
}

// podKeys are the annotations of pods that the table reads.
var podKeys = func() map[string]bool {
	keys := map[string]bool{corev1.MirrorPodAnnotationKey: true}
	for _, a := range []kubeovnv1.Annotation{
		kubeovnv1.AnnotationBGP, kubeovnv1.AnnotationPodUID, kubeovnv1.AnnotationAllocated, kubeovnv1.AnnotationIPAddress,
		kubeovnv1.AnnotationLogicalSwitch, kubeovnv1.AnnotationLogicalRouter,
	} {
		keys[a.Key()] = true
	}
	return keys
}()

func trimmedMeta(o client.Object, annotations map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		CreationTimestamp: o.GetCreationTimestamp(), DeletionTimestamp: o.GetDeletionTimestamp(), Labels: serviceLabel(o), Annotations: annotations,
	}
}

// serviceLabel returns the label of an EndpointSlice with the name of its Service.
func serviceLabel(o client.Object) map[string]string {
	if name := o.GetLabels()[discoveryv1.LabelServiceName]; name != "" {
		return map[string]string{discoveryv1.LabelServiceName: name}
	}
	return nil
}
