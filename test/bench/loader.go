// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// loader creates pods without a kubelet, and watches when they get their network.
type loader struct {
	world *world
	// parallel is the number of concurrent requests.
	parallel, nodes int
	annotated       *arrivals
	// subnets of the pods, in turn; the default subnet if there are none. where describes them.
	subnets []string
	where   string
	// annotations of the pods.
	annotations map[string]string

	mu      sync.Mutex
	created map[string]time.Time
}

// newLoader starts the watch, which ends with ctx.
func newLoader(ctx context.Context, w *world, parallel, nodes int) (*loader, error) {
	l := &loader{world: w, parallel: parallel, nodes: nodes, created: map[string]time.Time{}}
	var err error
	l.annotated, err = follow(ctx, w.clients.CoreV1().RESTClient(), "pods", namespace)
	return l, err
}

// follow watches, until ctx ends, which objects get the network's annotation `allocated`.
func follow(ctx context.Context, c rest.Interface, resource, namespace string) (*arrivals, error) {
	from := &metav1.PartialObjectMetadataList{}
	raw, err := c.Get().Resource(resource).NamespaceIfScoped(namespace, namespace != "").SetHeader("Accept", "application/json").
		VersionedParams(&metav1.ListOptions{Limit: 1}, scheme.ParameterCodec).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(raw, from)
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}
	seen := newArrivals()
	go func() { seen.end(watchAnnotations(ctx, c, resource, namespace, from.ResourceVersion, seen)) }()
	return seen, nil
}

// watchAnnotations watches from a resource version on. The API server ends watches that are slow to read; the next watch then
// continues at the last version.
func watchAnnotations(ctx context.Context, c rest.Interface, resource, namespace, version string, seen *arrivals) error {
	for {
		watcher, err := c.Get().Resource(resource).NamespaceIfScoped(namespace, namespace != "").
			VersionedParams(&metav1.ListOptions{ResourceVersion: version, Watch: true}, scheme.ParameterCodec).Watch(ctx)
		if err != nil {
			return fmt.Errorf("watch %s: %w", resource, err)
		}
		for event := range watcher.ResultChan() {
			object, err := meta.Accessor(event.Object)
			if err != nil {
				return fmt.Errorf("watch %s: %w", resource, apierrors.FromObject(event.Object))
			}
			version = object.GetResourceVersion()
			if event.Type != watch.Deleted && object.GetAnnotations()[kubeovnv1.AnnotationAllocated.Key()] == "true" {
				seen.change([]string{object.GetName()}, nil)
			}
		}
	}
}

// await waits until all these pods are annotated.
func (l *loader) await(ctx context.Context, names []string) error {
	return l.annotated.awaitNames(ctx, names, true)
}

// span returns the time from the first creation to the last annotation of pods.
func (l *loader) span(names []string) time.Duration {
	return span(names, l.createdAt, l.annotated.at)
}

// span returns the time from the first beginning to the last end.
func span(names []string, began, ended func(string) time.Time) time.Duration {
	first, last := began(names[0]), ended(names[0])
	for _, name := range names {
		if at := began(name); at.Before(first) {
			first = at
		}
		if at := ended(name); at.After(last) {
			last = at
		}
	}
	return last.Sub(first)
}

// took returns, for each name, the time between two events, in ascending order.
func took(names []string, from, to func(string) time.Time) []time.Duration {
	all := make([]time.Duration, len(names))
	for i, name := range names {
		all[i] = to(name).Sub(from(name))
	}
	slices.Sort(all)
	return all
}

// latencies returns, for each pod, the time from sending its creation to seeing its annotation, in ascending order.
func (l *loader) latencies(names []string) []time.Duration {
	return took(names, l.createdAt, l.annotated.at)
}

func (l *loader) createdAt(name string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.created[name]
}

func podNames(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return names
}

// portNames returns the names of the pods' logical switch ports.
func portNames(pods []string) []string {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = pod + "." + namespace
	}
	return names
}

// each calls do for all pods in parallel.
func (l *loader) each(ctx context.Context, names []string, do func(ctx context.Context, i int, name string) error) error {
	return each(ctx, l.parallel, names, do)
}

// each calls do for all names, with at most parallel calls at a time.
func each(ctx context.Context, parallel int, names []string, do func(ctx context.Context, i int, name string) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, name := range names {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i, name) })
	}
	return group.Wait()
}

// create creates pods as fast as the API server accepts them, spread over the nodes.
func (l *loader) create(ctx context.Context, names []string) error {
	return l.each(ctx, names, l.createOne)
}

func (l *loader) createOne(ctx context.Context, i int, name string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "bench"}},
		Spec:       corev1.PodSpec{NodeName: nodeName(i % l.nodes), Containers: []corev1.Container{{Name: "main", Image: "bench"}}},
	}
	pod.Annotations = maps.Clone(l.annotations)
	if len(l.subnets) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, kubeovnv1.AnnotationLogicalSwitch.Key(), l.subnets[i%len(l.subnets)])
	}
	l.creates(name)
	if _, err := l.world.creator.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create pod %s: %w", name, err)
	}
	return nil
}

// creates records that the creation of an object is sent now.
func (l *loader) creates(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.created[name] = time.Now()
}

// annotate writes to a pod as much as a network's controller does, through the same subresource and with the same account.
func (l *loader) annotate(ctx context.Context, name string) error {
	patch := []byte(`{"metadata":{"annotations":{` +
		`"ovn.kubernetes.io/allocated":"true","ovn.kubernetes.io/cidr":"10.16.0.0/16","ovn.kubernetes.io/gateway":"10.16.0.1",` +
		`"ovn.kubernetes.io/ip_address":"10.16.255.254","ovn.kubernetes.io/logical_router":"ovn-cluster",` +
		`"ovn.kubernetes.io/logical_switch":"ovn-default","ovn.kubernetes.io/mac_address":"0a:58:0a:10:ff:fe",` +
		`"ovn.kubernetes.io/pod_nic_type":"veth-pair","ovn.kubernetes.io/pod_uid":"00000000-0000-0000-0000-000000000000",` +
		`"ovn.kubernetes.io/routed":"true"}}}`)
	_, err := l.world.writer.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("annotate pod %s: %w", name, err)
	}
	return nil
}

// remove deletes pods without a grace period, as when a kubelet confirms the deletion.
func (l *loader) remove(ctx context.Context, names []string) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	return l.each(ctx, names, func(ctx context.Context, _ int, name string) error {
		err := l.world.clients.CoreV1().Pods(namespace).Delete(ctx, name, now)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
		return nil
	})
}
