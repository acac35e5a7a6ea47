// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// IndexPodSubnet finds pods by the subnet in their annotations.
const IndexPodSubnet = "lookup.podSubnet"

const (
	// maxPlaces is the number of namespaces that a message of the condition PodsPlaced names.
	maxPlaces = 5
	// placementDelay batches events of pods that leave the default subnet: the message has their number.
	placementDelay = time.Second
)

func podSubnet(o client.Object) []string {
	if subnet := o.GetAnnotations()[kubeovnv1.AnnotationLogicalSwitch.Key()]; subnet != "" {
		return []string{subnet}
	}
	return nil
}

// Placed returns the condition PodsPlaced of an object that binds namespaces to other subnets than the default one. It is False while pods of these
// namespaces, which existed before the object, have addresses of the default subnet. Pods in further subnets do not count: their annotations may
// request them. It also names the namespaces that do not exist.
func (n *Namespaces) Placed(ctx context.Context, namespaces []string) (metav1.Condition, error) {
	c := metav1.Condition{
		Type: kubeovnv1.ConditionPodsPlaced, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonPlaced, Message: "no pod of its namespaces is in " + kubeovnv1.DefaultSubnet,
	}
	var places, missing []string
	count := 0
	for _, name := range namespaces {
		ns, err := k8s.Find[corev1.Namespace](ctx, n.reader, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return c, fmt.Errorf("get namespace %s: %w", name, err)
		}
		if ns == nil {
			missing = append(missing, name)
			continue
		}
		pods, err := n.misplaced(ctx, ns)
		if err != nil {
			return c, err
		}
		if pods > 0 {
			count += pods
			places = append(places, name)
		}
	}
	switch {
	case count > 0:
		c.Status, c.Reason = metav1.ConditionFalse, kubeovnv1.ReasonPodsElsewhere
		c.Message = fmt.Sprintf("%d pods of namespaces %s have addresses of subnet %s, because they existed before: create them again", count,
			k8s.Some(places, maxPlaces), kubeovnv1.DefaultSubnet)
	case len(missing) > 0:
		c.Reason = kubeovnv1.ReasonNamespacesMissing
		c.Message = fmt.Sprintf("namespaces %s do not exist: create them, or correct the names", k8s.Some(missing, maxPlaces))
	}
	return c, nil
}

// misplaced returns the number of pods of a namespace in the default subnet, 0 if that subnet serves the namespace.
func (n *Namespaces) misplaced(ctx context.Context, ns *corev1.Namespace) (int, error) {
	var list corev1.PodList
	err := n.reader.List(ctx, &list, client.InNamespace(ns.Name), client.MatchingFields{IndexPodSubnet: kubeovnv1.DefaultSubnet}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, fmt.Errorf("list pods of namespace %s: %w", ns.Name, err)
	}
	count := 0
	for i := range list.Items {
		if !finished(&list.Items[i]) {
			count++
		}
	}
	if count == 0 {
		return 0, nil
	}
	subnets, err := n.Subnets(ctx, ns)
	if err != nil || slices.Contains(subnets, kubeovnv1.DefaultSubnet) {
		return 0, err
	}
	return count, nil
}

// OnMisplaced enqueues, a little later, the objects for a namespace with a pod that has left the default subnet, or has come to it, although other
// subnets serve the namespace. Events of other pods cost a lookup at most.
func (n *Namespaces) OnMisplaced(objects func(ctx context.Context, namespace string) []string) handler.EventHandler {
	enqueue := func(ctx context.Context, pod client.Object, q k8s.Queue) {
		if !slices.Contains(podSubnet(pod), kubeovnv1.DefaultSubnet) {
			return
		}
		ns, err := k8s.Find[corev1.Namespace](ctx, n.reader, client.ObjectKey{Name: pod.GetNamespace()}, client.UnsafeDisableDeepCopy)
		if err != nil || ns == nil {
			return // the cache is stopping, or the namespace's own event follows
		}
		if subnets, err := n.Subnets(ctx, ns); err != nil || slices.Contains(subnets, kubeovnv1.DefaultSubnet) {
			return
		}
		for _, name := range objects(ctx, ns.Name) {
			q.AddAfter(k8s.Request(name), placementDelay)
		}
	}
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			if !slices.Equal(podSubnet(e.ObjectOld), podSubnet(e.ObjectNew)) || finished(e.ObjectOld) != finished(e.ObjectNew) {
				enqueue(ctx, e.ObjectOld, q)
				enqueue(ctx, e.ObjectNew, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q k8s.Queue) { enqueue(ctx, e.Object, q) },
	}
}

func finished(o client.Object) bool {
	pod, ok := o.(*corev1.Pod)
	return ok && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed)
}

// Naming returns the names of the subnets that name a namespace, and of subnets with namespaceSelectors, which may select it.
func (n *Namespaces) Naming(ctx context.Context, namespace string) ([]string, error) {
	var names []string
	for _, key := range []string{namespace, anySelector} {
		var list kubeovnv1.SubnetList
		if err := n.reader.List(ctx, &list, client.MatchingFields{indexBoundNamespaces: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list subnets of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
	}
	return names, nil
}
