// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// many adds pod shop/a and Service bank/p0 with n endpoints, of which each deny-th has the label of a NetworkPolicy without rules.
func many(c *cluster, n, deny int) Query {
	c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
	var pods []*corev1.Pod
	for i := range n {
		pod := c.run("bank", fmt.Sprint("p", i), "n2", kubeovnv1.DefaultSubnet)
		if deny > 0 && i%deny == 0 {
			pod.Labels["deny"] = ""
		}
		pods = append(pods, pod)
	}
	c.endpoints(c.serve(pods[0], 5), pods...)
	c.isolate("bank", "deny", "Ingress").Spec.PodSelector.MatchLabels = map[string]string{"deny": ""}
	return tcp(podEnd("shop", "a"), serviceEnd("bank", "p0"), 80)
}

// at gives the last pod other addresses, for VPCs with overlapping networks.
func (c *cluster) at(addresses ...string) *corev1.Pod {
	pod := c.last()
	network, err := kubeovnv1.ParsePodNetwork(pod.Annotations)
	if err != nil {
		panic(err)
	}
	network.Addresses = nil
	for _, text := range addresses {
		network.Addresses = append(network.Addresses, netip.MustParseAddr(text))
	}
	pod.Annotations = network.Annotations()
	return pod
}

// overlapping adds VPC blue with the addresses of VPC red and pod shop/b, which has the address of pod bank/b of VPC red.
func overlapping(c *cluster) {
	custom(c)
	c.vpc("blue", kubeovnv1.VpcSpec{Namespaces: []string{"shop"}})
	c.newSubnet("blue-1", "10.30.0.0/24,fd00:10:30::/112", kubeovnv1.SubnetSpec{Vpc: "blue", Namespaces: []string{"shop"}})
	c.run("shop", "b", "n1", "blue-1")
	c.at("10.30.0.10", "fd00:10:30::a")
}

func transit(red *kubeovnv1.Vpc) {
	red.Spec.ClusterAccess = kubeovnv1.ClusterAccessServices
	red.Status.Transit = &kubeovnv1.VpcTransit{Node: "n1", Addresses: []string{"100.64.0.50", "fd00:100:64::50"}}
}

