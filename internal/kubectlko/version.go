// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/version"
)

// operatorComponent is the label value of the operator's pods (config/manager).
const operatorComponent = "kiln-operator"

func (p *plugin) version(source func() clientcmd.ClientConfig) *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Versions of this plugin, and of the programs that run in the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintf(p.out, "kubectl-ko %s\n", version.Kiln)
			if clientOnly {
				return nil
			}
			if err := p.connect(source()); err != nil {
				return err
			}
			return p.printVersions(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "only the version of this plugin, without a request to the cluster")
	return cmd
}

// printVersions prints the images of the operator, and the versions in the OVNCluster's status: those that ready pods report.
func (p *plugin) printVersions(ctx context.Context) error {
	pods := &corev1.PodList{}
	err := p.objects.List(ctx, pods, client.InNamespace(p.namespace), client.MatchingLabels{componentLabel: operatorComponent})
	if err != nil {
		return fmt.Errorf("list the pods of the operator: %w", err)
	}
	for i := range pods.Items {
		for _, container := range pods.Items[i].Spec.Containers {
			fmt.Fprintf(p.out, "%s %s\n", operatorComponent, container.Image)
		}
	}
	oc, err := p.cluster(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(p.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\nCOMPONENT\tKILN\tOVN\tOPEN VSWITCH\tPODS\tNODES")
	for _, component := range oc.Status.Components {
		if len(component.Versions) == 0 {
			fmt.Fprintf(table, "%s\t-\t-\t-\t-\t\n", component.Name)
		}
		for _, v := range component.Versions {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", component.Name, cmp.Or(v.Kiln, "-"), cmp.Or(v.OVN, "-"), cmp.Or(v.OpenVSwitch, "-"), v.Pods, nodesOf(component, v))
		}
	}
	return table.Flush()
}

// nodesOf returns the nodes with a version if the component has several versions.
func nodesOf(component v1alpha1.ComponentStatus, v v1alpha1.ComponentVersion) string {
	if len(component.Versions) < 2 {
		return ""
	}
	nodes := strings.Join(v.Nodes, ",")
	if int(v.Pods) > len(v.Nodes) {
		nodes += ",…"
	}
	return nodes
}
