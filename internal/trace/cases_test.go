// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// fault is a situation with a connection that an object stops. repair is the change that the answer names.
type fault struct {
	query Query
	// by is the object, with its rule.
	by     string
	repair func()
	// says is a part of the change.
	says string
	// one: only one family has this answer.
	one bool
}

func ingress(np *networkingv1.NetworkPolicy, from networkingv1.NetworkPolicyPeer, ports ...networkingv1.NetworkPolicyPort) {
	np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{from}, Ports: ports})
}

func fromNamespace(name string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": name}}}
}

func numbered(port int) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt(port))}
}

// faults are the situations of policies. Each has pod shop/a on n1, pod bank/b on n2 with Service bank/b, and a connection from a to b.
var policyFaults = map[string]func(c *cluster, q Query) fault{
	"NetworkPolicy without ingress rules": func(c *cluster, q Query) fault {
		np := c.isolate("bank", "deny", networkingv1.PolicyTypeIngress)
		return fault{query: q, by: "NetworkPolicy bank/deny", says: "add an ingress rule for pod shop/a", repair: func() { ingress(np, fromNamespace("shop"), numbered(80)) }}
	},
	"NetworkPolicy that allows another namespace": func(c *cluster, q Query) fault {
		np := c.isolate("bank", "own", networkingv1.PolicyTypeIngress)
		ingress(np, fromNamespace("bank"))
		return fault{query: q, by: "NetworkPolicy bank/own", repair: func() { c.Namespaces[0].Labels["name"] = "bank" }}
	},
	"NetworkPolicy that allows other pods": func(c *cluster, q Query) fault {
		np := c.isolate("bank", "web", networkingv1.PolicyTypeIngress)
		peer := fromNamespace("shop")
		peer.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		ingress(np, peer)
		return fault{query: q, by: "NetworkPolicy bank/web", repair: func() { c.Pods[0].Labels["app"] = "web" }}
	},
	"NetworkPolicy that allows another port": func(c *cluster, q Query) fault {
		np := c.isolate("bank", "ports", networkingv1.PolicyTypeIngress)
		ingress(np, fromNamespace("shop"), numbered(443))
		return fault{query: q, by: "NetworkPolicy bank/ports", repair: func() { np.Spec.Ingress[0].Ports = append(np.Spec.Ingress[0].Ports, numbered(80)) }}
	},
	"NetworkPolicy with a port name that the pod does not have": func(c *cluster, q Query) fault {
		np := c.isolate("bank", "named", networkingv1.PolicyTypeIngress)
		ingress(np, fromNamespace("shop"), networkingv1.NetworkPolicyPort{Port: new(intstr.FromString("htp"))})
		return fault{query: q, by: "NetworkPolicy bank/named", repair: func() { np.Spec.Ingress[0].Ports[0].Port = new(intstr.FromString("http")) }}
	},
	"NetworkPolicy without egress rules": func(c *cluster, q Query) fault {
		c.isolate("shop", "closed", networkingv1.PolicyTypeEgress)
		return fault{query: q, by: "NetworkPolicy shop/closed", says: "egress rule for pod bank/b", repair: func() { c.Policies = nil }}
	},
	"two NetworkPolicies": func(c *cluster, q Query) fault {
		c.isolate("bank", "z", networkingv1.PolicyTypeIngress)
		np := c.isolate("bank", "a", networkingv1.PolicyTypeIngress)
		return fault{query: q, by: "NetworkPolicy bank/a", says: "one of NetworkPolicies bank/a, bank/z", repair: func() { ingress(np, fromNamespace("shop")) }}
	},
	"AdminNetworkPolicy that denies what a NetworkPolicy allows": func(c *cluster, q Query) fault {
		ingress(c.isolate("bank", "allow", networkingv1.PolicyTypeIngress), fromNamespace("shop"))
		anp := admin("deny", "Deny")
		c.Policies = append(c.Policies, anp)
		return fault{query: q, by: "AdminNetworkPolicy deny ingress[0]", repair: func() { anp.Spec.Ingress[0].Action = "Pass" }}
	},
	"AdminNetworkPolicy that passes to a NetworkPolicy": func(c *cluster, q Query) fault {
		anp := admin("pass", "Pass")
		c.Policies = append(c.Policies, anp)
		c.isolate("bank", "deny", networkingv1.PolicyTypeIngress)
		return fault{query: q, by: "NetworkPolicy bank/deny", repair: func() { anp.Spec.Ingress[0].Action = "Allow" }}
	},
	"BaselineAdminNetworkPolicy": func(c *cluster, q Query) fault {
		all := &metav1.LabelSelector{}
		banp := &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		banp.Spec.Subject.Namespaces = all
		banp.Spec.Ingress = []v1alpha1.BaselineAdminNetworkPolicyIngressRule{{Action: "Deny", From: []v1alpha1.AdminNetworkPolicyIngressPeer{{Namespaces: all}}}}
		c.Policies = append(c.Policies, banp)
		return fault{query: q, by: "BaselineAdminNetworkPolicy default ingress[0]", repair: func() {
			ingress(c.isolate("bank", "allow", networkingv1.PolicyTypeIngress), fromNamespace("shop"))
		}}
	},
	"ClusterNetworkPolicy of tier Admin": func(c *cluster, q Query) fault {
		all := &metav1.LabelSelector{}
		cnp := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "walls"}}
		cnp.Spec.Tier, cnp.Spec.Subject.Namespaces = v1alpha2.AdminTier, all
		cnp.Spec.Egress = []v1alpha2.ClusterNetworkPolicyEgressRule{
			{Action: "Accept", To: []v1alpha2.ClusterNetworkPolicyEgressPeer{{Networks: []v1alpha2.CIDR{"192.0.2.0/24"}}}},
			{Action: "Deny", To: []v1alpha2.ClusterNetworkPolicyEgressPeer{{Namespaces: all}}},
		}
		c.Policies = append(c.Policies, cnp)
		return fault{query: q, by: "ClusterNetworkPolicy walls egress[1]", repair: func() { cnp.Spec.Egress = cnp.Spec.Egress[:1] }}
	},
	"security group without a rule": func(c *cluster, q Query) fault {
		sg := c.group("web", "bank")
		c.Pods[1].Annotations[kubeovnv1.AnnotationGroups.Key()] = "web"
		return fault{query: q, by: "SecurityGroup web", says: "ingressRules of SecurityGroup web", repair: func() {
			for _, family := range []string{"ipv4", "ipv6"} {
				sg.Spec.IngressRules = append(sg.Spec.IngressRules, kubeovnv1.SecurityGroupRule{
					IPVersion: family, Protocol: "tcp", Priority: 10, RemoteType: kubeovnv1.RemoteAddress, PortRangeMin: 80, PortRangeMax: 80, Policy: "allow",
					RemoteAddress: map[string]string{"ipv4": "0.0.0.0/0", "ipv6": "::/0"}[family],
				})
			}
		}}
	},
	"rule of a security group": func(c *cluster, q Query) fault {
		sg := c.group("web", "shop")
		for _, family := range []string{"ipv4", "ipv6"} {
			any := map[string]string{"ipv4": "0.0.0.0/0", "ipv6": "::/0"}[family]
			sg.Spec.EgressRules = append(sg.Spec.EgressRules,
				kubeovnv1.SecurityGroupRule{IPVersion: family, Protocol: "tcp", Priority: 10, RemoteType: kubeovnv1.RemoteAddress, PortRangeMin: 80, PortRangeMax: 80, Policy: "drop", RemoteAddress: any},
				kubeovnv1.SecurityGroupRule{IPVersion: family, Protocol: "all", Priority: 20, RemoteType: kubeovnv1.RemoteAddress, Policy: "allow", RemoteAddress: any})
		}
		c.Pods[0].Annotations[kubeovnv1.AnnotationGroups.Key()] = "web"
		return fault{query: q, by: "SecurityGroup web egressRules[0]", one: true, repair: func() {
			sg.Spec.EgressRules[0].Policy, sg.Spec.EgressRules[2].Policy = "allow", "allow"
		}}
	},
	"remote group": func(c *cluster, q Query) fault {
		sg := c.group("web", "bank")
		c.group("clients", "shop")
		for _, family := range []string{"ipv4", "ipv6"} {
			sg.Spec.IngressRules = append(sg.Spec.IngressRules, kubeovnv1.SecurityGroupRule{
				IPVersion: family, Priority: 10, RemoteType: kubeovnv1.RemoteSecurityGroup, RemoteSecurityGroup: "clients", Policy: "allow",
			})
		}
		c.Pods[1].Annotations[kubeovnv1.AnnotationGroups.Key()] = "web"
		return fault{query: q, by: "SecurityGroup web", repair: func() {
			for i, family := range []string{"ipv4", "ipv6"} {
				c.Groups[1].Spec.EgressRules = append(c.Groups[1].Spec.EgressRules, kubeovnv1.SecurityGroupRule{
					IPVersion: family, Priority: 1, RemoteType: kubeovnv1.RemoteAddress, RemoteAddress: []string{"0.0.0.0/0", "::/0"}[i], Policy: "allow",
				})
			}
			c.Pods[0].Annotations[kubeovnv1.AnnotationGroups.Key()] = "clients"
		}}
	},
	"security group that does not exist": func(c *cluster, q Query) fault {
		c.Pods[1].Annotations[kubeovnv1.AnnotationGroups.Key()] = "wbe"
		return fault{query: q, by: "SecurityGroup wbe", says: "create SecurityGroup wbe", repair: func() { delete(c.Pods[1].Annotations, kubeovnv1.AnnotationGroups.Key()) }}
	},
	"security group that does not list the namespace": func(c *cluster, q Query) fault {
		sg := c.group("web", "shop")
		sg.Spec.AllowSameGroupTraffic = true
		c.Pods[0].Annotations[kubeovnv1.AnnotationGroups.Key()], c.Pods[1].Annotations[kubeovnv1.AnnotationGroups.Key()] = "web", "web"
		return fault{query: q, by: "SecurityGroup web", repair: func() { sg.Spec.AllowedNamespaces = append(sg.Spec.AllowedNamespaces, "bank") }}
	},
	"acls of the subnet": func(c *cluster, q Query) fault {
		c.Subnets[0].Spec.ACLs = []kubeovnv1.ACL{
			{Direction: "to-lport", Priority: 1001, Match: "tcp.dst == 443", Action: "drop"},
			{Direction: "to-lport", Priority: 1002, Match: "tcp && tcp.dst == {80, 81}", Action: "drop"},
		}
		return fault{query: q, by: "Subnet ovn-default acls[1]", says: "a priority above 1002", repair: func() { c.Subnets[0].Spec.ACLs[1].Match = "tcp.dst == 81" }}
	},
	"acls before a NetworkPolicy": func(c *cluster, q Query) fault {
		c.isolate("bank", "deny", networkingv1.PolicyTypeIngress)
		return fault{query: q, by: "NetworkPolicy bank/deny", repair: func() {
			c.Subnets[0].Spec.ACLs = []kubeovnv1.ACL{{Direction: "to-lport", Priority: 2500, Match: "tcp", Action: "allow-related"}}
		}}
	},
}