var noService = End{Host: "nothing", Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.99"), netip.MustParseAddr("fd00:10:96::99")}}

// ownerSituations are those in which the owner of an address or a name decides: endpoints, addresses of Services, overlapping VPCs, wrong names.
var ownerSituations = map[string]func(c *cluster) situation{
	"a Service with 100 endpoints": func(c *cluster) situation {
		return situation{query: many(c, 100, 0), verdict: Delivered, says: "all 100 endpoints were followed, with one outcome"}
	},
	"a Service with 100 endpoints under a policy": func(c *cluster) situation {
		return situation{query: many(c, 100, 1), verdict: Dropped, says: "all 100 endpoints were followed, with one outcome", by: "NetworkPolicy bank/deny"}
	},
	"a Service with 100 endpoints of which 20 are under a policy": func(c *cluster) situation {
		return situation{
			query: many(c, 100, 5), verdict: CannotTell, by: "NetworkPolicy bank/deny",
			says: "of 100, the packet reaches 80 and is dropped on the way to 20: 20 dropped by NetworkPolicy bank/deny (",
		}
	},
	"a Service with 100 endpoints under two policies": func(c *cluster) situation {
		q := many(c, 100, 5)
		c.isolate("bank", "rest", "Ingress").Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "deny", Operator: metav1.LabelSelectorOpDoesNotExist}}
		return situation{query: q, verdict: Dropped, says: "all 100 endpoints were followed: 20 dropped by NetworkPolicy bank/deny (", by: "NetworkPolicy bank/deny"}
	},
	"endpoints that were not read": func(c *cluster) situation {
		q := many(c, 3, 0)
		c.Omitted = map[netip.Addr]bool{netip.MustParseAddr("10.16.0.12"): true, netip.MustParseAddr("fd00:10:16::c"): true}
		c.Pods = append(c.Pods[:2], c.Pods[3:]...)
		return situation{query: q, verdict: CannotTell, says: "2 endpoints were followed: 2 delivered (10.16.0.11:8080, 10.16.0.13:8080); 1 of 3 endpoints were not followed", one: true}
	},
	"an address that no Service has": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.Cluster.Spec.Services.NodeAccess = v1alpha1.NodeAccessKiln
		return situation{query: tcp(podEnd("shop", "a"), noService, 80), verdict: Dropped, says: "node n1 rejects the packet: no Service has "}
	},
	"an address that no Service has, with kube-proxy": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), noService, 80), verdict: Dropped, says: "node n1 finds no Service with "}
	},
	"an address that no Service has, from a node": func(*cluster) situation {
		return situation{query: tcp(End{Node: "n1"}, noService, 80), verdict: Dropped, says: "node n1 finds no Service with "}
	},
	"an address that no Service has, from outside": func(*cluster) situation {
		return situation{query: tcp(world, noService, 80), verdict: Dropped, says: "the node that gets the packet finds no Service with "}
	},
	"an address that no Service has, from a custom VPC": func(c *cluster) situation {
		custom(c)
		return situation{query: tcp(podEnd("bank", "b"), noService, 80), verdict: Dropped, says: "and no Service has this address", by: "Vpc red staticRoutes"}
	},
	"an address that no Service has, from a custom VPC with access": func(c *cluster) situation {
		transit(custom(c))
		return situation{query: tcp(podEnd("bank", "b"), noService, 80), verdict: Dropped, says: "node n1 finds no Service with "}
	},
	"an address that no Service has, under a policy": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.isolate("shop", "deny", "Egress")
		return situation{query: tcp(podEnd("shop", "a"), noService, 80), verdict: Dropped, says: "a CIDR of Services", by: "NetworkPolicy shop/deny"}
	},
	"an address that no readable Service has": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.Unread = []Unread{{Resource: ResourceServices, Verb: "list"}}
		return situation{query: tcp(podEnd("shop", "a"), noService, 80), verdict: CannotTell, says: "list services is not permitted"}
	},
	"a host outside whose address a Service may have": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.Unread = []Unread{{Resource: ResourceServices, Verb: "list"}}
		return situation{query: worldwide("shop", "a"), verdict: CannotTell, says: "whether one of services has "}
	},
	"a port that a Service of nodes does not have": func(c *cluster) situation {
		c.Cluster.Spec.Services.PodAccess = v1alpha1.PodAccessNode
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		return situation{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 81), verdict: Dropped, says: "its ports are 80/TCP", by: "Service bank/b"}
	},
	"a port that the Service does not have, from a custom VPC": func(c *cluster) situation {
		transit(custom(c))
		c.serve(c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet), 5)
		return situation{query: tcp(podEnd("bank", "b"), serviceEnd("shop", "a"), 81), verdict: Dropped, says: "its ports are 80/TCP", by: "Service shop/a"}
	},
	"a port that the Service does not have, from a node": func(c *cluster) situation {
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		return situation{query: tcp(End{Node: "n1"}, serviceEnd("bank", "b"), 81), verdict: Dropped, by: "Service bank/b"}
	},
	"a port that a load balancer does not have": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5).Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
		return situation{query: tcp(podEnd("shop", "a"), addrEnd("198.51.100.7"), 81), verdict: CannotTell, says: "has 198.51.100.7, but no tcp port 81", one: true}
	},
	"source ranges with blanks": func(c *cluster) situation {
		service := c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		service.Spec.LoadBalancerSourceRanges = []string{" 203.0.113.0/24 "}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
		return situation{query: tcp(addrEnd("203.0.113.9"), addrEnd("198.51.100.7"), 80), verdict: Delivered, one: true}
	},
	"an address of a pod of another VPC": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		custom(c)
		return situation{
			query: tcp(podEnd("shop", "a"), addrEnd("10.30.0.11"), 80), verdict: CannotTell, one: true,
			says: "no host of Vpc ovn-cluster has 10.30.0.11, which is the address of pod bank/b of Vpc red",
		}
	},
	"an address of a pod of another VPC, from a custom VPC": func(c *cluster) situation {
		q := linked(c, func(red, _ *kubeovnv1.Vpc) (string, func()) { red.Spec.VpcPeerings = nil; return "", nil }).query
		q.To = addrEnd("10.31.0.11")
		return situation{query: q, verdict: Dropped, says: "pod shop/a in Vpc blue, and their link is not set up", by: "Vpc blue vpcPeerings[0]", one: true}
	},
	"an address of pods of two other VPCs": func(c *cluster) situation {
		overlapping(c)
		c.vpc("green", kubeovnv1.VpcSpec{})
		c.newSubnet("green-1", "10.32.0.0/24", kubeovnv1.SubnetSpec{Vpc: "green"})
		c.run("bank", "c", "n1", "green-1")
		return situation{
			query: tcp(podEnd("bank", "c"), addrEnd("10.30.0.10"), 80), verdict: Dropped, by: "Vpc green staticRoutes", one: true,
			says: "which is the address of pod bank/b of Vpc red, pod shop/b of Vpc blue",
		}
	},
	"an address of a Service that a pod of another VPC has, too": func(c *cluster) situation {
		custom(c)
		c.at("10.96.0.5")
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.serve(c.run("shop", "c", "n2", kubeovnv1.DefaultSubnet), 5)
		return situation{query: tcp(podEnd("shop", "a"), addrEnd("10.96.0.5"), 80), verdict: Delivered, says: "reaches pod shop/c", one: true}
	},
	"an address that the own VPC has, too": func(c *cluster) situation {
		overlapping(c)
		c.run("shop", "c", "n2", "blue-1")
		return situation{query: tcp(podEnd("shop", "c"), addrEnd("10.30.0.10"), 80), verdict: Delivered, says: "reaches pod shop/b", one: true}
	},
	"an address of a linked VPC that a third one has, too": func(c *cluster) situation {
		q := linked(c, func(_, _ *kubeovnv1.Vpc) (string, func()) { return "", nil }).query
		c.vpc("aaa", kubeovnv1.VpcSpec{})
		c.newSubnet("aaa-1", "10.31.0.0/24,fd00:10:31::/112", kubeovnv1.SubnetSpec{Vpc: "aaa"})
		c.run("bank", "aaa", "n9", "aaa-1") // a node that does not exist
		c.at("10.31.0.11", "fd00:10:31::b")
		q.To = End{Host: "web", Addresses: []netip.Addr{netip.MustParseAddr("10.31.0.11"), netip.MustParseAddr("fd00:10:31::b")}}
		return situation{query: q, verdict: Delivered, says: "reaches pod shop/a"}
	},
	"an address of a pod of a custom VPC and of a node": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		custom(c)
		c.at("172.18.0.3")
		return situation{query: tcp(podEnd("shop", "a"), addrEnd("172.18.0.3"), 80), verdict: Delivered, says: "reaches node n2", one: true}
	},
	"an address of pods of the default VPC and of a custom one, from a node": func(c *cluster) situation {
		custom(c)
		c.at("10.16.0.30")
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.at("10.16.0.30")
		return situation{query: tcp(End{Node: "n1"}, addrEnd("10.16.0.30"), 80), verdict: Delivered, says: "reaches pod shop/a", one: true}
	},
	"a source that two VPCs have": func(c *cluster) situation {
		overlapping(c)
		return situation{query: tcp(addrEnd("10.30.0.10"), world, 80), verdict: CannotTell, says: "10.30.0.10 is the address of pod bank/b of Vpc red, pod shop/b of Vpc blue", one: true}
	},
	"a source that a pod and a node have": func(c *cluster) situation {
		custom(c)
		c.at("172.18.0.3")
		return situation{query: tcp(addrEnd("172.18.0.3"), world, 80), verdict: CannotTell, says: "172.18.0.3 is the address of pod bank/b of Vpc red, node n2", one: true}
	},
	"a pod of another VPC with the same address": func(c *cluster) situation {
		overlapping(c)
		return situation{query: tcp(podEnd("bank", "b"), podEnd("shop", "b"), 80), verdict: Dropped, says: "have the same address", by: "Vpc red"}
	},
	"an endpoint of a RouterLBRule in another VPC": func(c *cluster) situation {
		red := external(c)
		red.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "192.168.77.1"}}
		c.vpc("blue", kubeovnv1.VpcSpec{})
		c.newSubnet("blue-1", "10.31.0.0/24", kubeovnv1.SubnetSpec{Vpc: "blue"})
		c.run("shop", "a", "n1", "blue-1")
		routerRule(c, "red", "10.31.0.11")
		return situation{query: fromWorld(31, 80), verdict: Dropped, by: "Vpc red vpcPeerings", one: true}
	},
	"pod that does not exist": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), verdict: CannotTell, says: "Pod bank/b does not exist", by: "Pod bank/b", one: true}
	},
	"namespace that does not exist": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shpo", "a"), podEnd("shop", "a"), 80), verdict: CannotTell, says: "Namespace shpo does not exist", by: "Namespace shpo", one: true}
	},
	"Service that does not exist": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), verdict: CannotTell, says: "Service bank/b does not exist", by: "Service bank/b", one: true}
	},
	"node that does not exist": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), End{Node: "n9"}, 80), verdict: CannotTell, says: "Node n9 does not exist", by: "Node n9", one: true}
	},
}

// TestChangesOfOwners: the change names the argument to use.
func TestChangesOfOwners(t *testing.T) {
	for name, want := range map[string]string{
		"an address that no Service has":                    "use the address of a Service",
		"an address of a pod of another VPC":                "write its name as B instead of the address: bank/b",
		"an address of pods of two other VPCs":              "write its name as B instead of the address: bank/b, shop/b",
		"a source that two VPCs have":                       "write the name of one of them as A instead of the address: bank/b, shop/b",
		"a source that a pod and a node have":               "bank/b, node//n2",
		"namespace that does not exist":                     "`kubectl get namespaces` lists them",
		"Service that does not exist":                       "`kubectl get services -n bank` lists them",
		"an address that no Service has, from a custom VPC": "use the address of a Service",
	} {
		c := newCluster()
		a := Run(&c.Snapshot, ownerSituations[name](c).query)
		if !strings.Contains(a.Traces[0].Change, want) {
			t.Errorf("%s: no %q in\n%s", name, want, a.text())
		}
	}
}
