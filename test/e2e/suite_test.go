// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs Kiln on a real cluster in the lab and observes it as a user does.
package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	ginkgotypes "github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/api/v1alpha1"
	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/test/checks"
	"github.com/kiln-net/kiln/test/cluster"
)

// suite is the cluster under test.
var suite struct {
	checks.Env
	Lab     *lab.Cluster
	Objects client.WithWatch
	Workers []string
	// NodeAddresses has one address of each node.
	NodeAddresses []string
	kill          func(ctx context.Context, pod *corev1.Pod) error
}

// knownDefect is the label of specs that fail because of a defect, which their comment describes. `make test-timing` runs them, and their failure does not count; other
// targets leave them out.
const knownDefect = "known-defect"

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	log.SetLogger(GinkgoLogr)
	recordWaits()
	if !RunSpecs(t, "Kiln in the lab") {
		failures = append(notes, failures...)
	}
	for _, f := range failures {
		fmt.Println(f)
	}
}

// failures has a line with the cause of each failed spec. They are printed last, because CI systems show the end of a log.
var failures []string

// notes are printed before failures if the suite fails.
var notes []string

// note adds a line to notes, with the time.
func note(format string, args ...any) {
	notes = append(notes, time.Now().Format(time.TimeOnly)+" "+fmt.Sprintf(format, args...))
}

var _ = BeforeSuite(func(ctx SpecContext) {
	l, err := lab.Open("")
	Expect(err).NotTo(HaveOccurred(), "the suite runs in a lab with the image loaded: make test-e2e brings it up")
	c, err := cluster.Connect(l.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	suite.Lab = l
	suite.Objects, err = c.Objects()
	Expect(err).NotTo(HaveOccurred())
	if by, chosen := chosenWay(); chosen {
		by.apply(ctx, by.images[0])
	} else {
		Expect(cluster.ApplyManifests(ctx, l.Kubeconfig(), manifests())).To(Succeed())
	}
	install(ctx, c)
	suite.Env, err = checks.InLab(l, c, "e2e-checks")
	Expect(err).NotTo(HaveOccurred())
	suite.Workers, err = cluster.Workers(l)
	Expect(err).NotTo(HaveOccurred())
	for _, n := range l.Nodes() {
		suite.NodeAddresses = append(suite.NodeAddresses, n.Addresses()[0].String())
	}
	suite.kill = killMainProcess
	calibrate(ctx)
	logs.start()
	_, err = unexpectedRestarts(ctx, CurrentSpecReport()) // ignores earlier restarts
	Expect(err).NotTo(HaveOccurred())
}, NodeTimeout(15*time.Minute))

// install applies the OVNCluster. On a cluster without one, it first sets a tunnel interface that no node has. The condition must
// report that, and correcting the field must be enough.
func install(ctx context.Context, c *cluster.Cluster) {
	GinkgoHelper()
	by, chosen := chosenWay()
	if chosen && by.withOVNCluster {
		Expect(c.WaitAvailable(ctx, func(m string) { GinkgoWriter.Println(m) })).To(Succeed())
		return
	}
	var oc v1alpha1.OVNCluster
	err := suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)
	spec := asInstalled()
	if chosen && suite.Lab.KubeProxy() {
		spec.APIServer = nil
	}
	if apierrors.IsNotFound(err) && os.Getenv("UPGRADE_FROM") == "" && !chosen {
		bare = nodeStates(ctx)
		wrong := spec
		wrong.Nodes.TunnelInterface = "eth9"
		Expect(c.ApplyOVNCluster(ctx, wrong)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
			degraded := meta.FindStatusCondition(oc.Status.Conditions, v1alpha1.ConditionDegraded)
			g.Expect(degraded).NotTo(BeNil())
			g.Expect(degraded.Status).To(Equal(metav1.ConditionTrue))
			g.Expect(degraded.Message).To(And(ContainSubstring("eth9"), ContainSubstring(spec.Nodes.TunnelInterface), ContainSubstring("tunnelInterface")))
		}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
	makeDefaultVLAN(ctx)
	Expect(c.ApplyOVNCluster(ctx, spec)).To(Succeed())
	Expect(c.WaitAvailable(ctx, func(m string) { GinkgoWriter.Println(m) })).To(Succeed())
}

// asInstalled returns the spec that the suite begins and ends with. It sets the numbers of replicas, because derived numbers of members never
// become lower.
func asInstalled() v1alpha1.OVNClusterSpec {
	GinkgoHelper()
	spec, err := cluster.LabSpec(suite.Lab, cluster.Dual)
	Expect(err).NotTo(HaveOccurred())
	putOnVLAN(&spec.Network)
	spec.Pinger.Mode = v1alpha1.PingerDisabled // the lab's nodes share two CPUs
	spec.Central.Replicas, spec.Central.NorthdReplicas, spec.Controller.Replicas = 1, 1, 1
	return spec
}

var _ = ReportAfterEach(func(report SpecReport) {
	if report.Failed() && suite.Lab != nil {
		fmt.Fprintf(os.Stderr, "logs of the nodes are in %s\n", suite.Lab.LogDir(""))
		for _, f := range append([]ginkgotypes.Failure{report.Failure}, additional(report)...) {
			failures = append(failures, fmt.Sprintf("%s %s: %.300q", report.StartTime.Format(time.TimeOnly), f.Location, f.Message))
		}
	}
})

func additional(report SpecReport) []ginkgotypes.Failure {
	failures := make([]ginkgotypes.Failure, 0, len(report.AdditionalFailures))
	for _, f := range report.AdditionalFailures {
		failures = append(failures, f.Failure)
	}
	return failures
}

// killMainProcess sends SIGKILL to the first process of a pod's container. It does so from the node, because a process cannot kill
// the init process of its own namespace.
func killMainProcess(ctx context.Context, pod *corev1.Pod) error {
	if len(pod.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("pod %s has no container", pod.Name)
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "//")
	if id == "" {
		return fmt.Errorf("the container of pod %s does not run", pod.Name)
	}
	_, err := suite.Node.Exec(ctx, pod.Spec.NodeName, "ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io",
		"task", "kill", "--signal", "SIGKILL", id)
	causes(pod)
	return err
}

// makeNamespace creates a namespace unless it exists. It waits until a terminating namespace of that name has been deleted, also
// from the cache of the API server's admission, which for a moment rejects objects in the new namespace.
func makeNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	namespaces := suite.Cluster.CoreV1().Namespaces()
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "takes-objects-"}}
	Eventually(func() error {
		_, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		ns, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if err == nil && ns.DeletionTimestamp != nil {
			err = fmt.Errorf("namespace %s is being deleted", name)
		}
		if err == nil {
			_, err = suite.Cluster.CoreV1().ConfigMaps(name).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		}
		return err
	}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
}

