// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/workload"
)

// everyAccount lists the writes that the API server permits to every authenticated user: reviews of the user's own rights.
var everyAccount = []grant{
	{"create selfsubjectaccessreviews.authorization.k8s.io", ""},
	{"create selfsubjectrulesreviews.authorization.k8s.io", ""},
	{"create selfsubjectreviews.authentication.k8s.io", ""},
}

// grant is a write that an account needs: `<verb>,<verb> <resource>[.<group>][/<subresource>] [@own] [<name>]`. Without @own it is for all
// namespaces, without a name for all objects.
type grant struct{ right, use string }

// mayWrite lists the writes of each ServiceAccount. The API server refuses every other write. A named policy limits the
// right to the writes that the account needs; trials of that policy cover the other writes (TestPolicies,
// TestStolenTokens).
var mayWrite = map[string][]grant{
	"ovn-central": {
		{"patch pods/status @own", "labels of leaders, and what northd has written, on its own pod: kiln-central-pods"},
	},
	render.OpenVSwitchAccount: {
		{"create certificatesigningrequests.certificates.k8s.io", "the certificate of its chassis: kiln-chassis-requests"},
	},
	render.PingerName:  {}, // it only reads
	render.MonitorName: {}, // it reads
	render.SpeakerName: {
		{"patch pods/status @own", "the condition of its own pod: kiln-speaker-pods"},
		{"create,patch events.events.k8s.io", "on pods and Services beyond the limit of prefixes; a patch counts repetitions"},
	},
	render.AgentName: {
		{"patch nodes/status", "two conditions, and reports about ProviderNetworks and ended connections, of its own node: kiln-node-status"},
		{"create,patch leases.coordination.k8s.io @own", "the Lease of its own node as a gateway: kiln-gateway-leases"},
		{"create,patch events.events.k8s.io", "on pods of its node in all namespaces; a patch counts repetitions"},
	},
	render.ControllerName: append([]grant{
		{"patch pods/status", "results, and the label and condition of its own pod: kiln-controller-pods"},
		{"use externalips.kubeovn.io", "Services of load balancer rules: kiln-service-addresses"},
		{"write podnetworks.kubeovn.io", "makes it a writer of results: kiln-pod-networks"},
		{"patch nodes", "annotations: kiln-controller-metadata"},
		{"patch namespaces", "annotations: kiln-controller-metadata"},
		{"create,patch,delete services", "Services of load balancer rules, and the VPC of other Services: kiln-controller-services"},
		{"patch services/status", "addresses and the condition of Services of type LoadBalancer with a class: kiln-controller-services"},
		{"create,patch,delete endpointslices.discovery.k8s.io", "slices of load balancer rules with endpoints: kiln-controller-slices"},
		{"create,patch events.events.k8s.io", "on objects of all namespaces; a patch counts repetitions"},
		{"create,patch vpcs.kubeovn.io", "the default Vpc; finalizers: kiln-controller-finalizers"},
		{"create,patch subnets.kubeovn.io", "the default Subnets; defaults and finalizers"},
		{"create,patch,delete ips.kubeovn.io", "a record per port"},
		{"create,patch,delete vips.kubeovn.io", "addresses of load balancer rules; finalizers"},
		{"create,patch,delete ovn-eips.kubeovn.io", "addresses of ports of routers; finalizers and labels: kiln-controller-finalizers"},
		{"create,patch,delete ovn-fips.kubeovn.io", "requests of pods; finalizers and labels: kiln-controller-finalizers"},
		{"create,patch,delete ovn-snat-rules.kubeovn.io", "requests of pods; finalizers and labels: kiln-controller-finalizers"},
		{"patch adminnetworkpolicies.policy.networking.k8s.io/status", ""},
		{"patch baselineadminnetworkpolicies.policy.networking.k8s.io/status", ""},
		{"patch clusternetworkpolicies.policy.networking.k8s.io/status", ""},
		{"create leases.coordination.k8s.io @own", "leader election: kiln-controller-leases"},
		{"update leases.coordination.k8s.io @own kube-ovn-controller", "leader election"},
	}, kindWrites()...),
}

