// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiChanger makes the changes as users of Kubernetes make them.
type apiChanger struct{ *enforcement }

var _ changer = apiChanger{}

func (c apiChanger) isolate(ctx context.Context, name string, port int32) error {
	return c.bench.createPolicy(ctx, name, selects("probe", probeServer+"0"), selects("probe", probeClient), port)
}

func (c apiChanger) admit(ctx context.Context, name string, port int32) error {
	if err := c.bench.setLabel(ctx, probeServer+"1", labelMember, "true"); err != nil {
		return err
	}
	return c.bench.createPolicy(ctx, name, selects("probe", probeServer+"0"), selects(labelMember, "true"), port)
}

func (c apiChanger) release(ctx context.Context) error {
	for _, name := range []string{"allows", "denies", "admits"} {
		err := c.bench.world.clients.NetworkingV1().NetworkPolicies(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete policy %s: %w", name, err)
		}
	}
	return nil
}

func (c apiChanger) setMember(ctx context.Context, member bool) error {
	return c.bench.setLabel(ctx, probeClient, labelMember, strconv.FormatBool(member))
}

func (c apiChanger) setEndpoint(ctx context.Context, server int) error {
	c.slice.Endpoints[0].Addresses = []string{c.servers[server].ip.String()}
	updated, err := c.bench.world.clients.DiscoveryV1().EndpointSlices(namespace).Update(ctx, c.slice, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("replace the endpoint: %w", err)
	}
	c.slice = updated
	return nil
}

func (c apiChanger) vip() netip.Addr { return c.service }
