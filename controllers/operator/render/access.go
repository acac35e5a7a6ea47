// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// access holds the permissions of one ServiceAccount: cluster-wide and in its own namespace.
type access struct {
	account, app, component string
	cluster                 []rbacv1.PolicyRule
	own                     []rbacv1.PolicyRule
}

var read = []string{"get", "list", "watch"}

// Kinds of sigs.k8s.io/network-policy-api. Their CRDs are optional in a cluster.
var (
	policyKinds    = []string{"adminnetworkpolicies", "baselineadminnetworkpolicies", "clusternetworkpolicies"}
	policyStatuses = []string{"adminnetworkpolicies/status", "baselineadminnetworkpolicies/status", "clusternetworkpolicies/status"}
)

// accesses returns the permissions of all components. The operator may grant only permissions that it holds itself, so
// its own roles in config/rbac are generated from this table (see Grants). Policies adds limits that a role cannot
// express. reviews is set if processes review the tokens of those who read metrics.
func accesses(reviews bool) []access {
	all := []access{
		{
			account: centralAccount, app: centralApp, component: centralAccount,
			cluster: []rbacv1.PolicyRule{readClusters},
			own: []rbacv1.PolicyRule{
				rule("", read, "pods"),                     // pods of ovn-northd wait for one another
				rule("", []string{"patch"}, "pods/status"), // labels of its own pod
			},
		},
		{
			account: OpenVSwitchAccount, app: openVSwitchApp, component: OpenVSwitch,
			cluster: []rbacv1.PolicyRule{
				readClusters,
				rule("", []string{"get"}, "nodes"),
				rule("certificates.k8s.io", []string{"create", "get", "list", "watch"}, "certificatesigningrequests"),
			},
		},
		controllerAccess(),
		{
			account: AgentName, app: AgentName, component: AgentName,
			cluster: []rbacv1.PolicyRule{
				rule("", read, "pods", "nodes"),
				rule("", []string{"patch"}, "nodes/status"),
				rule("", []string{"list"}, "events"), // to find the reason why a pod has no address
				writeEvents,                          // on pods whose probes the kubelet does not reach
				rule("", read, "services"),
				rule("discovery.k8s.io", read, "endpointslices"),
				rule("networking.k8s.io", read, "servicecidrs"),
				rule("kubeovn.io", read, "subnets", "vpcs", "ips", "provider-networks", "egress-addresses"),
				readClusters, // levels of logs
			},
			// The Lease of its node as a gateway. A role cannot limit it to one node; the policy kiln-gateway-leases
			// does.
			own: []rbacv1.PolicyRule{rule("coordination.k8s.io", []string{"create", "patch"}, "leases")},
		},
		{
			account: PingerName, app: PingerName, component: PingerName,
			cluster: []rbacv1.PolicyRule{readClusters},           // its settings
			own:     []rbacv1.PolicyRule{rule("", read, "pods")}, // its targets
		},
		{
			account: SpeakerName, app: SpeakerName, component: SpeakerName,
			cluster: []rbacv1.PolicyRule{
				readClusters, // peers, namespaces and levels of logs
				rule("", read, "pods", "nodes", "services"),
				rule("discovery.k8s.io", read, "endpointslices"),
				rule("kubeovn.io", read, "subnets", "egress-addresses", "ovn-eips"),
				writeEvents, // on objects beyond the limit of prefixes
			},
			own: []rbacv1.PolicyRule{rule("", []string{"patch"}, "pods/status")}, // the condition of its own pod
		},
		{
			account: MonitorName, app: MonitorName, component: MonitorName,
			cluster: []rbacv1.PolicyRule{readClusters},                       // levels of logs, and who may read metrics
			own:     []rbacv1.PolicyRule{rule("", []string{"list"}, "pods")}, // the addresses of databases and of ovn-northd
		},
	}
	if reviews {
		for i := range all {
			// Processes of the databases serve metrics to kube-ovn-monitor only; kube-ovn-pinger has no access control.
			if all[i].account != centralAccount && all[i].account != PingerName {
				all[i].cluster = append(all[i].cluster,
					rule("authentication.k8s.io", []string{"create"}, "tokenreviews"), rule("authorization.k8s.io", []string{"create"}, "subjectaccessreviews"))
			}
		}
	}
	return all
}

// readClusters and writeEvents are permissions that several components have.
var (
	readClusters = rule("kubeovn.io", read, "ovnclusters")
	writeEvents  = rule("events.k8s.io", []string{"create", "patch"}, "events")
)

