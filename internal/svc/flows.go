// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package svc

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/serving/budget"
)

// Bounds are the flows (Flows) that one Service, and the Services of a namespace in one VPC, may cost each node. They are the same
// for the controller and for agents, so that pods and nodes reach the same Services.
var Bounds = budget.Bounds{Object: 1 << 17, Group: 1 << 20}

// Weights of the parts of a Service in OpenFlow flows, in a VPC of five subnets that serve Services (TestFlowsOfServices). They are fixed: a
// Service must not exceed a bound because an administrator adds a subnet. An element of nftables takes as long as a flow.
const (
	flowsOfFront    = 16
	flowsOfEndpoint = 1
	// flowsOfPeer is an endpoint of a node port with externalTrafficPolicy Local: other nodes have a front for its node and an endpoint.
	flowsOfPeer = 2
	// flowsOfRange is one of loadBalancerSourceRanges.
	flowsOfRange = 2
)

// Flows estimates how many flows a Service costs each node. It counts all endpoints of the EndpointSlices, whether they serve or not, so that
// a rolling update changes little. It is linear in the size of the objects.
func Flows(s *corev1.Service, of []*discoveryv1.EndpointSlice) int {
	if s.Spec.Type == corev1.ServiceTypeExternalName || slices.Contains(s.Spec.ClusterIPs, corev1.ClusterIPNone) {
		return 0
	}
	count := map[endpoints.Key]int{}
	for _, slice := range of {
		for i := range slice.Ports {
			count[endpoints.KeyIn(slice, &slice.Ports[i])] += len(slice.Endpoints)
		}
	}
	addresses := map[discoveryv1.AddressType]int{}
	for _, a := range Addresses(s) {
		if a.Is4() {
			addresses[discoveryv1.AddressTypeIPv4]++
		} else {
			addresses[discoveryv1.AddressTypeIPv6]++
		}
	}
	if ByOvnEip(s) { // at most one address of each family of the Service, which the status may not have yet
		for _, family := range s.Spec.IPFamilies {
			addresses[discoveryv1.AddressType(family)]++
		}
	}
	flows := flowsOfRange * len(s.Spec.LoadBalancerSourceRanges)
	for _, p := range s.Spec.Ports {
		for family, n := range addresses {
			e := count[endpoints.KeyOf(p.Name, p.Protocol, family)]
			if p.NodePort != 0 {
				n++
			}
			flows += n * (flowsOfFront + e*flowsOfEndpoint)
			if p.NodePort != 0 && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
				flows += e * flowsOfPeer
			}
		}
	}
	return flows
}

// Expense returns the Service's cost in the budget of its namespace. Each VPC has its own budget, because Services cost
// the nodes of their VPC.
func Expense(s *corev1.Service, vpc string, flows int) budget.Object {
	return budget.Object{
		Key: client.ObjectKeyFromObject(s), Group: s.Namespace + "/" + vpc, Created: s.CreationTimestamp.Time, Cost: flows,
	}
}

// Refusal returns why a Service is not served and what to change; empty for a Service within the bounds.
func Refusal(s *corev1.Service, vpc string, verdict budget.Verdict, flows int) string {
	switch verdict {
	case budget.ObjectExceeded:
		return fmt.Sprintf("the Service is not served: it would cost each node %d flows, more than %d: divide it, or use fewer ports, addresses or endpoints",
			flows, Bounds.Object)
	case budget.GroupExceeded:
		return fmt.Sprintf("the Service is not served: with its %d flows the Services of namespace %s in Vpc %s would cost each node more than %d flows. The oldest ones "+
			"count first: delete Services, or use fewer ports, addresses or endpoints", flows, s.Namespace, vpc, Bounds.Group)
	}
	return ""
}
