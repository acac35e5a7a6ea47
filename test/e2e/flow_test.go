// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
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

// sequence is that of an answered packet.
var sequence = regexp.MustCompile(`icmp_seq=(\d+)`)

// makePair makes a namespace with a pod on each of two nodes.
func makePair(ctx context.Context, namespace string) (from, to *corev1.Pod) {
	GinkgoHelper()
	makeNamespace(ctx, namespace)
	var err error
	from, err = suite.Cluster.Run(ctx, cluster.Server(namespace, "from", suite.Workers[0]))
	Expect(err).NotTo(HaveOccurred())
	to, err = suite.Cluster.Run(ctx, cluster.Server(namespace, "to", suite.Workers[1]))
	Expect(err).NotTo(HaveOccurred())
	return from, to
}

// startPing sends a packet every 10 ms to an address of another pod until the function that it returns is called, which returns the numbers
// of those without an answer. It is one flow all the time, as a running connection is.
//
// Between nodes it must not run while an interface comes or goes on either: with the userspace datapath, ovs-vswitchd empties its copy of the
// kernel's routes and reads them again whenever one does, and drops what goes into tunnels or comes from them in these milliseconds
// (docs/components.md).
func startPing(ctx context.Context, from *corev1.Pod, to netip.Addr) func(context.Context) []int {
	GinkgoHelper()
	answers := fmt.Sprintf("/tmp/ping-%s-%d", strings.ReplaceAll(to.String(), ":", "-"), time.Now().UnixNano())
	_, err := suite.Cluster.Exec(ctx, from, "sh", "-c", fmt.Sprintf("ping -n -i 0.01 %s >%s 2>&1 & echo $! >%[2]s.pid", to, answers))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { // when the spec fails on its way
		_, _ = suite.Cluster.Exec(ctx, from, "sh", "-c", "kill $(cat "+answers+".pid)")
	}, NodeTimeout(time.Minute))
	return func(ctx context.Context) (lost []int) {
		GinkgoHelper()
		out, err := suite.Cluster.Exec(ctx, from, "sh", "-c", fmt.Sprintf("kill $(cat %s.pid); grep -o icmp_seq=[0-9]* %[1]s", answers))
		Expect(err).NotTo(HaveOccurred())
		answered, last := map[int]bool{}, 0
		for _, m := range sequence.FindAllStringSubmatch(out, -1) {
			n, err := strconv.Atoi(m[1])
			Expect(err).NotTo(HaveOccurred())
			answered[n], last = true, max(last, n)
		}
		Expect(last).To(BeNumerically(">", 100), "packets that were answered: %s", out)
		for n := range last {
			if !answered[n+1] {
				lost = append(lost, n+1)
			}
		}
		return lost
	}
}

// arrivals are pods that are created all the time, bound to a node without a machine: what is watched is how long each waits for its address. A
// pod has it once its port is in the northbound database.
type arrivals struct {
	mu              sync.Mutex
	created, served map[string]time.Time
	// enough ends the creation, which done tells; forget ends the watch.
	enough, forget context.CancelFunc
	done           chan struct{}
}

// everyArrival is the time between two of them.
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

// nowhere is a node that is an object and nothing else.
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
	// Without an API server nobody asks for an address.
	if _, err := suite.Cluster.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.created[name] = now
	}
}

func (a *arrivals) saw(pod *corev1.Pod) {
	if pod.Annotations["ovn.kubernetes.io/allocated"] != "true" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.served[pod.Name]; !known {
		a.served[pod.Name] = time.Now()
	}
}

// waiting are those that have no address yet.
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

// since tells when the first address after a moment was written, from that moment on, and how long the pod waited that waited longest of those
// created later.
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

// end creates no more, waits until all have an address, and deletes them: there is no kubelet that would.
func (a *arrivals) end(ctx context.Context, namespace string) {
	GinkgoHelper()
	a.enough()
	<-a.done
	defer a.forget()
	Eventually(a.waiting).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(everyArrival).Should(BeEmpty())
	Expect(suite.Cluster.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + nowhere})).To(Succeed())
}
