// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

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
)

// VipUse is how a pod uses a Vip: a combination of the bits below.
type VipUse uint8

// Ways to use a Vip.
const (
	VipOwn      VipUse = 1 << iota // has the addresses as its own, by annotation vip
	VipNamed                       // shares the addresses, by annotation aaps
	VipSelected                    // shares the addresses, because the Vip's selector matches the pod

	VipShared = VipNamed | VipSelected
)

// VipUser is a pod that uses a Vip.
type VipUser struct {
	Pod types.NamespacedName
	Use VipUse
	// Subnet of the pod's port; empty while the pod has no port. PortOwner is the owner of the port (kubeovnv1.PortOwner).
	Subnet    string
	PortOwner string
}

// Vips tracks which pods use which Vips, by the events of pods and Vips. An event of a pod reads its annotations, and its labels
// if a Vip selects pods of its namespace. A new selector is matched once with the pods of its namespace.
type Vips struct {
	reader client.Reader
	synced []toolscache.InformerSynced

	mu        sync.Mutex
	listeners []func(vip string, user VipUser)
	selectors map[string]map[string]labels.Selector // by namespace and Vip
	users     map[string]map[types.NamespacedName]VipUser
	uses      map[types.NamespacedName][]string // names of Vips; only for pods that use any
}

// NewVips adds its handlers to the informers. Call it once per cache.
func NewVips(ctx context.Context, informers cache.Informers, reader client.Reader) (*Vips, error) {
	v := &Vips{
		reader:    reader,
		selectors: map[string]map[string]labels.Selector{},
		users:     map[string]map[types.NamespacedName]VipUser{},
		uses:      map[types.NamespacedName][]string{},
	}
	for kind, handler := range map[client.Object]toolscache.ResourceEventHandler{
		&corev1.Pod{}: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { v.pod(o.(*corev1.Pod)) },
			UpdateFunc: func(_, o any) { v.pod(o.(*corev1.Pod)) },
			DeleteFunc: func(o any) { v.podGone(o) },
		},
		&kubeovnv1.Vip{}: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { v.vip(ctx, o.(*kubeovnv1.Vip)) },
			UpdateFunc: func(_, o any) { v.vip(ctx, o.(*kubeovnv1.Vip)) },
			DeleteFunc: func(o any) { v.vipGone(ctx, o) },
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
		v.synced = append(v.synced, registration.HasSynced)
	}
	return v, nil
}

// Wait blocks until the handlers have seen all pods and Vips that existed at the start.
func (v *Vips) Wait(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), v.synced...) {
		return errors.New("stopped before all pods and Vips were known")
	}
	return nil
}

// Notify registers f for changes in the use of Vips. user is the new state, or the last state of a user that no longer uses the
// Vip. f must not block.
func (v *Vips) Notify(f func(vip string, user VipUser)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listeners = append(slices.Clip(v.listeners), f)
}

// UsersOf returns the users of a Vip, sorted by pod.
func (v *Vips) UsersOf(vip string) []VipUser {
	v.mu.Lock()
	defer v.mu.Unlock()
	users := slices.Collect(maps.Values(v.users[vip]))
	slices.SortFunc(users, func(a, b VipUser) int { return strings.Compare(a.Pod.String(), b.Pod.String()) })
	return users
}

// SharedBy returns the sorted names of the Vips that a pod shares.
func (v *Vips) SharedBy(pod types.NamespacedName) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var names []string
	for _, vip := range v.uses[pod] {
		if v.users[vip][pod].Use&VipShared != 0 {
			names = append(names, vip)
		}
	}
	return names
}

// VipServes reports whether the pods of a namespace may use a Vip.
func VipServes(vip *kubeovnv1.Vip, namespace string) bool {
	return vip.Spec.Namespace == "" || vip.Spec.Namespace == namespace
}

// change is a change that listeners are notified of.
type change struct {
	vip  string
	user VipUser
}

func (v *Vips) pod(pod *corev1.Pod) {
	v.mu.Lock()
	changes := v.setPod(client.ObjectKeyFromObject(pod), v.usesOf(pod))
	listeners := v.listeners
	v.mu.Unlock()
	tell(listeners, changes)
}

func (v *Vips) podGone(o any) {
	key, err := toolscache.DeletionHandlingObjectToName(o)
	if err != nil {
		return
	}
	v.mu.Lock()
	changes := v.setPod(key.AsNamespacedName(), nil)
	listeners := v.listeners
	v.mu.Unlock()
	tell(listeners, changes)
}