func admin(name string, action v1alpha1.AdminNetworkPolicyRuleAction) *v1alpha1.AdminNetworkPolicy {
	all := &metav1.LabelSelector{}
	p := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Priority, p.Spec.Subject.Namespaces = 10, all
	p.Spec.Ingress = []v1alpha1.AdminNetworkPolicyIngressRule{{Action: action, From: []v1alpha1.AdminNetworkPolicyIngressPeer{{Namespaces: all}}}}
	return p
}

func (c *cluster) group(name string, namespaces ...kubeovnv1.AllowedNamespace) *kubeovnv1.SecurityGroup {
	sg := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	sg.Spec.AllowedNamespaces = namespaces
	c.Groups = append(c.Groups, sg)
	return sg
}

// check asks before and after the repair.
func (f fault) check(t *testing.T, c *cluster) {
	t.Helper()
	a := Run(&c.Snapshot, f.query)
	if a.Verdict != Dropped || a.ExitCode() != 1 {
		t.Errorf("not dropped:\n%s", a.text())
		return
	}
	for i, trace := range a.Traces {
		if i > 0 && f.one {
			continue
		}
		by := ""
		if trace.DecidedBy != nil {
			by = trace.DecidedBy.String()
			if trace.DecidedBy.Rule != "" {
				by += " " + trace.DecidedBy.Rule
			}
		}
		if by != f.by || trace.Change == "" || !strings.Contains(trace.Change, f.says) || trace.Steps[len(trace.Steps)-1].Effect != Drops {
			t.Errorf("decided by %q, want %q with %q in the change:\n%s", by, f.by, f.says, a.text())
		}
	}
	if f.repair == nil {
		return
	}
	f.repair()
	if a := Run(&c.Snapshot, f.query); a.Verdict != Delivered || a.ExitCode() != 0 {
		t.Errorf("not delivered after the repair:\n%s", a.text())
	}
}

