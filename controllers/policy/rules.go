// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/serving/budget"
)

// Rules are the ACLs of a policy, and the sets of pods to which these refer.
type Rules struct {
	Owner desired.Owner
	Rows  []desired.Row
	Sets  []podset.Selector
	// Problems are the parts of the policy that cannot be expressed.
	Problems []string
}

func (c *compiled) rules() Rules {
	return Rules{Owner: c.Owner, Rows: c.rows(), Sets: c.uses, Problems: c.problems}
}

// World has the inputs of policies' rules, besides the policies.
type World struct {
	// Numbers are the numbers of a named port in a set of pods.
	Numbers func(podset.Selector) []int32
	// Nodes are the addresses of the nodes that a selector matches.
	Nodes func(*metav1.LabelSelector) ([]netip.Prefix, error)
	// Group reports whether a security group exists.
	Group func(name string) bool
}

// RulesOf returns the rules of policies of any kind, in their order. It needs all NetworkPolicies of a namespace, because they have a common bound.
func RulesOf(policies []client.Object, w World) []Rules {
	var spent budget.Budget
	compiles := make([]compiled, len(policies))
	for i, o := range policies {
		compiles[i] = compileOf(o, w)
		if np, is := o.(*networkingv1.NetworkPolicy); is {
			spent.Set(namespaceBounds, budget.Object{
				Key: client.ObjectKeyFromObject(np), Group: np.Namespace, Created: np.CreationTimestamp.Time, Cost: compiles[i].flows,
			})
		}
	}
	rules := make([]Rules, 0, len(policies))
	for i, o := range policies {
		c := &compiles[i]
		if _, is := o.(*networkingv1.NetworkPolicy); is && spent.Verdict(namespaceBounds, client.ObjectKeyFromObject(o)) != budget.Within {
			c.refuse()
		}
		rules = append(rules, c.rules())
	}
	return rules
}

func compileOf(o client.Object, w World) compiled {
	switch p := o.(type) {
	case *networkingv1.NetworkPolicy:
		return networkPolicy(p, w.Numbers)
	case *kubeovnv1.SecurityGroup:
		return securityGroup(p, w.Group)
	}
	for _, k := range clusterKinds {
		if k.is(o) {
			return clusterNetworkPolicy(k.read(o), w.Numbers, w.Nodes)
		}
	}
	return compiled{}
}

// LoggedDrops returns the names of the ACLs of a policy that drop packets and log them while it has AnnotationLogDropsUntil, and the set of its pods.
func LoggedDrops(o client.Object, w World) (names []string, subjects podset.Selector) {
	c := compileOf(o, w)
	c.logAllDrops()
	for _, row := range c.rows() {
		if acl, is := row.Model.(*nb.ACL); is && acl.Log && acl.Action == nb.ACLActionDrop && acl.Name != nil && !slices.Contains(names, *acl.Name) {
			names = append(names, *acl.Name)
		}
	}
	if len(c.uses) > 0 { // the first one is of the subjects
		subjects = c.uses[0]
	}
	return names, subjects
}

// ClusterKind is a kind of cluster-wide policies in one version.
type ClusterKind struct {
	Name, Resource, Version string
	List                    func() client.ObjectList
}

// ClusterKinds returns the kinds of cluster-wide policies, with their versions in order of preference.
func ClusterKinds() []ClusterKind {
	var kinds []ClusterKind
	for _, k := range clusterKinds {
		for _, v := range k.versions {
			kinds = append(kinds, ClusterKind{Name: k.name, Resource: k.resource, Version: v.name, List: v.list})
		}
	}
	return kinds
}
