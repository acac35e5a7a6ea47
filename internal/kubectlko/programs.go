// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// The label of components, and the components with a pod on every node: Open vSwitch, and the agent.
const (
	componentLabel = "app.kubernetes.io/component"
	openVSwitch    = "ovs-ovn"
	agent          = "kube-ovn-cni"
)

// nodePrograms run in a node's Open vSwitch pod: ovs-vsctl(8), ovs-ofctl(8), ovs-appctl(8). dpctl is ovs-appctl's dpctl, which
// supports the userspace datapath; ovs-dpctl(8) does not.
var nodePrograms = []struct {
	name  string
	short string
	argv  func(args []string) []string
}{
	{"vsctl", "ovs-vsctl on a node", prefix("ovs-vsctl", "--timeout=30")},
	{"ofctl", "ovs-ofctl on a node", prefix("ovs-ofctl")},
	{"appctl", "ovs-appctl on a node", prefix("ovs-appctl")},
	{"dpctl", "ovs-appctl dpctl/… on a node, as in `kubectl ko dpctl NODE dump-flows`", func(args []string) []string {
		if len(args) == 0 {
			return []string{"ovs-appctl", "list-commands"}
		}
		return append([]string{"ovs-appctl", "dpctl/" + args[0]}, args[1:]...)
	}},
}

func prefix(program ...string) func([]string) []string {
	return func(args []string) []string { return append(append([]string{}, program...), args...) }
}

// programs returns the commands that run a program in a pod. Flags after a program's name are passed to the program.
func (p *plugin) programs(source func() clientcmd.ClientConfig) []*cobra.Command {
	var commands []*cobra.Command
	for _, db := range databases {
		commands = append(commands, &cobra.Command{
			Use:                db.program + " [ARGUMENT…]",
			Short:              "ovn-" + db.program + " on the leader of the " + db.long + " database",
			DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				pod, err := p.leader(cmd.Context(), db)
				if err != nil {
					return err
				}
				return p.run(cmd.Context(), pod, db.ctl(args), p.out)
			},
		})
	}
	for _, program := range nodePrograms {
		commands = append(commands, &cobra.Command{
			Use:                program.name + " NODE [ARGUMENT…]",
			Short:              program.short,
			DisableFlagParsing: true,
			ValidArgsFunction:  p.completeNodes(source),
			RunE: func(cmd *cobra.Command, args []string) error {
				if len(args) == 0 {
					return errors.New("which node? kubectl ko " + program.name + " NODE …")
				}
				pod, err := p.podOn(cmd.Context(), openVSwitch, args[0])
				if err != nil {
					return err
				}
				return p.run(cmd.Context(), pod, program.argv(args[1:]), p.out)
			},
		})
	}
	return commands
}

// podsOf returns the pods of a component.
func (p *plugin) podsOf(ctx context.Context, component string) ([]corev1.Pod, error) {
	list, err := p.pods.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{LabelSelector: componentLabel + "=" + component})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", component, err)
	}
	return list.Items, nil
}

// podOn returns a component's running pod on a node.
func (p *plugin) podOn(ctx context.Context, component, node string) (*corev1.Pod, error) {
	pods, err := p.pods.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: componentLabel + "=" + component, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", component, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("no pod of %s runs on node %s in namespace %s", component, node, p.namespace)
}

// notUpgraded reports whether a proxy or an old API server does not support WebSocket.
func notUpgraded(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// run executes a program in a pod.
func (p *plugin) run(ctx context.Context, pod *corev1.Pod, argv []string, out io.Writer) error {
	request := p.pods.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: pod.Spec.Containers[0].Name, Command: argv, Stdin: p.stdin, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	sockets, err := remotecommand.NewWebSocketExecutor(p.config, "GET", request.URL().String())
	if err != nil {
		return fmt.Errorf("execute in pod %s: %w", pod.Name, err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(p.config, "POST", request.URL())
	if err != nil {
		return fmt.Errorf("execute in pod %s: %w", pod.Name, err)
	}
	executor, err := remotecommand.NewFallbackExecutor(sockets, spdy, notUpgraded) // like kubectl
	if err != nil {
		return fmt.Errorf("execute in pod %s: %w", pod.Name, err)
	}
	streams := remotecommand.StreamOptions{Stdout: out, Stderr: p.errOut}
	if p.stdin {
		streams.Stdin = p.in
	}
	if err := executor.StreamWithContext(ctx, streams); err != nil {
		return fmt.Errorf("execute %s in pod %s: %w", argv[0], pod.Name, err)
	}
	return nil
}
