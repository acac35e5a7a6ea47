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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

const (
	// captureStart bounds the start of the pod with tcpdump from Kiln's image, which the node has. capturePull also includes the pull of another one.
	captureStart, capturePull = time.Minute, 3 * time.Minute
	// captureLife bounds the life of that pod, if the plugin cannot delete it.
	captureLife = 24 * time.Hour
	// deletion bounds the request that deletes a pod at the end.
	deletion = 30 * time.Second
)

// tcpdump returns the command `kubectl ko tcpdump`. Flags of tcpdump follow the name of the pod.
func (p *plugin) tcpdump() *cobra.Command {
	image := ""
	cmd := &cobra.Command{
		Use:   "tcpdump [NAMESPACE/]POD [ARGUMENT…]",
		Short: "tcpdump at the network interface of a pod, as in `kubectl ko tcpdump default/web -c 10 tcp port 80`",
		Long: "It runs in a pod of its own in the network of the pod's node, with the image of Kiln's pods there and the capability NET_RAW,\n" +
			"and deletes that pod at the end. `-w -` writes the packets to the standard output.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.capture(cmd.Context(), image, args[0], args[1:])
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&image, "image", "", "another image with tcpdump and sleep; by default the image of Kiln's pods on the node, which needs no pull")
	return cmd
}

func (p *plugin) capture(ctx context.Context, image, name string, args []string) error {
	if file := savefile(args); file != "" {
		return fmt.Errorf("-w %s would write the packets to a file in a pod that is deleted: use `-w - >%s`", file, file)
	}
	namespace, pod, found := strings.Cut(name, "/")
	if !found {
		namespace, pod = metav1.NamespaceDefault, name
	}
	target, err := p.pods.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the pod: %w", err)
	}
	if target.Spec.NodeName == "" {
		return fmt.Errorf("pod %s/%s has no node yet", target.Namespace, target.Name)
	}
	device := "any"
	if !target.Spec.HostNetwork {
		if device, err = p.deviceOf(ctx, target); err != nil {
			return err
		}
	}
	captor, err := p.captor(ctx, image, target.Spec.NodeName)
	if err != nil {
		return err
	}
	return p.temporary(ctx, captor.pod, func(made *corev1.Pod) error {
		if err := p.wait(ctx, made, captor.start, corev1.PodRunning); err != nil {
			return fmt.Errorf("start the pod of tcpdump: %w", err)
		}
		err := p.run(ctx, made, append(append([]string{"tcpdump"}, captor.flags...), append([]string{"-i", device}, args...)...), p.out)
		switch {
		case ctx.Err() != nil:
			return nil // the user ended it
		case err != nil && strings.Contains(err.Error(), "executable file not found"):
			return fmt.Errorf("the image %s has no tcpdump: set --image, or upgrade Kiln: %w", made.Spec.Containers[0].Image, err)
		}
		return err
	})
}

// savefile returns the file that the flag -w of tcpdump(8) names, or nothing if it is the standard output.
func savefile(args []string) string {
	for i, a := range args {
		file, is := strings.CutPrefix(a, "-w")
		if !is {
			continue
		}
		if file == "" && i+1 < len(args) {
			file = args[i+1]
		}
		if file != "" && file != "-" {
			return file
		}
	}
	return ""
}

// temporary creates a pod in Kiln's namespace, and deletes it after use, also after an interrupt.
func (p *plugin) temporary(ctx context.Context, pod *corev1.Pod, use func(made *corev1.Pod) error) error {
	pod.Name, pod.GenerateName = pod.GenerateName+rand.String(8), "" // known if the request is interrupted
	made, err := p.pods.CoreV1().Pods(p.namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil && refused(err) {
		return fmt.Errorf("create the pod %s: %w", pod.Name, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deletion)
		defer cancel()
		if err := p.pods.CoreV1().Pods(p.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			fmt.Fprintf(p.errOut, "delete the pod %s of namespace %s: %v\n", pod.Name, p.namespace, err)
		}
	}()
	if err != nil {
		return fmt.Errorf("create the pod %s: %w", pod.Name, err)
	}
	return use(made)
}

// deviceOf returns the device of a pod on its node.
func (p *plugin) deviceOf(ctx context.Context, pod *corev1.Pod) (string, error) {
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

// captor is the pod that waits for tcpdump, the bound of its start, and the flags of tcpdump that its image needs.
type captor struct {
	pod   *corev1.Pod
	start time.Duration
	flags []string
}

// captor returns the pod for a node. If no image is set, it has the image of Kiln's pods on that node.
func (p *plugin) captor(ctx context.Context, image, node string) (captor, error) {
	pod := capturePod(node)
	c := &pod.Spec.Containers[0]
	if image != "" {
		c.Image = image
		// Without `-Z root`, tcpdump gives up root by setuid and setgid. Not every build of tcpdump has `-Z root`.
		c.SecurityContext.Capabilities.Add = append(c.SecurityContext.Capabilities.Add, "SETUID", "SETGID")
		return captor{pod, capturePull, []string{"-U"}}, nil
	}
	like, err := p.podOn(ctx, openVSwitch, node)
	if err != nil {
		var other error
		if like, other = p.podOn(ctx, agent, node); other != nil {
			return captor{}, fmt.Errorf("find Kiln's image on the node (--image sets another one): %w", err)
		}
	}
	readOnly := true
	c.Image, c.ImagePullPolicy, c.SecurityContext.ReadOnlyRootFilesystem = like.Spec.Containers[0].Image, corev1.PullIfNotPresent, &readOnly
	pod.Spec.ImagePullSecrets = like.Spec.ImagePullSecrets
	return captor{pod, captureStart, []string{"-U", "-Z", "root"}}, nil
}

// capturePod returns a pod that waits for tcpdump, without its image.
func capturePod(node string) *corev1.Pod {
	life, grace := int64(captureLife.Seconds()), int64(0)
	root, no := int64(0), false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kubectl-ko-tcpdump-"},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &life, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "tcpdump", Command: []string{"sleep", fmt.Sprint(life)},
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: &root, AllowPrivilegeEscalation: &no, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_RAW"}},
				},
			}},
		},
	}
}

// wait waits until a pod runs, or until it has succeeded. Its error has the reason why the container waits, or has failed.
func (p *plugin) wait(ctx context.Context, pod *corev1.Pod, limit time.Duration, until corev1.PodPhase) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return p.watch(ctx, pod, func(now *corev1.Pod) bool { return now.Status.Phase == until })
}

// watch waits until a pod is as wanted. Its error has the reason why the container waits, or has failed.
func (p *plugin) watch(ctx context.Context, pod *corev1.Pod, wanted func(now *corev1.Pod) bool) error {
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
		case wanted(now):
			return true, nil
		case now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded:
			return false, fmt.Errorf("it has ended: %s", now.Status.Message)
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", plain(reason), err)
	}
	return nil
}
