// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

const (
	// captureImage is a public image with tcpdump.
	captureImage = "docker.io/nicolaka/netshoot:v0.13"
	// captureStart bounds the start of the pod with tcpdump, which includes the pull of its image.
	captureStart = 3 * time.Minute
	// captureLife bounds the life of that pod, if the plugin cannot delete it.
	captureLife = 24 * time.Hour
)

// tcpdump returns the command `kubectl ko tcpdump`. Flags of tcpdump follow the name of the pod.
func (p *plugin) tcpdump() *cobra.Command {
	image := ""
	cmd := &cobra.Command{
		Use:   "tcpdump [NAMESPACE/]POD [ARGUMENT…]",
		Short: "tcpdump at the network interface of a pod, as in `kubectl ko tcpdump default/web -c 10 tcp port 80`",
		Long: "It runs in a pod of its own in the network of the pod's node, with the capability NET_RAW, and deletes that pod at the end.\n" +
			"`-w -` writes the packets to the standard output.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.capture(cmd.Context(), image, args[0], args[1:])
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&image, "image", captureImage, "image with tcpdump and sleep")
	return cmd
}

func (p *plugin) capture(ctx context.Context, image, name string, args []string) error {
	namespace, pod, found := strings.Cut(name, "/")
	if !found {
		namespace, pod = metav1.NamespaceDefault, name
	}
	target, err := p.pods.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the pod: %w", err)
	}
	device := "any"
	if !target.Spec.HostNetwork {
		if device, err = p.deviceOf(ctx, target); err != nil {
			return err
		}
	}
	made, err := p.pods.CoreV1().Pods(p.namespace).Create(ctx, capturePod(image, target.Spec.NodeName), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the pod of tcpdump: %w", err)
	}
	defer func() { // also after an interrupt
		err := p.pods.CoreV1().Pods(made.Namespace).Delete(context.WithoutCancel(ctx), made.Name, metav1.DeleteOptions{})
		if err != nil {
			fmt.Fprintf(p.errOut, "delete the pod %s of namespace %s: %v\n", made.Name, made.Namespace, err)
		}
	}()
	if err := p.waitRunning(ctx, made); err != nil {
		return err
	}
	err = p.run(ctx, made, append([]string{"tcpdump", "-U", "-i", device}, args...), p.out)
	if ctx.Err() != nil {
		return nil // the user ended it
	}
	return err
}

// deviceOf returns the device of a pod on its node.
func (p *plugin) deviceOf(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.NodeName == "" {
		return "", fmt.Errorf("pod %s/%s has no node yet", pod.Namespace, pod.Name)
	}
	on, err := p.podOn(ctx, openVSwitch, pod.Spec.NodeName)
	if err != nil {
		return "", err
	}
	out := &bytes.Buffer{}
	query := []string{"ovs-vsctl", "--timeout=30", "--bare", "--no-heading", "--columns=name", "find", "Interface", "external_ids:iface-id=" + pod.Name + "." + pod.Namespace}
	if err := p.run(ctx, on, query, out); err != nil {
		return "", err
	}
	device := strings.TrimSpace(out.String())
	if device == "" || strings.ContainsAny(device, " \n") {
		return "", fmt.Errorf("pod %s/%s has no interface of its own in Open vSwitch of node %s", pod.Namespace, pod.Name, pod.Spec.NodeName)
	}
	return device, nil
}

// capturePod returns a pod that waits for tcpdump.
func capturePod(image, node string) *corev1.Pod {
	life, grace := int64(captureLife.Seconds()), int64(0)
	root, no := int64(0), false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kubectl-ko-tcpdump-"},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &life, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "tcpdump", Image: image, Command: []string{"sleep", fmt.Sprint(life)},
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: &root, AllowPrivilegeEscalation: &no,
					// tcpdump gives up root by setuid and setgid.
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_RAW", "NET_ADMIN", "SETUID", "SETGID"}},
				},
			}},
		},
	}
}

// waitRunning waits until a pod runs. Its error has the reason why the container waits.
func (p *plugin) waitRunning(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, captureStart)
	defer cancel()
	reason := "it is not scheduled"
	named := fields.OneTermEqualSelector("metadata.name", pod.Name).String()
	pods := p.pods.CoreV1().Pods(pod.Namespace)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = named
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = named
			return pods.Watch(ctx, o)
		},
	}
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		now, isPod := e.Object.(*corev1.Pod)
		if !isPod {
			return false, nil
		}
		for _, s := range now.Status.ContainerStatuses {
			if s.State.Waiting != nil {
				reason = strings.TrimSpace(s.State.Waiting.Reason + " " + s.State.Waiting.Message)
			}
		}
		switch {
		case e.Type == watch.Deleted:
			return false, errors.New("it was deleted")
		case now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded:
			return false, fmt.Errorf("it has ended: %s", now.Status.Message)
		}
		return now.Status.Phase == corev1.PodRunning, nil
	})
	if err != nil {
		return fmt.Errorf("start the pod of tcpdump (%s; --image sets its image): %w", plain(reason), err)
	}
	return nil
}