func tell(listeners []func(string, VipUser), changes []change) {
	for _, c := range changes {
		for _, f := range listeners {
			f(c.vip, c.user)
		}
	}
}

// usesOf returns how a pod uses Vips; nil for nearly all pods. A pod that has ended uses none.
func (v *Vips) usesOf(pod *corev1.Pod) map[string]VipUser {
	own, named, selectors := pod.Annotations[keyVip], pod.Annotations[keyAAPs], v.selectors[pod.Namespace]
	if own == "" && named == "" && len(selectors) == 0 || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	uses := map[string]VipUser{}
	add := func(vip string, use VipUse) {
		if vip = strings.TrimSpace(vip); vip != "" {
			uses[vip] = VipUser{
				Pod: client.ObjectKeyFromObject(pod), Use: uses[vip].Use | use,
				Subnet: subnetWithPort(pod), PortOwner: kubeovnv1.PortOwner(pod),
			}
		}
	}
	add(own, VipOwn)
	if named != "" && !kubeovnv1.TooLong(named) {
		for _, name := range kubeovnv1.ParseAAPs(pod.Annotations) {
			add(name, VipNamed)
		}
	}
	for name, selector := range selectors {
		if selector.Matches(labels.Set(pod.Labels)) {
			add(name, VipSelected)
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

func (v *Vips) setPod(pod types.NamespacedName, uses map[string]VipUser) []change {
	before := v.uses[pod]
	if len(before) == 0 && len(uses) == 0 {
		return nil
	}
	var changes []change
	for _, vip := range before {
		if _, still := uses[vip]; !still {
			changes = append(changes, change{vip, v.users[vip][pod]})
			if delete(v.users[vip], pod); len(v.users[vip]) == 0 {
				delete(v.users, vip)
			}
		}
	}
	for vip, user := range uses {
		if v.users[vip][pod] == user {
			continue
		}
		if v.users[vip] == nil {
			v.users[vip] = map[types.NamespacedName]VipUser{}
		}
		v.users[vip][pod] = user
		changes = append(changes, change{vip, user})
	}
	if v.uses[pod] = slices.Sorted(maps.Keys(uses)); len(uses) == 0 {
		delete(v.uses, pod)
	}
	return changes
}

// vip tracks the selector of a Vip. An invalid selector changes nothing.
func (v *Vips) vip(ctx context.Context, vip *kubeovnv1.Vip) {
	selector, err := VipSelector(vip)
	if err == nil {
		v.setSelector(ctx, vip.Name, vip.Spec.Namespace, selector)
	}
}

func (v *Vips) vipGone(ctx context.Context, o any) {
	if key, err := toolscache.DeletionHandlingObjectToName(o); err == nil {
		v.setSelector(ctx, key.Name, "", nil)
	}
}

// VipSelector returns the selector of the pods that share a Vip without naming it; nil selects none.
func VipSelector(vip *kubeovnv1.Vip) (labels.Selector, error) {
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
func (v *Vips) setSelector(ctx context.Context, vip, namespace string, selector labels.Selector) {
	v.mu.Lock()
	touched := map[string]bool{}
	for ns, selectors := range v.selectors {
		if before, ok := selectors[vip]; ok && (selector == nil || ns != namespace || before.String() != selector.String()) {
			if delete(selectors, vip); len(selectors) == 0 {
				delete(v.selectors, ns)
			}
			touched[ns] = true
		}
	}
	if _, same := v.selectors[namespace][vip]; selector != nil && !same {
		if v.selectors[namespace] == nil {
			v.selectors[namespace] = map[string]labels.Selector{}
		}
		v.selectors[namespace][vip] = selector
		touched[namespace] = true
	}
	var changes []change
	for ns := range touched {
		var pods corev1.PodList
		if err := v.reader.List(ctx, &pods, client.InNamespace(ns), client.UnsafeDisableDeepCopy); err != nil {
			continue // the cache is stopping
		}
		for i := range pods.Items {
			changes = append(changes, v.setPod(client.ObjectKeyFromObject(&pods.Items[i]), v.usesOf(&pods.Items[i]))...)
		}
	}
	listeners := v.listeners
	v.mu.Unlock()
	tell(listeners, changes)
}
