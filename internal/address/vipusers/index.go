// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vipusers is an index of the pods that use Vips, updated by the events of both.
package vipusers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Use is how a pod uses a Vip: a combination of the bits below.
type Use uint8

// Ways to use a Vip.
const (
	Own      Use = 1 << iota // has the addresses as its own, by annotation vip
	Named                    // shares the addresses, by annotation aaps
	Selected                 // shares the addresses, because the Vip's selector matches the pod

	Shared = Named | Selected
)

// User is a pod that uses a Vip.
type User struct {
	Pod types.NamespacedName
	Use Use
	// Port of the pod, and its subnet, which is empty while the port is not published.
	Port   kubeovnv1.Port
	Subnet string
}

// Index tracks which pods use which Vips, by the events of pods and Vips. An event of a pod reads its annotations, and its labels
// if a Vip selects pods of its namespace. A new selector is matched once with the pods of its namespace.
type Index struct {
	reader client.Reader
	synced []toolscache.InformerSynced

	mu        sync.Mutex
	listeners []func(vip string, user User)
	selectors map[string]map[string]labels.Selector // by namespace and Vip
	users     map[string]map[types.NamespacedName]User
	uses      map[types.NamespacedName][]string // names of Vips; only for pods that use any
}

// New returns an Index and adds its handlers to the informers. Call it once per cache.
func New(ctx context.Context, informers cache.Informers, reader client.Reader) (*Index, error) {
	x := &Index{
		reader:    reader,
		selectors: map[string]map[string]labels.Selector{},
		users:     map[string]map[types.NamespacedName]User{},
		uses:      map[types.NamespacedName][]string{},
	}
	for kind, handler := range map[client.Object]toolscache.ResourceEventHandler{
		&corev1.Pod{}: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { x.pod(o.(*corev1.Pod)) },
			UpdateFunc: func(_, o any) { x.pod(o.(*corev1.Pod)) },
			DeleteFunc: func(o any) { x.podGone(o) },
		},
		&kubeovnv1.Vip{}: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { x.vip(ctx, o.(*kubeovnv1.Vip)) },
			UpdateFunc: func(_, o any) { x.vip(ctx, o.(*kubeovnv1.Vip)) },
			DeleteFunc: func(o any) { x.vipGone(ctx, o) },
		},
	} {
		informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", kind, err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("follow %T: %w", kind, err)
		}
		x.synced = append(x.synced, registration.HasSynced)
	}
	return x, nil
}

// Wait blocks until the handlers have seen all pods and Vips that existed at the start.
func (x *Index) Wait(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), x.synced...) {
		return errors.New("stopped before all pods and Vips were known")
	}
	return nil
}

// Notify registers f for changes in the use of Vips. user is the new state, or the last state of a user that no longer uses the
// Vip. f must not block.
func (x *Index) Notify(f func(vip string, user User)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.listeners = append(slices.Clip(x.listeners), f)
}

// UsersOf returns the users of a Vip, sorted by pod.
func (x *Index) UsersOf(vip string) []User {
	x.mu.Lock()
	defer x.mu.Unlock()
	users := slices.Collect(maps.Values(x.users[vip]))
	slices.SortFunc(users, func(a, b User) int { return strings.Compare(a.Pod.String(), b.Pod.String()) })
	return users
}

// SharedBy returns the sorted names of the Vips that a pod shares.
func (x *Index) SharedBy(pod types.NamespacedName) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var names []string
	for _, vip := range x.uses[pod] {
		if x.users[vip][pod].Use&Shared != 0 {
			names = append(names, vip)
		}
	}
	return names
}

// change is a change that listeners are notified of.
type change struct {
	vip  string
	user User
}

func (x *Index) pod(pod *corev1.Pod) {
	x.mu.Lock()
	changes := x.setPod(client.ObjectKeyFromObject(pod), x.usesOf(pod))
	listeners := x.listeners
	x.mu.Unlock()
	notify(listeners, changes)
}

func (x *Index) podGone(o any) {
	key, err := toolscache.DeletionHandlingObjectToName(o)
	if err != nil {
		return
	}
	x.mu.Lock()
	changes := x.setPod(key.AsNamespacedName(), nil)
	listeners := x.listeners
	x.mu.Unlock()
	notify(listeners, changes)
}

func notify(listeners []func(string, User), changes []change) {
	for _, c := range changes {
		for _, f := range listeners {
			f(c.vip, c.user)
		}
	}
}

