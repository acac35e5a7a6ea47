// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// probedPort is the port of the servers.
	probedPort = 8080
	// roleLabel has the role of a pod.
	roleLabel = "kubectl-ko-test"
	// poll is the pause between two requests for the state of the pods.
	poll = 500 * time.Millisecond
	// requestTime bounds such a request.
	requestTime = 10 * time.Second
	// serviceAccountTime bounds the wait for the ServiceAccount of a new namespace, without which pods are refused.
	serviceAccountTime = 15 * time.Second
)

// Roles of pods. The name of a pod is its role, or ends with it. A pod with a number is on the node with that number.
const (
	clientPod    = "pod-%d"
	hostPod      = "host-%d"
	neighbourPod = "neighbour" // on the first node
)

// serverPod returns a pod on a node that answers with its name. It has no rights: the sysctl, which Kubernetes counts among the safe ones, lets it send echo
// requests (icmp(7)).
func serverPod(namespace, name string, on host) *corev1.Pod {
	pod := waitingPod(namespace, name, on)
	pod.Spec.HostNetwork, pod.Spec.DNSPolicy = false, corev1.DNSClusterFirst
	pod.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "0 2147483647"}}
	c := &pod.Spec.Containers[0]
	c.Command = []string{"kiln", "netprobe", "serve", "--name=" + name, fmt.Sprintf("--address=:%d", probedPort)}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(probedPort)}}, PeriodSeconds: 1, TimeoutSeconds: 2,
	}
	return pod
}

// waitingPod returns a pod in the network of a node, from which the client is run.
func waitingPod(namespace, name string, on host) *corev1.Pod {
	const nobody = int64(65532)
	life, grace := int64(podLife.Seconds()), int64(0)
	yes, no := true, false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{roleLabel: name}},
		Spec: corev1.PodSpec{
			NodeName: on.name, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &life, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: new(nobody), RunAsGroup: new(nobody)},
			Containers: []corev1.Container{{
				Name: "netprobe", Image: on.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", fmt.Sprint(life)},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				// Pods that reach the server can make it use memory. There is no limit of CPU time, because it would slow the measurements down.
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
}

// createNamespaces creates the namespaces of the run.
func (r *podRun) createNamespaces(ctx context.Context) error {
	for _, name := range r.namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": "privileged", // for the network of the node, without any capability
		}}}
		if _, err := r.pods.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create the namespace %s: %w", name, err)
		}
	}
	return nil
}

