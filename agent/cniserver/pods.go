// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// eventTimeout bounds the request for the events that explain why a pod has no address.
const eventTimeout = 2 * time.Second

// Pods caches the metadata of this node's pods from a watch and wakes requests that wait for a pod.
type Pods struct {
	cache  client.Reader
	api    client.Reader
	synced func() bool

	mu      sync.Mutex
	waiting map[types.NamespacedName][]chan struct{}
}

// PodMetadata is the type under which pods are watched.
func PodMetadata() *metav1.PartialObjectMetadata {
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return pod
}

// NewPods watches pods and subnets through c, which must be limited to the pods of this node; api reads from the API server itself.
func NewPods(ctx context.Context, c cache.Cache, api client.Reader) (*Pods, error) {
	if err := c.IndexField(ctx, PodMetadata(), indexSubnets, subnetsOf); err != nil {
		return nil, fmt.Errorf("index pods by subnet: %w", err)
	}
	informer, err := c.GetInformer(ctx, PodMetadata(), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	p := &Pods{cache: c, api: api, waiting: map[types.NamespacedName][]chan struct{}{}}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    p.wake,
		UpdateFunc: func(_, pod any) { p.wake(pod) },
		DeleteFunc: p.wake,
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	p.synced = registration.HasSynced
	if err := p.followSubnets(ctx, c); err != nil {
		return nil, err
	}
	return p, nil
}

// Synced reports whether the watch has delivered every existing pod of the node.
func (p *Pods) Synced() bool { return p.synced() }

func (p *Pods) wake(object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	pod, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	tell(p.waiting[client.ObjectKeyFromObject(pod)])
}

func (p *Pods) watch(key types.NamespacedName) (<-chan struct{}, func()) {
	changed := make(chan struct{}, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[key] = append(p.waiting[key], changed)
	return changed, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		rest := slices.DeleteFunc(p.waiting[key], func(c chan struct{}) bool { return c == changed })
		if len(rest) == 0 {
			delete(p.waiting, key)
			return
		}
		p.waiting[key] = rest
	}
}

// Exists reports whether this node has the pod of that UID, or a pod of any UID if uid is empty. The result is valid only after Synced.
func (p *Pods) Exists(ctx context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
	pod, err := p.get(ctx, key)
	if pod == nil {
		return false, err
	}
	return isPod(pod, uid), nil
}

// isPod reports whether a pod has that UID; an empty uid matches every pod. For a static pod, the kubelet passes the UID of its own pod
// to the runtime. The mirror pod in the API server has another UID and names the kubelet's in an annotation.
func isPod(pod *metav1.PartialObjectMetadata, uid types.UID) bool {
	return uid == "" || pod.UID == uid || pod.Annotations[corev1.MirrorPodAnnotationKey] == string(uid)
}

func (p *Pods) get(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	pod := PodMetadata()
	switch err := p.cache.Get(ctx, key, pod); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read pod %s: %w", key, err)
	}
	return pod, nil
}

// ofUID returns the pod of that UID on this node; nil if there is none. It reads all pods of the node.
func (p *Pods) ofUID(ctx context.Context, uid types.UID) (*metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := p.cache.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].UID == uid {
			pod := PodMetadata()
			list.Items[i].DeepCopyInto(pod)
			pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
			return pod, nil
		}
	}
	return nil, nil
}

// podDeletedError is the error of an ADD whose pod was deleted before the ADD finished. It needs no action.
type podDeletedError string

func (e podDeletedError) Error() string { return string(e) }