// controllerAccess returns the permissions of the controller.
func controllerAccess() access {
	return access{
		account: ControllerName, app: ControllerName, component: ControllerName,
		cluster: append([]rbacv1.PolicyRule{
			readClusters, writeEvents,
			rule("", read, "pods"),
			rule("", []string{"patch"}, "pods/status"), // annotations
			rule(podNetworksGroup, []string{podNetworksVerb}, podNetworksResource),
			rule(podNetworksGroup, []string{externalIPsVerb}, externalIPsResource), // Services of rules
			rule("", []string{"get", "list", "watch", "patch"}, "nodes", "namespaces"),
			rule("", []string{"get", "list", "watch", "patch", "create", "delete"}, "services"),                    // each rule has one
			rule("", []string{"patch"}, "services/status"),                                                         // addresses of load balancers
			rule("discovery.k8s.io", slices.Concat(read, []string{"patch", "create", "delete"}), "endpointslices"), // for RouterLBRules
			rule("networking.k8s.io", read, "networkpolicies", "servicecidrs"),
			rule("policy.networking.k8s.io", read, policyKinds...),
			rule("policy.networking.k8s.io", []string{"patch"}, policyStatuses...),
			rule("apiextensions.k8s.io", read, "customresourcedefinitions"),
			rule("apps", read, "statefulsets"),
			rule("kubevirt.io", read, "virtualmachines"), // VMs retain addresses; KubeVirt is optional
		}, kindRules()...),
		// Leader election and the Leases of gateway nodes. RBAC cannot limit create by name; the policy
		// kiln-controller-leases does.
		own: []rbacv1.PolicyRule{
			rule("coordination.k8s.io", slices.Concat(read, []string{"create"}), "leases"),
			withResourceNames(rule("coordination.k8s.io", []string{"update"}, "leases"), ControllerName),
		},
	}
}

// kindRules returns the controller's permissions for the kinds of kubeovn.io/v1. Implemented kinds with the same verbs share a rule.
func kindRules() (rules []rbacv1.PolicyRule) {
	for _, k := range kubeovnv1.ImplementedKinds {
		next := rule("kubeovn.io", slices.Concat(read, k.ControllerWrites), k.Resource)
		at := slices.IndexFunc(rules, func(r rbacv1.PolicyRule) bool { return slices.Equal(r.Verbs, next.Verbs) })
		if at < 0 {
			rules = append(rules, next)
		} else {
			rules[at].Resources = append(rules[at].Resources, k.Resource)
		}
	}
	return append(rules,
		rule("kubeovn.io", slices.Concat(read, []string{"patch"}), kubeovnv1.Resources("", unimplemented)...), // finalizers of Kube-OVN
		rule("kubeovn.io", []string{"patch"}, kubeovnv1.Resources("/status", unimplemented)...),
		rule("kubeovn.io", []string{"patch"}, kubeovnv1.Resources("/status", func(k *kubeovnv1.Kind) bool { return k.Implemented })...))
}

func unimplemented(k *kubeovnv1.Kind) bool { return !k.Implemented }

func rule(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

// withResourceNames returns r limited to objects with these names.
func withResourceNames(r rbacv1.PolicyRule, names ...string) rbacv1.PolicyRule {
	r.ResourceNames = names
	return r
}

// AccessObjects returns the ServiceAccounts of all components with their roles and bindings. That of kube-ovn-speaker exists only with spec.speaker,
// as its admission policy does.
func AccessObjects(c Config) []Object {
	var objects []Object
	for _, a := range accesses(c.authorized()) {
		if a.account == SpeakerName && c.Spec.Speaker == nil {
			continue
		}
		subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: a.account, Namespace: c.Namespace}}
		clusterName := "kiln:" + a.account
		objects = append(objects,
			&corev1.ServiceAccount{ObjectMeta: c.meta(a.account, a.app, a.component)},
			&rbacv1.ClusterRole{ObjectMeta: c.clusterMeta(clusterName, a.app, a.component), Rules: a.cluster},
			&rbacv1.ClusterRoleBinding{
				ObjectMeta: c.clusterMeta(clusterName, a.app, a.component),
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterName},
				Subjects:   subjects,
			})
		if len(a.own) == 0 {
			continue
		}
		objects = append(objects,
			&rbacv1.Role{ObjectMeta: c.meta(a.account, a.app, a.component), Rules: a.own},
			&rbacv1.RoleBinding{
				ObjectMeta: c.meta(a.account, a.app, a.component),
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: a.account},
				Subjects:   subjects,
			})
	}
	return objects
}

// Grants returns the permissions, cluster-wide and in the operator's own namespace, that the operator must hold to grant
// the components' roles (privilege escalation prevention, kubernetes.io/docs/reference/access-authn-authz/rbac). The
// manifests in config/rbac are generated from it.
func Grants() (cluster, own []rbacv1.PolicyRule) {
	for _, a := range accesses(true) {
		cluster = append(cluster, a.cluster...)
		own = append(own, a.own...)
	}
	return merged(cluster), merged(own)
}

// merged returns one rule per resource and set of object names, sorted.
func merged(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	type target struct{ group, resource, names string }
	verbs := map[target][]string{}
	for _, r := range rules {
		for _, resource := range r.Resources {
			t := target{r.APIGroups[0], resource, strings.Join(r.ResourceNames, ",")}
			verbs[t] = append(verbs[t], r.Verbs...)
		}
	}
	all := make([]rbacv1.PolicyRule, 0, len(verbs))
	for t, v := range verbs {
		slices.Sort(v)
		r := rule(t.group, slices.Compact(v), t.resource)
		if t.names != "" {
			r.ResourceNames = strings.Split(t.names, ",")
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b rbacv1.PolicyRule) int {
		return cmp.Or(cmp.Compare(a.APIGroups[0], b.APIGroups[0]), cmp.Compare(a.Resources[0], b.Resources[0]),
			slices.Compare(a.ResourceNames, b.ResourceNames))
	})
	return all
}