// usesOf returns how a pod uses Vips; nil for nearly all pods. A mirror pod, or a pod that has ended, uses none.
func (x *Index) usesOf(pod *corev1.Pod) map[string]User {
	own, named, selectors := pod.Annotations[keyVip], pod.Annotations[keyAAPs], x.selectors[pod.Namespace]
	if own == "" && named == "" && len(selectors) == 0 || kubeovnv1.IsMirror(pod.Annotations) || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	uses := map[string]User{}
	add := func(vip string, use Use) {
		if vip = strings.TrimSpace(vip); vip != "" {
			uses[vip] = User{
				Pod: client.ObjectKeyFromObject(pod), Use: uses[vip].Use | use,
				Port: kubeovnv1.PortOf(pod, kubeovnv1.ProviderOVN), Subnet: subnetWithPort(pod),
			}
		}
	}
	add(own, Own)
	if named != "" && !kubeovnv1.TooLong(named) {
		for _, name := range kubeovnv1.ParseAAPs(pod.Annotations) {
			add(name, Named)
		}
	}
	for name, selector := range selectors {
		if selector.Matches(labels.Set(pod.Labels)) {
			add(name, Selected)
		}
	}
	return uses
}

// keyVip and keyAAPs are read in every event of a pod.
var keyVip, keyAAPs = kubeovnv1.AnnotationVip.Key(), kubeovnv1.AnnotationAAPs.Key()

// subnetWithPort returns the subnet of the pod's published port; empty if no port is published in its annotations.
func subnetWithPort(pod *corev1.Pod) string {
	if !kubeovnv1.IsPublished(pod) {
		return ""
	}
	return pod.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()]
}

func (x *Index) setPod(pod types.NamespacedName, uses map[string]User) []change {
	before := x.uses[pod]
	if len(before) == 0 && len(uses) == 0 {
		return nil
	}
	var changes []change
	for _, vip := range before {
		if _, still := uses[vip]; !still {
			changes = append(changes, change{vip, x.users[vip][pod]})
			if delete(x.users[vip], pod); len(x.users[vip]) == 0 {
				delete(x.users, vip)
			}
		}
	}
	for vip, user := range uses {
		if x.users[vip][pod] == user {
			continue
		}
		if x.users[vip] == nil {
			x.users[vip] = map[types.NamespacedName]User{}
		}
		x.users[vip][pod] = user
		changes = append(changes, change{vip, user})
	}
	if x.uses[pod] = slices.Sorted(maps.Keys(uses)); len(uses) == 0 {
		delete(x.uses, pod)
	}
	return changes
}

// vip tracks the selector in the applied spec of a Vip. An invalid selector changes nothing.
func (x *Index) vip(ctx context.Context, vip *kubeovnv1.Vip) {
	vip = k8s.AppliedVip(vip)
	selector, err := Selector(vip)
	if err == nil {
		x.setSelector(ctx, vip.Name, vip.Spec.Namespace, selector)
	}
}

func (x *Index) vipGone(ctx context.Context, o any) {
	if key, err := toolscache.DeletionHandlingObjectToName(o); err == nil {
		x.setSelector(ctx, key.Name, "", nil)
	}
}

// Selector returns the selector of the pods that share a Vip without naming it, by its current spec; nil selects none.
func Selector(vip *kubeovnv1.Vip) (labels.Selector, error) {
	if len(vip.Spec.Selector) == 0 || vip.Spec.Namespace == "" || vip.Spec.Type != "" || vip.DeletionTimestamp != nil {
		return nil, nil
	}
	set := labels.Set{}
	for _, item := range vip.Spec.Selector {
		key, value, _ := strings.Cut(item, ":")
		set[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	selector, err := labels.ValidatedSelectorFromSet(set)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	return selector, nil
}

// setSelector matches a changed selector with the pods of its namespace, and updates the pods that the previous one matched.
func (x *Index) setSelector(ctx context.Context, vip, namespace string, selector labels.Selector) {
	x.mu.Lock()
	touched := map[string]bool{}
	for ns, selectors := range x.selectors {
		if before, ok := selectors[vip]; ok && (selector == nil || ns != namespace || before.String() != selector.String()) {
			if delete(selectors, vip); len(selectors) == 0 {
				delete(x.selectors, ns)
			}
			touched[ns] = true
		}
	}
	if _, same := x.selectors[namespace][vip]; selector != nil && !same {
		if x.selectors[namespace] == nil {
			x.selectors[namespace] = map[string]labels.Selector{}
		}
		x.selectors[namespace][vip] = selector
		touched[namespace] = true
	}
	var changes []change
	for ns := range touched {
		var pods corev1.PodList
		if err := x.reader.List(ctx, &pods, client.InNamespace(ns), client.UnsafeDisableDeepCopy); err != nil {
			continue // the cache is stopping
		}
		for i := range pods.Items {
			changes = append(changes, x.setPod(client.ObjectKeyFromObject(&pods.Items[i]), x.usesOf(&pods.Items[i]))...)
		}
	}
	listeners := x.listeners
	x.mu.Unlock()
	notify(listeners, changes)
}
