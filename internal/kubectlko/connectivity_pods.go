// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

const (
	// probedPort is the port of the servers.
	probedPort = 8080
	// roleLabel selects a pod by its name, and accessLabel the pod that the NetworkPolicy admits.
	roleLabel, accessLabel = "kubectl-ko-test", "kubectl-ko-test-access"
	// poll is the pause between two requests for the state of the pods.
	poll = 500 * time.Millisecond
	// requestTime bounds such a request.
	requestTime = 10 * time.Second
	// serviceAccountTime bounds the wait for the ServiceAccount of a new namespace, without which pods are refused.
	serviceAccountTime = 15 * time.Second
)

// Names of pods. A pod with a number is on the node with that number.
const (
	clientPod    = "pod-%d"
	hostPod      = "host-%d"
	neighbourPod = "neighbour" // on the first node
	closedPod    = "closed"    // on the last node, selected by the NetworkPolicy
	admittedPod  = "admitted"  // on the first node, admitted by the NetworkPolicy
	probedPod    = "probed-ipv6"
	vpcPod       = "vpc-%d" // 0 on the first node, 1 on the last one
)

// create creates all objects. The pods of all checks start at the same time.
func (c *connectivity) create(ctx context.Context) error {
	blocks, err := c.vpcBlocks(ctx)
	if err != nil {
		return err
	}
	c.dual = len(blocks) > 1
	for _, name := range []string{c.name, c.vpcNamespace()} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": "privileged", // for the network of the node, without any capability
		}}}
		if _, err := c.pods.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create the namespace %s: %w", name, err)
		}
	}
	policy := corev1.IPFamilyPolicyPreferDualStack
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "server"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{roleLabel: c.served()}, IPFamilyPolicy: &policy, PublishNotReadyAddresses: true, // probes of kubelets are another check
		Ports: []corev1.ServicePort{
			{Name: "tcp", Port: 80, TargetPort: intstr.FromInt32(probedPort)},
			{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(probedPort), Protocol: corev1.ProtocolUDP},
		},
	}}
	if c.service, err = c.pods.CoreV1().Services(c.name).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the Service: %w", err)
	}
	if c.apiServer, err = c.pods.CoreV1().Services(corev1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("read the Service of the API server: %w", err)
	}
	if err := c.createVPC(ctx, blocks); err != nil {
		return err
	}
	for _, pod := range c.wanted() {
		if err := c.createPod(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// served is the pod of the Service.
func (c *connectivity) served() string { return fmt.Sprintf(clientPod, len(c.hosts)-1) }

// createVPC creates a Vpc with a Subnet, and waits until pods can use it.
func (c *connectivity) createVPC(ctx context.Context, blocks []string) error {
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{c.vpcNamespace()}, DefaultSubnet: c.name}}
	if err := c.objects.Create(ctx, vpc); err != nil {
		return fmt.Errorf("create the Vpc: %w", err)
	}
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: kubeovnv1.SubnetSpec{
		Vpc: c.name, CIDRBlock: strings.Join(blocks, ","), Namespaces: []string{c.vpcNamespace()},
	}}
	if err := c.objects.Create(ctx, subnet); err != nil {
		return fmt.Errorf("create the Subnet: %w", err)
	}
	cause := "it has no condition Ready: see the pods of kube-ovn-controller"
	err := wait.PollUntilContextTimeout(ctx, poll, c.startTime, true, func(ctx context.Context) (bool, error) {
		if err := c.objects.Get(ctx, client.ObjectKeyFromObject(subnet), subnet); err != nil {
			cause = err.Error()
			return false, ended(err)
		}
		for _, condition := range subnet.Status.Conditions {
			if condition.Type == kubeovnv1.ConditionReady {
				cause = condition.Message
				return condition.Status == metav1.ConditionTrue, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the Subnet %s with %s (--vpc-cidrs sets other networks): %s: %w", c.name, subnet.Spec.CIDRBlock, plain(cause), err)
	}
	return nil
}

// vpcBlocks returns the networks of the Subnet, in the families of the default Subnet.
func (c *connectivity) vpcBlocks(ctx context.Context) ([]string, error) {
	var subnets kubeovnv1.SubnetList
	if err := c.objects.List(ctx, &subnets); err != nil {
		return nil, fmt.Errorf("list Subnets: %w", err)
	}
	families := map[bool]bool{}
	for i := range subnets.Items {
		if s := &subnets.Items[i]; s.Spec.Default {
			for block := range strings.SplitSeq(s.Spec.CIDRBlock, ",") {
				families[!strings.Contains(block, ":")] = true
			}
		}
	}
	var blocks []string
	for _, text := range c.vpcCIDRs {
		block, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--vpc-cidrs: %w", err)
		}
		if families[block.Addr().Is4()] {
			blocks = append(blocks, text)
		}
	}
	if len(blocks) == 0 {
		return nil, errors.New("no network of --vpc-cidrs has a family of the default Subnet")
	}
	return blocks, nil
}

// wanted returns all pods.
func (c *connectivity) wanted() []*corev1.Pod {
	first, last := c.hosts[0], c.hosts[len(c.hosts)-1]
	var pods []*corev1.Pod
	for i, h := range c.hosts {
		pods = append(pods, serverPod(c.name, fmt.Sprintf(clientPod, i), h), waitingPod(c.name, fmt.Sprintf(hostPod, i), h))
	}
	admitted := serverPod(c.name, admittedPod, first)
	admitted.Labels[accessLabel] = ""
	pods = append(pods, serverPod(c.name, neighbourPod, first), serverPod(c.name, closedPod, last), admitted)
	if c.dual { // kubelets probe the first address of a pod
		probed := serverPod(c.name, probedPod, last)
		probed.Annotations = map[string]string{kubeovnv1.AnnotationIPFamily.Key(): "ipv6"}
		pods = append(pods, probed)
	}
	for i, h := range []host{first, last} {
		pod := serverPod(c.vpcNamespace(), fmt.Sprintf(vpcPod, i), h)
		pod.Spec.Containers[0].ReadinessProbe = nil
		pods = append(pods, pod)
	}
	return pods
}

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
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
}

