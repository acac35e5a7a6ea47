// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster controls a Kubernetes cluster from outside for the demo and the end-to-end tests: it installs Kiln, starts pods
// and runs commands in them.
package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	watchtools "k8s.io/client-go/tools/watch"
)

// AgnhostImage is the standard Kubernetes test image, which the lab has under its usual name.
const AgnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"

// HTTPPort is the port of pods made by Server.
const HTTPPort = 8080

// Cluster is a client of one cluster.
type Cluster struct {
	kubernetes.Interface
	Config *rest.Config
}

// Connect returns a client for a kubeconfig.
func Connect(kubeconfig string) (*Cluster, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.QPS, cfg.Burst = 200, 400
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", cfg.Host, err)
	}
	return &Cluster{Interface: c, Config: cfg}, nil
}

// Server returns a pod that serves HTTP with agnhost's netexec (/echo, /clientip, /hostname) and has a readiness probe.
func Server(namespace, name, node string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: &grace,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name:            "netexec",
				Image:           AgnhostImage,
				ImagePullPolicy: corev1.PullIfNotPresent,
				Args:            []string{"netexec", fmt.Sprintf("--http-port=%d", HTTPPort), "--udp-port=-1"},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
						Path: "/hostname", Port: intstr.FromInt32(HTTPPort)}},
					PeriodSeconds: 1,
				},
			}},
		},
	}
}

// Run creates a pod and waits until it is ready. It uses an existing pod of that name unchanged.
func (c *Cluster) Run(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	_, err := c.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return c.WaitPod(ctx, pod.Namespace, pod.Name, Ready)
}

// Ready reports whether a pod's Ready condition is true.
func Ready(p *corev1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

// WaitPod watches a pod until wanted returns true. Its error includes the pod's last state.
func (c *Cluster) WaitPod(ctx context.Context, namespace, name string, wanted func(*corev1.Pod) bool) (*corev1.Pod, error) {
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", namespace, fields.OneTermEqualSelector("metadata.name", name))
	var last *corev1.Pod
	_, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		if p, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted {
			last = p
			return wanted(p), nil
		}
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for pod %s/%s (%s): %w", namespace, name, state(last), err)
	}
	return last, nil
}

func state(p *corev1.Pod) string {
	if p == nil {
		return "never seen"
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			return fmt.Sprintf("%s on %s, %s: %s", p.Status.Phase, p.Spec.NodeName, s.State.Waiting.Reason, s.State.Waiting.Message)
		}
	}
	return fmt.Sprintf("%s on %s", p.Status.Phase, p.Spec.NodeName)
}

// notStarted is in the error if runc(8) ended before it started a command. This happened once in some thousand commands.
const notStarted = "waiting for init preliminary setup"

// Exec runs a command in a pod's first container and returns its standard output. Its standard error is part of the error.
func (c *Cluster) Exec(ctx context.Context, pod *corev1.Pod, command ...string) (string, error) {
	return c.ExecWithin(ctx, 30*time.Second, pod, command...)
}

// ExecWithin is Exec for a command that takes longer.
func (c *Cluster) ExecWithin(ctx context.Context, limit time.Duration, pod *corev1.Pod, command ...string) (string, error) {
	out, err := c.exec(ctx, limit, pod, command...)
	if err != nil && strings.Contains(err.Error(), notStarted) {
		return c.exec(ctx, limit, pod, command...)
	}
	return out, err
}

func (c *Cluster) exec(ctx context.Context, limit time.Duration, pod *corev1.Pod, command ...string) (string, error) {
	req := c.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: pod.Spec.Containers[0].Name, Command: command, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	exec, err := remotecommand.NewWebSocketExecutor(c.Config, "GET", req.URL().String())
	if err != nil {
		return "", fmt.Errorf("exec in %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	if err := exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return stdout.String(), fmt.Errorf("run %.200q in %s/%s: %w: %s", command, pod.Namespace, pod.Name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// PodAddrs returns a pod's addresses, the preferred family first.
func PodAddrs(p *corev1.Pod) []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// NodeAddrs returns a node's InternalIPs.
func NodeAddrs(n *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, address := range n.Status.Addresses {
		if a, err := netip.ParseAddr(address.Address); err == nil && address.Type == corev1.NodeInternalIP {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// InFamilyOf returns the first address in the family of like.
func InFamilyOf(addrs []netip.Addr, like netip.Addr) (netip.Addr, bool) {
	for _, a := range addrs {
		if a.Is4() == like.Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}
