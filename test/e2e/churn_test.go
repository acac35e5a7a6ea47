// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/seed"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	churnNamespace = "e2e-churn"
	churnNames     = 10
	churnRounds    = 10 // 10 names × 10 rounds: 100 re-creations
)

// holders watches pods and records every address that two pods hold at the same time. A pod holds its addresses from the annotation
// allocated until its object is deleted.
type holders struct {
	mu      sync.Mutex
	holder  map[string]types.UID // address → pod
	doubles []string
}

func (h *holders) seen(p *corev1.Pod) {
	if p.Spec.HostNetwork || p.Annotations["ovn.kubernetes.io/allocated"] != "true" ||
		p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range strings.Split(p.Annotations["ovn.kubernetes.io/ip_address"], ",") {
		if other, held := h.holder[a]; held && other != p.UID {
			h.doubles = append(h.doubles, fmt.Sprintf("%s is held by %s and by %s/%s (%s)", a, other, p.Namespace, p.Name, p.UID))
		}
		h.holder[a] = p.UID
	}
}

func (h *holders) gone(p *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a, uid := range h.holder {
		if uid == p.UID {
			delete(h.holder, a)
		}
	}
}

// watch follows every pod of the cluster until the context ends.
func (h *holders) watch(ctx context.Context, c *cluster.Cluster) {
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", "", fields.Everything())
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw,
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { h.seen(o.(*corev1.Pod)) },
			UpdateFunc: func(old, o any) {
				// The informer may report a delete and a create of the same name as one update.
				if before, after := old.(*corev1.Pod), o.(*corev1.Pod); before.UID != after.UID {
					h.gone(before)
				}
				h.seen(o.(*corev1.Pod))
			},
			DeleteFunc: func(o any) {
				if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = unknown.Obj
				}
				h.gone(o.(*corev1.Pod))
			},
		},
	})
	go informer.RunWithContext(ctx)
	Expect(cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)).To(BeTrue())
}

var _ = Describe("pods re-created under their names while controller and agent are killed", Label(disruptive, mayRestart), func() {
	It("leaves NB ports, IP objects, the allocator and the pods in agreement, and no address held twice", func(ctx SpecContext) {
		makeNamespace(ctx, churnNamespace)
		h := &holders{holder: map[string]types.UID{}}
		watchCtx, stopWatch := context.WithCancel(ctx)
		defer stopWatch()
		h.watch(watchCtx, suite.Cluster)

		killCtx, stopKilling := context.WithCancel(ctx)
		// The Lease of a killed controller must expire before the next controller works. More frequent kills would leave no time
		// for that.
		killed := make(chan string, 2)
		start := seed.New(GinkgoT())
		go func() {
			killed <- killAtRandom(killCtx, seed.Rand(start, 1), "kube-ovn-controller", 20*time.Second, 40*time.Second)
		}()
		go func() {
			killed <- killAtRandom(killCtx, seed.Rand(start, 2), "kube-ovn-cni", 3*time.Second, 8*time.Second)
		}()

		var group sync.WaitGroup
		errs := make([]error, churnNames)
		for i := range churnNames {
			group.Add(1)
			go func() {
				defer group.Done()
				errs[i] = recreate(ctx, seed.Rand(start, uint64(3+i)), fmt.Sprintf("churn-%d", i), suite.Workers[i%len(suite.Workers)])
			}()
		}
		group.Wait()
		stopKilling()
		AddReportEntry("kills", <-killed+", "+<-killed)
		for _, err := range errs {
			Expect(err).NotTo(HaveOccurred())
		}

		h.mu.Lock()
		doubles := h.doubles
		h.mu.Unlock()
		Expect(doubles).To(BeEmpty(), "addresses held twice")
		Eventually(disagreements).WithContext(ctx).WithTimeout(60 * time.Second).WithPolling(time.Second).Should(BeEmpty())

		deleteNamespace(ctx, churnNamespace)
		Eventually(disagreements).WithContext(ctx).WithTimeout(60 * time.Second).WithPolling(time.Second).Should(BeEmpty())
	}, SpecTimeout(15*time.Minute))
})