// createPod creates a pod. The ServiceAccount of a new namespace exists a little later than the namespace.
func (c *connectivity) createPod(ctx context.Context, pod *corev1.Pod) error {
	var refusal error
	err := wait.PollUntilContextTimeout(ctx, poll, serviceAccountTime, true, func(ctx context.Context) (bool, error) {
		_, err := c.pods.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account") { // and not for a missing right of the user
			refusal = err
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("create the pod %s: %w", pod.Name, errors.Join(err, refusal))
	}
	return nil
}

// await waits until all pods run and are ready, and reports the other pods as failures of their nodes. Later checks skip them.
func (c *connectivity) await(ctx context.Context) error {
	wanted, all := c.wanted(), map[string]*corev1.Pod{}
	var unread error
	err := wait.PollUntilContextTimeout(ctx, poll, c.startTime, true, func(context.Context) (bool, error) {
		// A request has a time of its own: one that begins at the end of startTime says what runs then. The client's rate limiter
		// would refuse it at once.
		ctx, done := context.WithTimeout(ctx, requestTime)
		defer done()
		for _, namespace := range []string{c.name, c.vpcNamespace()} {
			var list *corev1.PodList
			if list, unread = c.pods.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}); unread != nil {
				return false, ended(unread)
			}
			for i := range list.Items {
				all[list.Items[i].Name] = &list.Items[i]
			}
		}
		return !slices.ContainsFunc(wanted, func(p *corev1.Pod) bool { return !runs(all[p.Name]) || needsProbe(p) && !ready(all[p.Name]) }), nil
	})
	if ctx.Err() != nil || err != nil && unread != nil {
		return fmt.Errorf("wait for the pods: %w", errors.Join(err, unread))
	}
	c.running = map[string]*corev1.Pod{}
	var started, probed []outcome
	for _, p := range wanted {
		start := outcome{nodes: p.Spec.NodeName, what: "pod " + p.Name}
		pod := all[p.Name]
		if !runs(pod) {
			start.problem = "it does not run: " + c.whyWaiting(ctx, p, pod)
			started = append(started, start)
			continue
		}
		started, c.running[p.Name] = append(started, start), pod
		if !needsProbe(p) {
			continue
		}
		probe := outcome{nodes: p.Spec.NodeName, what: "kubelet → pod " + p.Name, family: familyOf(pod.Status.PodIP)}
		if !ready(pod) {
			probe.problem = "the readiness probe fails"
		}
		probed = append(probed, probe)
	}
	c.report("pods start", started)
	c.report("kubelet probe → pod", probed)
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

// whyWaiting returns why a pod does not run: the reason of its container, and its newest warning.
func (c *connectivity) whyWaiting(ctx context.Context, wanted, pod *corev1.Pod) string {
	if pod == nil {
		return "it does not exist"
	}
	why := []string{string(pod.Status.Phase), pod.Status.Message}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			why = append(why, s.State.Waiting.Reason, s.State.Waiting.Message)
		}
	}
	events, err := c.pods.CoreV1().Events(wanted.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + wanted.Name})
	if err == nil && len(events.Items) > 0 {
		newest := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
		why = append(why, newest.Reason, newest.Message)
	}
	return strings.Join(slices.DeleteFunc(why, func(s string) bool { return s == "" }), ", ")
}

// closePolicy returns the NetworkPolicy: it admits one pod to the port of TCP.
func (c *connectivity) closePolicy() *networkingv1.NetworkPolicy {
	protocol, port := corev1.ProtocolTCP, intstr.FromInt32(probedPort)
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: c.name, Name: closedPod}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{roleLabel: closedPod}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{accessLabel: ""}}}},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: &protocol, Port: &port}},
		}},
	}}
}

// remove deletes all objects, and waits until they no longer exist. Subnets and Vpcs wait for their pods.
func (c *connectivity) remove(ctx context.Context) error {
	named := metav1.ObjectMeta{Name: c.name}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.vpcNamespace()}}, &corev1.Namespace{ObjectMeta: named},
		&kubeovnv1.Subnet{ObjectMeta: named}, &kubeovnv1.Vpc{ObjectMeta: named},
	}
	var errs []error
	for _, namespace := range []string{c.vpcNamespace(), c.name} {
		err := c.pods.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		errs = append(errs, client.IgnoreNotFound(err))
	}
	for _, o := range objects {
		errs = append(errs, client.IgnoreNotFound(c.objects.Delete(ctx, o)))
	}
	left := objects
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		var unread error
		left = slices.DeleteFunc(left, func(o client.Object) bool {
			err := c.objects.Get(ctx, client.ObjectKeyFromObject(o), o)
			unread = errors.Join(unread, ended(err))
			return apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
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