// createPods creates the wanted pods, which then start at the same time.
func (r *podRun) createPods(ctx context.Context) error {
	for _, pod := range r.wanted {
		if err := r.createPod(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// createPod creates a pod. The ServiceAccount of a new namespace exists a little later than the namespace.
func (r *podRun) createPod(ctx context.Context, pod *corev1.Pod) error {
	var refusal error
	err := wait.PollUntilContextTimeout(ctx, poll, serviceAccountTime, true, func(ctx context.Context) (bool, error) {
		// An interrupt does not end a request: its pod could exist after the others were deleted.
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
		defer done()
		created, err := r.pods.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account") { // and not for a missing right of the user
			refusal = err
			return false, nil
		}
		if err == nil {
			pod.UID = created.UID
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("create the pod %s: %w", pod.Name, errors.Join(err, refusal))
	}
	return nil
}

// await waits until all pods run and are ready, and reports the other pods as failures of their nodes. Later checks skip them.
func (r *podRun) await(ctx context.Context) error {
	all := map[types.NamespacedName]*corev1.Pod{}
	now := func(p *corev1.Pod) *corev1.Pod { // nil also if users of the namespace have replaced it
		if pod := all[client.ObjectKeyFromObject(p)]; pod != nil && pod.UID == p.UID {
			return pod
		}
		return nil
	}
	var unread error
	err := wait.PollUntilContextTimeout(ctx, poll, r.startTime, true, func(context.Context) (bool, error) {
		// A request has a time of its own: one that begins at the end of startTime says what runs then. The client's rate limiter
		// would refuse it at once.
		ctx, done := context.WithTimeout(ctx, requestTime)
		defer done()
		for _, namespace := range r.podNamespaces() {
			var list *corev1.PodList
			if list, unread = r.pods.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: roleLabel}); unread != nil {
				return false, ended(unread)
			}
			for i := range list.Items {
				all[client.ObjectKeyFromObject(&list.Items[i])] = &list.Items[i]
			}
		}
		return !slices.ContainsFunc(r.wanted, func(p *corev1.Pod) bool { return !runs(now(p)) || needsProbe(p) && !ready(now(p)) }), nil
	})
	if ctx.Err() != nil || err != nil && unread != nil {
		return fmt.Errorf("wait for the pods: %w", errors.Join(err, unread))
	}
	r.running = map[string]*corev1.Pod{}
	var started, probed []outcome
	for _, p := range r.wanted {
		start := outcome{nodes: p.Spec.NodeName, what: "pod " + p.Name}
		pod := now(p)
		if !runs(pod) {
			start.problem = "it does not run: " + r.whyWaiting(ctx, p, pod)
			started = append(started, start)
			continue
		}
		started, r.running[p.Labels[roleLabel]] = append(started, start), pod
		if !needsProbe(p) {
			continue
		}
		probe := outcome{nodes: p.Spec.NodeName, what: "kubelet → pod " + p.Name, family: familyOf(pod.Status.PodIP)}
		if !ready(pod) {
			probe.problem = "the readiness probe fails"
		}
		probed = append(probed, probe)
	}
	r.report(podCheck{name: "pods start"}, started)
	r.report(podCheck{name: "kubelet probe → pod"}, probed)
	return nil
}

// ended returns an error that no wait ends: a missing right. Others may be of a moment.
func ended(err error) error {
	if apierrors.IsForbidden(err) {
		return err
	}
	return nil
}

// needsProbe reports whether the kubelet probes a pod.
func needsProbe(pod *corev1.Pod) bool { return pod.Spec.Containers[0].ReadinessProbe != nil }

// runs reports whether a pod runs, and has addresses.
func runs(pod *corev1.Pod) bool {
	return pod != nil && pod.Status.Phase == corev1.PodRunning && len(pod.Status.PodIPs) > 0
}

// ready reports whether a pod is ready.
func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// whyWaiting returns why a pod does not run: the reason and the last lines of its container, and its newest warning.
func (r *podRun) whyWaiting(ctx context.Context, wanted, pod *corev1.Pod) string {
	if pod == nil {
		return "it does not exist"
	}
	why := []string{string(pod.Status.Phase), pod.Status.Message}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			why = append(why, s.State.Waiting.Reason, s.State.Waiting.Message)
		}
		if s.State.Terminated != nil {
			why = append(why, s.State.Terminated.Reason, strings.TrimSpace(s.State.Terminated.Message))
		}
	}
	events, err := r.pods.CoreV1().Events(wanted.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + wanted.Name})
	if err == nil && len(events.Items) > 0 {
		newest := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
		why = append(why, newest.Reason, newest.Message)
	}
	return strings.Join(slices.DeleteFunc(why, func(s string) bool { return s == "" }), ", ")
}

// podNamespaces returns all namespaces with pods of the run.
func (r *podRun) podNamespaces() []string {
	if r.in == "" {
		return r.namespaces
	}
	return append([]string{r.in}, r.namespaces...)
}

// guests returns the wanted pods in a namespace that is not of the run.
func (r *podRun) guests() (pods []*corev1.Pod) {
	for _, pod := range r.wanted {
		if pod.Namespace == r.in {
			pods = append(pods, pod)
		}
	}
	return pods
}

// remove deletes all objects, and waits until they no longer exist. Subnets and Vpcs wait for their pods.
func (r *podRun) remove(ctx context.Context) error {
	var objects []client.Object
	var errs []error
	for _, pod := range r.guests() {
		objects = append(objects, pod.DeepCopy())
	}
	for _, namespace := range r.namespaces {
		err := r.pods.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		errs = append(errs, client.IgnoreNotFound(err))
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}
	objects = append(objects, r.others...)
	uids := map[client.Object]types.UID{}
	for _, o := range objects {
		var options []client.DeleteOption
		if uid := o.GetUID(); uid != "" {
			uids[o], options = uid, append(options, client.Preconditions{UID: &uid})
		}
		if err := client.IgnoreNotFound(r.objects.Delete(ctx, o, options...)); !apierrors.IsConflict(err) { // with a conflict it is another object
			errs = append(errs, err)
		}
	}
	left := objects
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		var unread error
		left = slices.DeleteFunc(left, func(o client.Object) bool {
			err := r.objects.Get(ctx, client.ObjectKeyFromObject(o), o)
			unread = errors.Join(unread, ended(err))
			another := err == nil && uids[o] != "" && o.GetUID() != uids[o]
			return another || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
		})
		return len(left) == 0, unread
	})
	if err != nil {
		names := make([]string, 0, len(left))
		for _, o := range left {
			names = append(names, fmt.Sprintf("%T %s", o, o.GetName()))
		}
		errs = append(errs, fmt.Errorf("still there, or not readable: %s: %w", strings.Join(names, ", "), err))
	}
	return errors.Join(errs...)
}
