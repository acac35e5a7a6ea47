// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/hack/lab/topology"
)

// Status writes a table of the machines, with the readiness of the nodes in Kubernetes.
func (c *Cluster) Status(ctx context.Context, out io.Writer) error {
	nodes, problem := c.conditions(ctx)
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "MACHINE\tRUNS\tKUBERNETES\tADDRESSES\tLOGS")
	for _, n := range c.Nodes() {
		c.row(t, n.Name, nodes[n.Name], n.Addresses())
	}
	c.row(t, Router, "-", "-")
	c.row(t, Switch, "-", "-")
	c.row(t, OutsideHost, "-", c.OutsideEndpoints())
	for _, v := range topology.VLANs {
		c.row(t, v.HostName(), "-", topology.Addrs(v.Outside()))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	if problem != nil {
		return fmt.Errorf("ask the Kubernetes API: %w (log: %s)", problem, c.dir.log(c.Nodes()[0].Name, "kube-apiserver"))
	}
	fmt.Fprintf(out, "\nexport KUBECONFIG=%s\n", c.Kubeconfig())
	return nil
}

func (c *Cluster) row(out io.Writer, name, condition string, addresses any) {
	runs := "no"
	if c.Alive(name) {
		runs = "yes"
	}
	if condition == "" {
		condition = "unknown"
	}
	fmt.Fprintf(out, "%s\t%s\t%s\t%v\t%s\n", name, runs, condition, addresses, c.LogDir(name))
}

// conditions returns "Ready" or "NotReady" by node.
func (c *Cluster) conditions(ctx context.Context) (map[string]string, error) {
	rc, err := restConfig(c.dir)
	if err != nil {
		return nil, err
	}
	clients, err := clientset(rc)
	if err != nil {
		return nil, err
	}
	list, err := clients.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, n := range list.Items {
		out[n.Name] = "NotReady"
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				out[n.Name] = "Ready"
			}
		}
	}
	return out, nil
}
