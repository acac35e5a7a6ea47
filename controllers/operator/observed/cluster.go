// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package observed has the nodes and pods that a pass of the operator sees, and why they do not serve. The values do not change during a pass.
package observed

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/workload"
)

// Cluster has the nodes of the cluster and the pods of Kiln at one time.
type Cluster struct {
	Now time.Time
	// Nodes are the nodes that run Linux, sorted by name. Foreign are all others; they have no network of Kiln.
	Nodes, Foreign []corev1.Node
	// Pods are sorted by name.
	Pods []corev1.Pod
}

// Read reads the nodes, and the pods of Kiln in a namespace.
func Read(ctx context.Context, reader client.Reader, namespace string, now time.Time) (*Cluster, error) {
	var nodes corev1.NodeList
	if err := reader.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.PartOfLabel: v1alpha1.PartOf}); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	// Lists from the cache are unordered, and the status must not depend on the order.
	slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	c := &Cluster{Now: now, Pods: slices.DeleteFunc(pods.Items, leftBehind)}
	for _, n := range nodes.Items {
		if n.Labels[corev1.LabelOSStable] == string(corev1.Linux) {
			c.Nodes = append(c.Nodes, n)
		} else {
			c.Foreign = append(c.Foreign, n)
		}
	}
	return c, nil
}

// leftBehind reports whether a pod has ended and its Deployment has replaced it. A kubelet leaves such pods when its node
// shuts down or lacks resources, and they stay until they are deleted.
func leftBehind(pod corev1.Pod) bool {
	owner := metav1.GetControllerOf(&pod)
	return owner != nil && owner.Kind == "ReplicaSet" && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded)
}

// Node returns the Linux node with this name, or nil.
func (c *Cluster) Node(name string) *corev1.Node {
	at, found := sort.Find(len(c.Nodes), func(i int) int { return cmp.Compare(name, c.Nodes[i].Name) })
	if !found {
		return nil
	}
	return &c.Nodes[at]
}

// NodeNames returns the names of all nodes.
func (c *Cluster) NodeNames() sets.Set[string] {
	names := sets.New[string]()
	for _, nodes := range [][]corev1.Node{c.Nodes, c.Foreign} {
		for i := range nodes {
			names.Insert(nodes[i].Name)
		}
	}
	return names
}

// PodsOf returns the pods of one workload.
func (c *Cluster) PodsOf(component string) []*corev1.Pod {
	var all []*corev1.Pod
	for i := range c.Pods {
		if c.Pods[i].Labels[v1alpha1.ComponentLabel] == component {
			all = append(all, &c.Pods[i])
		}
	}
	return all
}

// Matching returns the nodes of a placement, in any state.
func (c *Cluster) Matching(placement v1alpha1.Placement) (nodes []*corev1.Node) {
	selector := placement.Selector()
	for i := range c.Nodes {
		if selector.Matches(labels.Set(c.Nodes[i].Labels)) {
			nodes = append(nodes, &c.Nodes[i])
		}
	}
	return nodes
}

// Usable returns those nodes on which a new pod with these tolerations can start now.
func Usable(nodes []*corev1.Node, tolerations []corev1.Toleration) (usable []*corev1.Node) {
	for _, n := range nodes {
		excluded := slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return excludes(taint, tolerations) })
		if Answers(n) && n.DeletionTimestamp.IsZero() && !n.Spec.Unschedulable && len(k8s.InternalIPs(n)) > 0 && !excluded {
			usable = append(usable, n)
		}
	}
	return usable
}

// excludes reports whether a taint keeps a pod with these tolerations from a node.
func excludes(taint corev1.Taint, tolerations []corev1.Toleration) bool {
	return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
		!slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(logr.Discard(), &taint, false) })
}

// Silent reports whether a node exists and its kubelet does not answer.
func Silent(n *corev1.Node) bool { return n != nil && !Answers(n) }

// Answers reports whether the node's kubelet posts its status. It accepts nodes that are not ready, because no node is
// ready before its network works.
func Answers(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionUnknown
		}
	}
	return false
}

// Workload returns the workload of an operand as the pass applied it, or from the cache. It returns nil if there is none.
func Workload(ctx context.Context, objects *workload.Set, namespace, operand string) (client.Object, error) {
	return objects.Workload(ctx, render.OperandOf(operand).Kind, client.ObjectKey{Namespace: namespace, Name: operand})
}
