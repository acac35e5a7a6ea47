// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	utilexec "k8s.io/client-go/util/exec"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// pinger is the component of the pods that check the network.
const pinger = "kube-ovn-pinger"

// diagnose returns the command `kubectl ko diagnose`.
func (p *plugin) diagnose(source func() clientcmd.ClientConfig) *cobra.Command {
	root := &cobra.Command{
		Use: "diagnose", Short: "Checks of the network from pods, and the state of a subnet", Args: cobra.NoArgs,
		Long: "Checks of `all`, `node` and `IPPorts` run in the pods of kube-ovn-pinger (spec.pinger.mode of the OVNCluster).",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(
		&cobra.Command{
			Use: "all", Short: "The state of the network, and all checks from every node", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return p.diagnoseAll(cmd.Context()) },
		},
		&cobra.Command{
			Use: "node NODE", Short: "All checks from one node", Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeNodes(source),
			RunE: func(cmd *cobra.Command, args []string) error { return p.check(cmd.Context(), args[0]) },
		},
		&cobra.Command{
			Use: "IPPorts PROTOCOL-ADDRESS-PORT[,…]", Short: "Connections from every node to TCP and UDP ports, as in tcp-10.16.0.5-80,udp-10.96.0.10-53",
			Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return p.checkAll(cmd.Context(), "--ports="+args[0]) },
		},
		&cobra.Command{
			Use: "subnet NAME", Short: "Conditions of a subnet, and its switch in the northbound database", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return p.diagnoseSubnet(cmd.Context(), args[0]) },
		},
	)
	return root
}

func (p *plugin) diagnoseAll(ctx context.Context) error {
	return errors.Join(p.printStatus(ctx, formatText), p.checkAll(ctx))
}

// checkAll runs checks of kube-ovn-pinger on every node.
func (p *plugin) checkAll(ctx context.Context, flags ...string) error {
	pods, err := p.podsOf(ctx, pinger)
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		return errors.New("no pod of kube-ovn-pinger runs: set spec.pinger.mode of the OVNCluster to Enabled")
	}
	var errs []error
	for i := range pods {
		errs = append(errs, p.check(ctx, pods[i].Spec.NodeName, flags...))
	}
	return errors.Join(errs...)
}

// check runs the checks of kube-ovn-pinger on a node once.
func (p *plugin) check(ctx context.Context, node string, flags ...string) error {
	pod, err := p.podOn(ctx, pinger, node)
	if err != nil {
		return fmt.Errorf("%w: see spec.pinger.mode of the OVNCluster", err)
	}
	fmt.Fprintf(p.out, "\nchecks from node %s:\n", node)
	err = p.run(ctx, pod, append([]string{"kiln", "pinger", "--mode=job"}, flags...), p.out)
	if status := (utilexec.ExitError)(nil); errors.As(err, &status) && status.Exited() {
		return fmt.Errorf("checks from node %s failed", node)
	}
	return err
}

func (p *plugin) diagnoseSubnet(ctx context.Context, name string) error {
	subnet := &unstructured.Unstructured{}
	subnet.SetGroupVersionKind(kubeovnv1.GroupVersion.WithKind("Subnet"))
	if err := p.objects.Get(ctx, types.NamespacedName{Name: name}, subnet); err != nil {
		return fmt.Errorf("read the Subnet: %w", err)
	}
	var failed error
	for _, c := range conditionsOf(subnet) {
		fmt.Fprintf(p.out, "%s: %s: %s\n", c.Type, c.Status, plain(c.Message))
		if c.Type == kubeovnv1.ConditionReady && c.Status != "True" {
			failed = fmt.Errorf("subnet %s is not ready: %s", name, plain(c.Message))
		}
	}
	pod, err := p.leader(ctx, databases[0])
	if err != nil {
		return errors.Join(failed, err)
	}
	return errors.Join(failed, p.run(ctx, pod, databases[0].ctl([]string{"show", name}), p.out))
}