// kindWrites lists the controller's writes to finalizers and the status of objects of kubeovn.io/v1.
func kindWrites() []grant {
	var all []grant
	for _, k := range kubeovnv1.Kinds {
		if slices.Equal(k.ControllerWrites, []string{"patch"}) {
			all = append(all, grant{"patch " + k.Resource + ".kubeovn.io", "finalizers: kiln-controller-finalizers"})
		}
		all = append(all, grant{"patch " + k.Resource + ".kubeovn.io/status", "conditions"})
	}
	return all
}

// operatorWrites lists the operator's writes to objects that it does not own.
var operatorWrites = []grant{
	{"patch ovnclusters.kubeovn.io default", "its finalizer: kiln-operator-grants"},
	{"patch ovnclusters.kubeovn.io/status default", ""},
	{"update ovnclusters.kubeovn.io/finalizers", "owns objects where the API server protects owners"},
	{"update certificatesigningrequests.certificates.k8s.io/approval", "certificates of nodes; the API server limits it to the signer below"},
	{"update certificatesigningrequests.certificates.k8s.io/status", ""},
	{"approve,sign signers.certificates.k8s.io kubeovn.io/chassis", ""},
	{"delete pods @own", "replaces pods of Kiln: kiln-operator-grants"},
	{"create leases.coordination.k8s.io @own", "leader election: kiln-operator-grants"},
	{"update leases.coordination.k8s.io @own kiln-operator", ""},
	{"patch security-groups.kubeovn.io", "the permissions of Kube-OVN: kiln-operator-grants"},
	{"create tokenreviews.authentication.k8s.io", "of requests for metrics, by itself and by components"},
	{"create subjectaccessreviews.authorization.k8s.io", "of requests for metrics, by itself and by components"},
}

// operatorMayWrite returns the operator's writes: objects that it owns, by name, and rights that it holds only to grant them to components.
// kiln-operator-creates limits the names of the objects that it creates, and kiln-operator-grants denies the use of rights that it holds to
// grant.
func (w *tenancy) operatorMayWrite(t *testing.T) []grant {
	t.Helper()
	all := slices.Clone(operatorWrites)
	for resource, names := range w.operatorOwns(t) {
		all = append(all, grant{"create " + resource, ""})
		for _, name := range names {
			all = append(all, grant{"patch,delete " + resource + " " + name, ""})
			if resource == "secrets @own" {
				all = append(all, grant{"get " + resource + " " + name, ""})
			}
		}
	}
	for _, grants := range mayWrite {
		all = append(all, grants...)
	}
	return all
}

// TestStolenTokens makes every write that the API server serves with a token of each ServiceAccount. It also runs the trials of the
// policies that limit writes.
func TestStolenTokens(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	w := newTenancy(t, render.Config{Namespace: testNamespace})
	granted := maps.Clone(mayWrite)
	granted["kiln-operator"] = w.operatorMayWrite(t)
	var accounts corev1.ServiceAccountList
	if err := w.admin.List(t.Context(), &accounts, client.InNamespace(testNamespace)); err != nil {
		t.Fatal(err)
	}
	for i := range accounts.Items {
		if name := accounts.Items[i].Name; granted[name] == nil {
			t.Errorf("mayWrite does not list what ServiceAccount %s needs", name)
		}
	}
	for _, o := range rendered(t) {
		template := workload.Template(o)
		if template == nil || template.Spec.AutomountServiceAccountToken != nil && !*template.Spec.AutomountServiceAccountToken {
			continue
		}
		if granted[template.Spec.ServiceAccountName] == nil {
			t.Errorf("mayWrite does not list what ServiceAccount %q of %s needs", template.Spec.ServiceAccountName, o.GetName())
		}
	}
	served := w.served(t)
	for account, grants := range granted {
		t.Run(account, func(t *testing.T) { w.stolen(t, account, served, slices.Concat(everyAccount, grants)) })
	}
	t.Run("what policies limit", func(t *testing.T) {
		w.makeRules(t)
		w.try(t, slices.Concat(w.servicesOfOthers(), w.specsOfOthers(), w.leasesOfOthers(), w.heldToGrant(t), w.escalations()))
	})
}
