// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/test/cluster"
)

// arrivals continuously creates pods bound to a node without a machine, and measures how long each waits for its address. A pod has
// its address when its port is in the northbound database.
type arrivals struct {
	mu              sync.Mutex
	created, served map[string]time.Time
	// enough ends the creation, after which done is closed; forget ends the watch.
	enough, forget context.CancelFunc
	done           chan struct{}
}

// everyArrival is the time between two pods.
const everyArrival = 250 * time.Millisecond

func startArrivals(ctx context.Context, namespace string) *arrivals {
	GinkgoHelper()
	ctx, forget := context.WithCancel(context.WithoutCancel(ctx))
	creation, enough := context.WithCancel(ctx)
	a := &arrivals{created: map[string]time.Time{}, served: map[string]time.Time{}, enough: enough, forget: forget, done: make(chan struct{})}
	selector := fields.OneTermEqualSelector("spec.nodeName", nowhere)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(suite.Cluster.CoreV1().RESTClient(), "pods", namespace, selector),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { a.saw(o.(*corev1.Pod)) },
			UpdateFunc: func(_, o any) { a.saw(o.(*corev1.Pod)) },
		},
	})
	go informer.RunWithContext(ctx)
	Expect(cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)).To(BeTrue())
	begun := time.Now().Unix()
	go func() {
		defer close(a.done)
		for i := 0; pause(creation, everyArrival) == nil; i++ {
			a.create(creation, namespace, fmt.Sprintf("arrival-%d-%d", begun, i))
		}
	}()
	return a
}

// nowhere is a Node object without a machine.
const nowhere = "nowhere"

func makeNowhere(ctx context.Context) {
	GinkgoHelper()
	_, err := suite.Cluster.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nowhere},
		Spec:       corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.250"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
		},
	}, metav1.CreateOptions{})
	Expect(client.IgnoreAlreadyExists(err)).To(Succeed())
}

func (a *arrivals) create(ctx context.Context, namespace, name string) {
	pod := cluster.Server(namespace, name, nowhere)
	now := time.Now()
	// Without an API server there is no pod that waits for an address.
	if _, err := suite.Cluster.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.created[name] = now
	}
}

func (a *arrivals) saw(pod *corev1.Pod) {
	if !allocated(pod) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.served[pod.Name]; !known {
		a.served[pod.Name] = time.Now()
	}
}

// allocated reports whether a pod has its address.
func allocated(pod *corev1.Pod) bool { return pod.Annotations["ovn.kubernetes.io/allocated"] == "true" }

// waiting returns the pods that have no address yet.
func (a *arrivals) waiting() (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.created {
		if _, served := a.served[name]; !served {
			names = append(names, name)
		}
	}
	return names
}

// since considers the pods created after a moment. It returns the time from the moment to the first address, and the longest time
// that a pod waited for its address.
func (a *arrivals) since(moment time.Time) (first, longest time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first = time.Hour
	for name, created := range a.created {
		if created.Before(moment) {
			continue
		}
		first = min(first, a.served[name].Sub(moment))
		longest = max(longest, a.served[name].Sub(created))
	}
	return first, longest
}

// end stops the creation, waits until all pods have an address, and deletes them without a grace period, because there is no
// kubelet.
func (a *arrivals) end(ctx context.Context, namespace string) {
	GinkgoHelper()
	a.enough()
	<-a.done
	defer a.forget()
	Eventually(a.waiting).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(everyArrival).Should(BeEmpty())
	Expect(suite.Cluster.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + nowhere})).To(Succeed())
}
