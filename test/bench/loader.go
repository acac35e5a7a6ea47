// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// loader makes pods that no kubelet runs, and sees from a watch of its own when they have got their network.
type loader struct {
	world *world
	// parallel is how many requests are sent at a time.
	parallel, nodes int

	mu        sync.Mutex
	changed   chan struct{} // closed with the next change
	created   map[string]time.Time
	annotated map[string]time.Time
	err       error
}

// newLoader starts the watch, which ends with ctx.
func newLoader(ctx context.Context, w *world, parallel, nodes int) (*loader, error) {
	l := &loader{
		world: w, parallel: parallel, nodes: nodes,
		changed: make(chan struct{}), created: map[string]time.Time{}, annotated: map[string]time.Time{},
	}
	list, err := w.clients.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	go func() { l.end(l.follow(ctx, list.ResourceVersion)) }()
	return l, nil
}

// follow watches pods from a version on. The API server ends watches that are slow to read; then it goes on where that one ended.
func (l *loader) follow(ctx context.Context, version string) error {
	for {
		watcher, err := l.world.clients.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			return fmt.Errorf("watch pods: %w", err)
		}
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				return fmt.Errorf("watch pods: %w", apierrors.FromObject(event.Object))
			}
			version = pod.ResourceVersion
			l.take(event.Type, pod)
		}
	}
}

func (l *loader) take(event watch.EventType, pod *corev1.Pod) {
	if event == watch.Deleted || pod.Annotations[kubeovnv1.AnnotationAllocated.Key()] != "true" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.annotated[pod.Name]; known {
		return
	}
	l.annotated[pod.Name] = time.Now()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *loader) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	close(l.changed)
	l.changed = make(chan struct{})
}

// await waits until all these pods have their annotations.
func (l *loader) await(ctx context.Context, names []string) error {
	for next := 0; ; {
		l.mu.Lock()
		for next < len(names) && !l.annotated[names[next]].IsZero() {
			next++
		}
		changed, err := l.changed, l.err
		l.mu.Unlock()
		switch {
		case next == len(names):
			return nil
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pod %s and maybe others have no network: %w", names[next], ctx.Err())
		case <-changed:
		}
	}
}

// span is from the first creation to the last annotation of pods.
func (l *loader) span(names []string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, last := l.created[names[0]], l.annotated[names[0]]
	for _, name := range names {
		if l.created[name].Before(first) {
			first = l.created[name]
		}
		if l.annotated[name].After(last) {
			last = l.annotated[name]
		}
	}
	return last.Sub(first)
}

// latencies are from sending the creation to seeing the annotation, of each pod, in ascending order.
func (l *loader) latencies(names []string) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]time.Duration, len(names))
	for i, name := range names {
		all[i] = l.annotated[name].Sub(l.created[name])
	}
	slices.Sort(all)
	return all
}

// percentile of sorted values: the smallest that at least so many percent do not exceed.
func percentile(sorted []time.Duration, percent int) time.Duration {
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}

func (l *loader) createdAt(name string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.created[name]
}

func (l *loader) annotatedAt(name string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.annotated[name]
}

func podNames(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return names
}

// portNames are the names of the pods' logical switch ports.
func portNames(pods []string) []string {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = pod + "." + namespace
	}
	return names
}

// each does something for all pods, in parallel.
func (l *loader) each(ctx context.Context, names []string, do func(ctx context.Context, i int, name string) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(l.parallel)
	for i, name := range names {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i, name) })
	}
	return group.Wait()
}

// create makes pods as fast as the API server takes them, spread over the nodes.
func (l *loader) create(ctx context.Context, names []string) error {
	return l.each(ctx, names, l.createOne)
}

func (l *loader) createOne(ctx context.Context, i int, name string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "bench"}},
		Spec:       corev1.PodSpec{NodeName: nodeName(i % l.nodes), Containers: []corev1.Container{{Name: "main", Image: "bench"}}},
	}
	l.mu.Lock()
	l.created[name] = time.Now()
	l.mu.Unlock()
	if _, err := l.world.clients.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create pod %s: %w", name, err)
	}
	return nil
}

// annotate writes on a pod as much as a network's controller does.
func (l *loader) annotate(ctx context.Context, name string) error {
	patch := []byte(`{"metadata":{"annotations":{` +
		`"ovn.kubernetes.io/allocated":"true","ovn.kubernetes.io/cidr":"10.16.0.0/16","ovn.kubernetes.io/gateway":"10.16.0.1",` +
		`"ovn.kubernetes.io/ip_address":"10.16.255.254","ovn.kubernetes.io/logical_router":"ovn-cluster",` +
		`"ovn.kubernetes.io/logical_switch":"ovn-default","ovn.kubernetes.io/mac_address":"0a:58:0a:10:ff:fe",` +
		`"ovn.kubernetes.io/pod_nic_type":"veth-pair","ovn.kubernetes.io/pod_uid":"00000000-0000-0000-0000-000000000000",` +
		`"ovn.kubernetes.io/routed":"true"}}}`)
	_, err := l.world.clients.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("annotate pod %s: %w", name, err)
	}
	return nil
}

// remove deletes pods at once, as a kubelet confirms it.
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