// deleteNamespace deletes a namespace and waits until its pods are deleted. It deletes workloads and pods first, because the
// namespace would otherwise wait for the longest grace period of its pods. It does not wait for the namespace itself, whose
// controller takes seconds.
func deleteNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	removePods(ctx, name)
	Expect(client.IgnoreNotFound(suite.Cluster.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))).To(Succeed())
}

// removePods deletes the named pods of a namespace and waits until they no longer exist. Without names, it deletes all pods and
// their workloads.
func removePods(ctx context.Context, namespace string, names ...string) {
	GinkgoHelper()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}
	pods := suite.Cluster.CoreV1().Pods(namespace)
	for _, name := range names {
		Expect(client.IgnoreNotFound(pods.Delete(ctx, name, now))).To(Succeed())
	}
	if len(names) == 0 {
		for _, remove := range []func(context.Context, metav1.DeleteOptions, metav1.ListOptions) error{
			suite.Cluster.AppsV1().Deployments(namespace).DeleteCollection, suite.Cluster.AppsV1().StatefulSets(namespace).DeleteCollection,
			suite.Cluster.AppsV1().ReplicaSets(namespace).DeleteCollection, pods.DeleteCollection,
		} {
			Expect(remove(ctx, now, metav1.ListOptions{})).To(Succeed())
		}
	}
	Eventually(func() (left []string, err error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if len(names) == 0 || slices.Contains(names, list.Items[i].Name) {
				left = append(left, list.Items[i].Name)
			}
		}
		return left, nil
	}).WithContext(ctx).WithTimeout(2*time.Minute).WithPolling(200*time.Millisecond).Should(BeEmpty(), "pods of namespace %s are not gone", namespace)
}