// recreate deletes and creates one pod churnRounds times. It waits until the pod is ready only in every fourth round, so that pods
// are deleted in every state.
func recreate(ctx context.Context, random *rand.Rand, name, node string) error {
	pods := suite.Cluster.CoreV1().Pods(churnNamespace)
	for round := range churnRounds {
		pod := cluster.Server(churnNamespace, name, node)
		created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create %s in round %d: %w", name, round, err)
		}
		if round%4 == 3 || round == churnRounds-1 {
			if _, err := suite.Cluster.WaitPod(ctx, churnNamespace, name, cluster.Ready); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		} else if err := pause(ctx, time.Duration(random.IntN(1500))*time.Millisecond); err != nil {
			return err
		}
		if round == churnRounds-1 {
			return nil
		}
		// Half of the deletions are forced: the object is deleted before the containers have stopped.
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &created.UID}}
		if round%2 == 0 {
			options.GracePeriodSeconds = new(int64)
		}
		if err := pods.Delete(ctx, name, options); err != nil {
			return fmt.Errorf("delete %s in round %d: %w", name, round, err)
		}
		err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := pods.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
		if err != nil {
			return fmt.Errorf("%s is not gone in round %d: %w", name, round, err)
		}
	}
	return nil
}

// killAtRandom repeatedly kills the main process of a random pod of a workload, at random intervals, and returns the number of
// kills.
func killAtRandom(ctx context.Context, random *rand.Rand, workload string, after, before time.Duration) string {
	defer GinkgoRecover()
	count := 0
	for pause(ctx, after+time.Duration(random.Int64N(int64(before-after)))) == nil {
		pods, err := suite.Cluster.PodsOf(ctx, workload)
		if err != nil || len(pods) == 0 {
			continue
		}
		victim := pods[random.IntN(len(pods))]
		if err := suite.kill(ctx, &victim); err == nil {
			count++
		}
	}
	return fmt.Sprintf("%s %d times", workload, count)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// disagreements compares the four stores of pods' addresses: the pods, the ports in NB, the IP objects, and the allocator by its
// count in the subnet's status.
func disagreements(ctx context.Context) ([]string, error) {
	pods, err := suite.Cluster.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	want := map[string]string{} // port → addresses
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.HostNetwork || p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		want[p.Name+"."+p.Namespace] = p.Annotations["ovn.kubernetes.io/ip_address"]
	}
	var problems []string
	ports, err := suite.Cluster.NBList(ctx, "Logical_Switch_Port", "name,addresses,external_ids")
	if err != nil {
		return nil, err
	}
	inNB := map[string]string{}
	for _, row := range ports {
		ids, _ := row["external_ids"].(map[string]any)
		if ids["pod"] == nil {
			continue
		}
		fields := strings.Fields(fmt.Sprint(first(row["addresses"])))
		inNB[fmt.Sprint(row["name"])] = strings.Join(fields[min(1, len(fields)):], ",")
	}
	problems = append(problems, compare("NB port", want, inNB)...)

	var ips kubeovnv1.IPList
	if err := suite.Objects.List(ctx, &ips); err != nil {
		return nil, err
	}
	objects := map[string]string{}
	for i := range ips.Items {
		if ip := &ips.Items[i]; ip.Spec.Subnet == "ovn-default" {
			objects[ip.Name] = ip.Spec.IPAddress
		}
	}
	problems = append(problems, compare("IP object", want, objects)...)

	var subnet kubeovnv1.Subnet
	if err := suite.Objects.Get(ctx, types.NamespacedName{Name: "ovn-default"}, &subnet); err != nil {
		return nil, err
	}
	v4, v6 := 0, 0
	for _, addresses := range want {
		for _, a := range strings.Split(addresses, ",") {
			if strings.Contains(a, ":") {
				v6++
			} else {
				v4++
			}
		}
	}
	if used := subnet.Status; int(used.V4UsingIPs) != v4 || int(used.V6UsingIPs) != v6 {
		problems = append(problems, fmt.Sprintf("subnet ovn-default counts %v IPv4 and %v IPv6 addresses in use, pods hold %d and %d",
			used.V4UsingIPs, used.V6UsingIPs, v4, v6))
	}
	return problems, nil
}

func first(v any) any {
	if set, ok := v.([]any); ok && len(set) > 0 {
		return set[0]
	}
	return v
}

func compare(what string, want, got map[string]string) []string {
	var problems []string
	for name, addresses := range want {
		if got[name] != addresses || addresses == "" {
			problems = append(problems, fmt.Sprintf("%s %s has %q, its pod says %q", what, name, got[name], addresses))
		}
	}
	for name, addresses := range got {
		if _, ok := want[name]; !ok {
			problems = append(problems, fmt.Sprintf("%s %s (%s) has no pod", what, name, addresses))
		}
	}
	return problems
}