func TestPoliciesThatDrop(t *testing.T) {
	for name, make := range policyFaults {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
			c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
			q := tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80)
			if a := Run(&c.Snapshot, q); a.Verdict != Delivered || len(a.Traces) != 2 {
				t.Fatalf("without policies:\n%s", a.text())
			}
			make(c, q).check(t, c)
		})
	}
}

// networkFaults are the situations of everything else. They make their pods.
var networkFaults = map[string]func(c *cluster) fault{
	"private subnet of the source": func(c *cluster) fault {
		s := c.newSubnet("safe", "10.20.0.0/24,fd00:10:20::/112", kubeovnv1.SubnetSpec{Private: true})
		c.run("shop", "a", "n1", "safe")
		c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		return fault{
			query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 53), by: "Subnet safe private", says: "the CIDR of subnet ovn-default to allowSubnets",
			repair: func() { s.Spec.AllowSubnets = []string{"10.16.0.0/16", "fd00:10:16::/112"} },
		}
	},
	"private subnet of the destination": func(c *cluster) fault {
		s := c.newSubnet("safe", "10.20.0.0/24,fd00:10:20::/112", kubeovnv1.SubnetSpec{Private: true})
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.run("bank", "b", "n2", "safe")
		return fault{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 53), by: "Subnet safe private", repair: func() { s.Spec.Private = false }}
	},
	"private subnet and the world outside": func(c *cluster) fault {
		s := c.newSubnet("safe", "10.20.0.0/24,fd00:10:20::/112", kubeovnv1.SubnetSpec{Private: true, NATOutgoing: true})
		c.run("shop", "a", "n1", "safe")
		return fault{query: tcp(podEnd("shop", "a"), addrEnd("203.0.113.9"), 443), by: "Subnet safe private", says: "add 203.0.113.9", repair: func() { s.Spec.Private = false }}
	},
	"the last valid spec": func(c *cluster) fault {
		s := c.newSubnet("safe", "10.20.0.0/24,fd00:10:20::/112", kubeovnv1.SubnetSpec{Private: true})
		s.Status.ValidatedSpec = s.Spec.DeepCopy()
		s.Spec.Private, s.Generation = false, 2
		c.run("shop", "a", "n1", "safe")
		c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		return fault{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 53), by: "Subnet safe private", repair: func() { s.Status.Conditions[0].ObservedGeneration = 2 }}
	},
	"Service without endpoints": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		b := c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		service := c.serve(b, 5)
		c.endpoints(service)
		b.Status.Conditions[0].Status = corev1.ConditionFalse
		return fault{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), by: "Service bank/b", says: "readiness probes", repair: func() { c.endpoints(service, b) }}
	},
	"Service with a wrong selector": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		b := c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		service := c.serve(b, 5)
		c.endpoints(service)
		service.Spec.Selector = map[string]string{"app": "unused"}
		return fault{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), by: "Service bank/b", says: "correct the selector", repair: func() { c.endpoints(service, b) }}
	},
	"Service without the port": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		service := c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		return fault{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 81), by: "Service bank/b", says: "add the port", repair: func() { service.Spec.Ports[0].Port = 81 }}
	},
	"ping to a Service": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		return fault{query: Query{From: podEnd("shop", "a"), To: serviceEnd("bank", "b"), Protocol: ICMP}, by: "Service bank/b"}
	},
	"policy of the endpoint": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		np := c.isolate("bank", "deny", networkingv1.PolicyTypeIngress)
		return fault{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), by: "NetworkPolicy bank/deny", says: "tcp port 8080", repair: func() {
			ingress(np, fromNamespace("shop"), numbered(8080))
		}}
	},
	"source ranges": func(c *cluster) fault {
		service := c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		service.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
		return fault{query: tcp(addrEnd("203.0.113.9"), addrEnd("198.51.100.7"), 80), by: "Service bank/b loadBalancerSourceRanges", repair: func() {
			service.Spec.LoadBalancerSourceRanges = append(service.Spec.LoadBalancerSourceRanges, "203.0.113.0/24")
		}}
	},
	"node port with a local policy": func(c *cluster) fault {
		service := c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		return fault{query: tcp(addrEnd("203.0.113.9"), End{Node: "n1"}, 30080), by: "Service bank/b externalTrafficPolicy", repair: func() { service.Spec.ExternalTrafficPolicy = "Cluster" }}
	},
	"local policy inside": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		service := c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		local := corev1.ServiceInternalTrafficPolicyLocal
		service.Spec.InternalTrafficPolicy = &local
		return fault{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), by: "Service bank/b internalTrafficPolicy", repair: func() { service.Spec.InternalTrafficPolicy = nil }}
	},
	"node port of a pod that a policy isolates": func(c *cluster) fault {
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		np := c.isolate("bank", "deny", networkingv1.PolicyTypeIngress)
		return fault{query: tcp(addrEnd("203.0.113.9"), End{Node: "n1"}, 30080), by: "NetworkPolicy bank/deny", says: "node n1 (100.64.0.2/32)", repair: func() {
			ingress(np, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "100.64.0.0/16"}})
		}}
	},
	"SwitchLBRule without endpoints": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		b := c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		rule := &kubeovnv1.SwitchLBRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
		rule.Spec.VIP = "1.2.3.4"
		rule.Spec.Namespace, rule.Spec.Selector = "bank", []string{"app:b"}
		rule.Spec.Ports = []kubeovnv1.LBRulePort{{Name: "http", Port: 80, TargetPort: 8080}}
		rule.Status.Service = "bank/slr-r"
		c.SwitchRules = append(c.SwitchRules, rule)
		return fault{query: tcp(podEnd("shop", "a"), addrEnd("1.2.3.4"), 80), by: "SwitchLBRule r", repair: func() {
			c.endpoints(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "slr-r"}}, b)
		}}
	},
	"RouterLBRule without the port": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
		rule.Spec.OvnEip, rule.Spec.Endpoints = "e", []string{"10.16.0.11"}
		rule.Spec.Ports = []kubeovnv1.LBRulePort{{Name: "http", Port: 80}}
		eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
		eip.Status.V4IP = "198.51.100.8"
		c.RouterRules, c.Eips = append(c.RouterRules, rule), append(c.Eips, eip)
		return fault{query: tcp(podEnd("shop", "a"), addrEnd("198.51.100.8"), 81), by: "RouterLBRule r", repair: func() { rule.Spec.Ports[0].Port = 81 }}
	},
	"two VPCs": func(c *cluster) fault {
		c.vpc("red", kubeovnv1.VpcSpec{Namespaces: []string{"bank"}})
		c.newSubnet("red-1", "10.30.0.0/24,fd00:10:30::/112", kubeovnv1.SubnetSpec{Vpc: "red", Namespaces: []string{"bank"}})
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.run("bank", "b", "n2", "red-1")
		return fault{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), by: "Vpc ovn-cluster vpcPeerings", says: "link Vpcs"}
	},
	"two VPCs with the same addresses": func(c *cluster) fault {
		c.vpc("red", kubeovnv1.VpcSpec{Namespaces: []string{"bank"}})
		c.newSubnet("red-1", "10.16.0.0/16,fd00:10:16::/112", kubeovnv1.SubnetSpec{Vpc: "red", Namespaces: []string{"bank"}})
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.run("bank", "b", "n2", "red-1")
		return fault{query: tcp(podEnd("bank", "b"), podEnd("shop", "a"), 80), by: "Vpc red vpcPeerings"}
	},
	"a pod that existed before its namespace was bound": func(c *cluster) fault {
		c.vpc("red", kubeovnv1.VpcSpec{Namespaces: []string{"bank"}})
		c.newSubnet("red-1", "10.30.0.0/24,fd00:10:30::/112", kubeovnv1.SubnetSpec{Vpc: "red", Namespaces: []string{"bank"}})
		c.run("bank", "a", "n1", kubeovnv1.DefaultSubnet)
		c.run("bank", "b", "n2", "red-1")
		return fault{query: tcp(podEnd("bank", "b"), podEnd("bank", "a"), 80), by: "Pod bank/a", says: "create pod bank/a again", repair: func() {
			c.Pods = c.Pods[1:]
			c.run("bank", "a", "n1", "red-1")
		}}
	},
	"a link that one side lacks": func(c *cluster) fault {
		return linked(c, func(red, blue *kubeovnv1.Vpc) (string, func()) {
			peerings := blue.Spec.VpcPeerings
			blue.Spec.VpcPeerings = nil
			return "Vpc red vpcPeerings[0]", func() { blue.Spec.VpcPeerings = peerings }
		})
	},
	"a link without a route": func(c *cluster) fault {
		return linked(c, func(red, blue *kubeovnv1.Vpc) (string, func()) {
			routes := red.Spec.StaticRoutes
			red.Spec.StaticRoutes = nil
			return "Vpc red staticRoutes", func() { red.Spec.StaticRoutes = routes }
		})
	},
	"a link without a route back": func(c *cluster) fault {
		return linked(c, func(red, blue *kubeovnv1.Vpc) (string, func()) {
			routes := blue.Spec.StaticRoutes
			blue.Spec.StaticRoutes = nil
			return "Vpc blue staticRoutes", func() { blue.Spec.StaticRoutes = routes }
		})
	},
	"a policy of the router": func(c *cluster) fault {
		return linked(c, func(red, blue *kubeovnv1.Vpc) (string, func()) {
			blue.Spec.PolicyRoutes = []*kubeovnv1.PolicyRoute{
				{Priority: 100, Match: "ip", Action: kubeovnv1.PolicyRouteAllow}, {Priority: 32000, Match: "tcp.dst == 80", Action: kubeovnv1.PolicyRouteDrop},
			}
			return "Vpc blue policyRoutes[1]", func() { blue.Spec.PolicyRoutes = blue.Spec.PolicyRoutes[:1] }
		})
	},
	"clusterAccess None": func(c *cluster) fault {
		red := custom(c)
		return fault{query: tcp(podEnd("bank", "b"), addrEnd("203.0.113.9"), 80), by: "Vpc red clusterAccess", repair: func() {
			red.Spec.ClusterAccess = kubeovnv1.ClusterAccessServices
			red.Status.Transit = &kubeovnv1.VpcTransit{Node: "n1", Addresses: []string{"100.64.0.50", "fd00:100:64::50"}}
		}}
	},
	"clusterAccess Services without natOutgoing": func(c *cluster) fault {
		red := custom(c)
		red.Spec.ClusterAccess = kubeovnv1.ClusterAccessServices
		red.Status.Transit = &kubeovnv1.VpcTransit{Node: "n1", Addresses: []string{"100.64.0.50", "fd00:100:64::50"}}
		c.subnet("red-1").Spec.NATOutgoing = false
		return fault{query: tcp(podEnd("bank", "b"), addrEnd("203.0.113.9"), 80), by: "Subnet red-1 natOutgoing", repair: func() { c.subnet("red-1").Spec.NATOutgoing = true }}
	},
	"Service of the default VPC from a custom VPC": func(c *cluster) fault {
		red := custom(c)
		c.serve(c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet), 9)
		return fault{query: tcp(podEnd("bank", "b"), serviceEnd("shop", "a"), 80), by: "Vpc red clusterAccess", repair: func() {
			red.Spec.ClusterAccess = kubeovnv1.ClusterAccessServices
			red.Status.Transit = &kubeovnv1.VpcTransit{Node: "n1", Addresses: []string{"100.64.0.50", "fd00:100:64::50"}}
		}}
	},
	"node to a custom VPC": func(c *cluster) fault {
		custom(c)
		return fault{query: tcp(End{Node: "n1"}, podEnd("bank", "b"), 80), by: "Vpc red"}
	},
	"centralized gateway without a node": func(c *cluster) fault {
		s := c.newSubnet("out", "10.40.0.0/24,fd00:10:40::/112", kubeovnv1.SubnetSpec{GatewayType: kubeovnv1.GatewayCentralized, GatewayNode: "n9", NATOutgoing: true})
		c.run("shop", "a", "n1", "out")
		return fault{query: tcp(podEnd("shop", "a"), addrEnd("203.0.113.9"), 80), by: "Subnet out gatewayType", repair: func() { s.Status.ActivateGateway = "n2" }}
	},
	"centralized gateway whose node is down": func(c *cluster) fault {
		s := c.newSubnet("out", "10.40.0.0/24,fd00:10:40::/112", kubeovnv1.SubnetSpec{GatewayType: kubeovnv1.GatewayCentralized, GatewayNode: "n2", NATOutgoing: true})
		s.Status.ActivateGateway = "n2"
		c.run("shop", "a", "n1", "out")
		c.Nodes[1].Status.Conditions[0].Status = corev1.ConditionFalse
		return fault{query: tcp(podEnd("shop", "a"), addrEnd("203.0.113.9"), 80), by: "Node n2", repair: func() { c.Nodes[1].Status.Conditions[0].Status = corev1.ConditionTrue }}
	},
	"egress address without a node": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		e := c.egress("out", "name=shop")
		return fault{query: tcp(podEnd("shop", "a"), addrEnd("203.0.113.9"), 80), by: "EgressAddress out", repair: func() { e.Status.Node, e.Status.Addresses = "n2", e.Spec.Addresses }}
	},
	"node without network": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		c.Nodes[1].Status.Conditions = append(c.Nodes[1].Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Message: "ovn0 is down"})
		return fault{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), by: "Node n2", repair: func() { c.Nodes[1].Status.Conditions = c.Nodes[1].Status.Conditions[:1] }}
	},
	"missing port in Open vSwitch": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		c.Events = append(c.Events, &corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "bank", Name: "b"}, Reason: kubeovnv1.ReasonPortMissing, Message: "it has no interface",
		})
		return fault{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), by: "Pod bank/b", repair: func() { c.Events = nil }}
	},
	"pod without an address": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		b := c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		key := kubeovnv1.AnnotationAllocated.Key()
		delete(b.Annotations, key)
		return fault{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), by: "Pod bank/b", says: "AcquireAddressFailed", repair: func() { b.Annotations[key] = "true" }}
	},
	"address that no pod has": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return fault{query: tcp(podEnd("shop", "a"), addrEnd("10.16.0.11"), 80), by: "Subnet ovn-default", repair: func() { c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet) }}
	},
	"neighbour in another subnet": func(c *cluster) fault {
		c.newSubnet("other", "10.20.0.0/24,fd00:10:20::/112", kubeovnv1.SubnetSpec{})
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.run("bank", "b", "n2", "other")
		return fault{query: Query{From: podEnd("shop", "a"), To: podEnd("bank", "b"), Protocol: Neighbour}, by: "Subnet ovn-default"}
	},
	"port of the router": func(c *cluster) fault {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.newSubnet("other", "10.20.0.0/24,fd00:10:20::/112", kubeovnv1.SubnetSpec{})
		return fault{query: tcp(podEnd("shop", "a"), addrEnd("10.20.0.1"), 80), by: "Vpc ovn-cluster"}
	},
}