// Wait returns the pod of that UID (of any, if uid is empty) and its network of a provider as soon as the controller has allocated it;
// the watch wakes it. Otherwise it returns an error that names the missing part when ctx ends. It returns at once if the pod is deleted
// or has a deletion timestamp: the kubelet stops a pod only after its ADD has returned.
func (p *Pods) Wait(ctx context.Context, key types.NamespacedName, uid types.UID, provider string) (*metav1.PartialObjectMetadata, v1.PodNetwork, error) {
	changed, stop := p.watch(key)
	defer stop()
	seen := false
	for {
		pod, err := p.get(ctx, key)
		if err != nil {
			return nil, v1.PodNetwork{}, err
		}
		present := pod != nil && isPod(pod, uid)
		if !present && (seen || p.deleted(ctx, key, uid)) {
			return nil, v1.PodNetwork{}, podDeletedError(fmt.Sprintf("pod %s (%s) was deleted before it had an address", key, uid))
		}
		seen = present
		network, missing := allocation(pod, uid, provider)
		if missing == "" {
			if missing, err = p.unfit(ctx, network); err != nil {
				return nil, v1.PodNetwork{}, err
			}
		}
		if missing == "" {
			return pod, network, nil
		}
		if present && pod.DeletionTimestamp != nil {
			return nil, v1.PodNetwork{}, podDeletedError(fmt.Sprintf("pod %s (%s) is being deleted before it had an address: %s", key, uid, missing))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, v1.PodNetwork{}, fmt.Errorf("pod %s has no address: %s%s: %w", key, missing, p.explain(pod), ctx.Err())
		}
	}
}

// deleted reports whether the API server has no pod of that UID (of any, if uid is empty): the pod may have been created and deleted
// before the watch reported it. If the request fails, the pod counts as existing.
func (p *Pods) deleted(ctx context.Context, key types.NamespacedName, uid types.UID) bool {
	pod := PodMetadata()
	err := p.api.Get(ctx, key, pod)
	return apierrors.IsNotFound(err) || err == nil && !isPod(pod, uid)
}

// errPodDeleted is the context.Cause that WhilePresent sets when the pod is deleted.
var errPodDeleted = errors.New("the pod was deleted")

// WhilePresent returns a context that ends with ctx. It also ends, with the cause errPodDeleted, when the watch reports that the pod of
// that UID (of any, if uid is empty) is deleted or has a deletion timestamp. The returned function frees its resources.
func (p *Pods) WhilePresent(ctx context.Context, key types.NamespacedName, uid types.UID) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	changed, stop := p.watch(key)
	go func() {
		defer stop()
		for {
			pod, err := p.get(ctx, key)
			if err == nil && (pod == nil || !isPod(pod, uid) || pod.DeletionTimestamp != nil) {
				cancel(errPodDeleted)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// allocation returns the pod's network, or a description of the missing part.
func allocation(pod *metav1.PartialObjectMetadata, uid types.UID, provider string) (network v1.PodNetwork, missing string) {
	switch {
	case pod == nil:
		return network, "the API server reports no such pod on this node"
	case !isPod(pod, uid):
		return network, fmt.Sprintf("the pod of that name is another one (%s, not %s)", pod.UID, uid)
	}
	network, err := v1.ParsePodNetworkOf(pod.Annotations, provider)
	switch {
	case err != nil:
		return network, err.Error()
	case !network.IsFor(pod.UID):
		return network, "kube-ovn-controller has not written the annotation " + v1.AnnotationAllocated.For(provider)
	case len(network.Addresses) == 0 || len(network.MAC) == 0:
		return network, "its annotations hold no addresses of network " + provider
	}
	return network, ""
}

// explain returns the controller's latest warning event about a pod, as a suffix of an error message.
func (p *Pods) explain(pod *metav1.PartialObjectMetadata) string {
	if pod == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	var events corev1.EventList
	err := p.api.List(ctx, &events, client.InNamespace(pod.Namespace),
		client.MatchingFields{"involvedObject.uid": string(pod.UID), "type": corev1.EventTypeWarning})
	if err != nil {
		return ""
	}
	latest := ""
	var at time.Time
	for _, event := range events.Items {
		when := event.EventTime.Time
		if event.Series != nil {
			when = event.Series.LastObservedTime.Time
		}
		if event.ReportingController == k8s.EventRecorder && !when.Before(at) {
			latest, at = fmt.Sprintf(" (%s: %s)", event.Reason, event.Message), when
		}
	}
	return latest
}
