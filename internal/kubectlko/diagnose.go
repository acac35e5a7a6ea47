// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
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
		Use: "diagnose", Short: "Checks of the network from pods, and of a subnet", Args: cobra.NoArgs,
		Long: "Checks of `all`, `node` and `IPPorts` run in the pods of kube-ovn-pinger (spec.pinger.mode of the OVNCluster), the checks of `subnet` in pods of their own.",
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
		p.diagnoseSubnetCommand(),
	)
	return root
}

// diagnoseSubnetCommand returns the command `kubectl ko diagnose subnet`.
func (p *plugin) diagnoseSubnetCommand() *cobra.Command {
	var run podRunFlags
	var in string
	packets := true
	cmd := &cobra.Command{
		Use: "subnet NAME", Short: "Conditions of a subnet, its switch in the northbound database, and packets between pods of it",
		Long: "It creates pods with Kiln's image and addresses of the subnet, and deletes them at the end. They are in a namespace of its own, or in the one of --in: private\n" +
			"subnets and subnets of custom VPCs admit pods of the namespaces that they list.\n\n" +
			"Exit codes: 0 if the subnet is ready and all checks pass, 1 otherwise. A failure names the nodes.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := p.diagnoseSubnet(cmd.Context(), args[0])
			if !packets || args[0] == kubeovnv1.JoinSubnet || errors.Is(err, errNoSubnet) { // no pod has an address of join
				return err
			}
			fmt.Fprintln(p.out)
			return errors.Join(err, p.newSubnetRun(run, in).run(cmd.Context(), args[0]))
		},
	}
	f := cmd.Flags()
	run.add(f)
	f.BoolVar(&packets, "packets", true, "send packets between pods of the subnet")
	f.StringVar(&in, "in", "", "an existing namespace for the pods, which may use the subnet, instead of a namespace of their own")
	return cmd
}

// errNoSubnet is the error of a Subnet that cannot be read.
var errNoSubnet = errors.New("read the Subnet")

func (p *plugin) diagnoseAll(ctx context.Context) error {
	return errors.Join(p.printStatus(ctx, nil), p.checkAll(ctx))
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
	out, other := &bytes.Buffer{}, *p // the node may be a stolen one
	other.errOut = &limited{out, largestOutput}
	err = other.run(ctx, pod, append([]string{"kiln", "pinger", "--mode=job"}, flags...), other.errOut)
	fmt.Fprint(p.out, printable(out.String()))
	if status := (utilexec.ExitError)(nil); errors.As(err, &status) && status.Exited() {
		return fmt.Errorf("checks from node %s failed", node)
	}
	return err
}

func (p *plugin) diagnoseSubnet(ctx context.Context, name string) error {
	subnet := &unstructured.Unstructured{}
	subnet.SetGroupVersionKind(kubeovnv1.GroupVersion.WithKind("Subnet"))
	if err := p.objects.Get(ctx, types.NamespacedName{Name: name}, subnet); err != nil {
		return fmt.Errorf("%w: %w", errNoSubnet, err)
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