// custom adds VPC red with pod bank/b.
func custom(c *cluster) *kubeovnv1.Vpc {
	red := c.vpc("red", kubeovnv1.VpcSpec{Namespaces: []string{"bank"}})
	c.newSubnet("red-1", "10.30.0.0/24,fd00:10:30::/112", kubeovnv1.SubnetSpec{Vpc: "red", Namespaces: []string{"bank"}, NATOutgoing: true})
	c.run("bank", "b", "n2", "red-1")
	return red
}

// linked adds two linked VPCs, breaks something, and asks from pod bank/b in one to pod shop/a in the other.
func linked(c *cluster, breaks func(red, blue *kubeovnv1.Vpc) (by string, repair func())) fault {
	red := custom(c)
	blue := c.vpc("blue", kubeovnv1.VpcSpec{Namespaces: []string{"shop"}})
	c.newSubnet("blue-1", "10.31.0.0/24,fd00:10:31::/112", kubeovnv1.SubnetSpec{Vpc: "blue", Namespaces: []string{"shop"}})
	c.run("shop", "a", "n1", "blue-1")
	red.Spec.VpcPeerings = []*kubeovnv1.VpcPeering{{RemoteVpc: "blue", LocalConnectIP: "169.254.0.1/30,fd00:169::1/126"}}
	blue.Spec.VpcPeerings = []*kubeovnv1.VpcPeering{{RemoteVpc: "red", LocalConnectIP: "169.254.0.2/30,fd00:169::2/126"}}
	red.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "10.31.0.0/24", NextHopIP: "169.254.0.2"}, {CIDR: "fd00:10:31::/112", NextHopIP: "fd00:169::2"}}
	blue.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "10.30.0.0/24", NextHopIP: "169.254.0.1"}, {CIDR: "fd00:10:30::/112", NextHopIP: "fd00:169::1"}}
	by, repair := breaks(red, blue)
	return fault{query: tcp(podEnd("bank", "b"), podEnd("shop", "a"), 80), by: by, repair: repair}
}

func TestNetworksThatDrop(t *testing.T) {
	for name, make := range networkFaults {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			make(c).check(t, c)
		})
	}
}
