// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// createVPC creates a Vpc with a Subnet, and waits until pods can use it.
func (c *connectivity) createVPC(ctx context.Context, blocks []string) error {
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: c.vpc()}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{c.vpcNamespace()}, DefaultSubnet: c.name}}
	if err := c.objects.Create(ctx, vpc); err != nil {
		return fmt.Errorf("create the Vpc: %w", err)
	}
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: kubeovnv1.SubnetSpec{
		Vpc: c.vpc(), CIDRBlock: strings.Join(blocks, ","), Namespaces: []string{c.vpcNamespace()},
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
