// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// someNames is the number of names that a message lists.
const someNames = 5

// oldestKubernetes is the first version with everything that the manifests use (docs/operations/install.md, versions of Kubernetes).
const oldestKubernetes = "1.31"

// Environment checks a cluster before or after the installation of an OVNCluster with this spec.
func Environment(c *Cluster, spec *v1alpha1.OVNClusterSpec) *Report {
	var all []Finding
	for _, check := range []func(*Cluster, *v1alpha1.OVNClusterSpec) []Finding{
		kubernetesVersion, nodeAddresses, networks, operatorNodes, centralNodes, restrictedSelectors, egressNodes, kubeProxy, otherPlugins, definitions, membership, ports, kernel,
	} {
		all = append(all, check(c, spec)...)
	}
	return newReport(all)
}

func kubernetesVersion(c *Cluster, _ *v1alpha1.OVNClusterSpec) []Finding {
	const subject = "Kubernetes version"
	is, err := version.ParseGeneric(c.Version)
	switch {
	case err != nil:
		return []Finding{{Warning, subject, fmt.Sprintf("the API server's version %q cannot be read: Kiln needs %s or newer", c.Version, oldestKubernetes)}}
	case is.LessThan(version.MustParseGeneric(oldestKubernetes)):
		return []Finding{{Failed, subject, fmt.Sprintf("the API server has version %s, and Kiln needs %s or newer: upgrade Kubernetes", c.Version, oldestKubernetes)}}
	}
	return []Finding{{OK, subject, c.Version}}
}

// nodeAddresses checks that each Linux node has an InternalIP of its own.
func nodeAddresses(c *Cluster, _ *v1alpha1.OVNClusterSpec) []Finding {
	const subject = "Addresses of nodes"
	var without, foreign []string
	owners := map[string][]string{}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Labels[corev1.LabelOSStable] != string(corev1.Linux) {
			foreign = append(foreign, n.Name)
			continue
		}
		addresses := k8s.InternalIPs(n)
		if len(addresses) == 0 {
			without = append(without, n.Name)
		}
		for _, a := range addresses {
			owners[a.String()] = append(owners[a.String()], n.Name)
		}
	}
	var found []Finding
	if len(without) > 0 {
		found = append(found, Finding{Failed, subject, fmt.Sprintf(
			"no InternalIP on nodes %s: set --node-ip of their kubelets, or wait for the cloud provider", k8s.Some(without, someNames))})
	}
	for _, address := range slices.Sorted(maps.Keys(owners)) {
		if nodes := owners[address]; len(nodes) > 1 {
			found = append(found, Finding{Failed, subject, fmt.Sprintf(
				"nodes %s have one InternalIP, %s: give each its own address", k8s.Some(nodes, someNames), address)})
		}
	}
	if len(foreign) > 0 {
		found = append(found, Finding{Warning, subject, fmt.Sprintf("nodes %s do not have the label %s=%s: Kiln ignores them",
			k8s.Some(foreign, someNames), corev1.LabelOSStable, string(corev1.Linux))})
	}
	if len(found) == 0 {
		found = []Finding{{OK, subject, fmt.Sprintf("each of %d nodes has an InternalIP of its own", len(c.Nodes))}}
	}
	return found
}

// centralNodes checks that nodes match the selectors of the components that do not run on every node.
func centralNodes(c *Cluster, spec *v1alpha1.OVNClusterSpec) []Finding {
	var found []Finding
	for _, of := range []struct {
		field     string
		placement v1alpha1.Placement
		members   int32
	}{
		{"spec.central", spec.Central.Placement, spec.Central.Replicas},
		{"spec.controller", spec.Controller.Placement, 1},
	} {
		selector := of.placement.Selector()
		var names []string
		for i := range c.Nodes {
			if selector.Matches(labels.Set(c.Nodes[i].Labels)) {
				names = append(names, c.Nodes[i].Name)
			}
		}
		f := Finding{OK, "Nodes of " + of.field, fmt.Sprintf("%d nodes match %s: %s", len(names), selector, k8s.Some(names, someNames))}
		if needed := max(1, int(of.members)); len(names) < needed {
			f.Level, f.Message = Failed, fmt.Sprintf("%d nodes match %s, and %d are needed: label nodes, or change %s.nodeSelector",
				len(names), selector, needed, of.field)
		}
		found = append(found, f)
	}
	return found
}

// operatorNodes checks that the operator has a node. Its token is equivalent to root on every node, so that it runs only on nodes with labels that
// kubelets cannot write.
func operatorNodes(c *Cluster, _ *v1alpha1.OVNClusterSpec) []Finding {
	const subject = "Nodes of the operator"
	for _, of := range []struct{ label, by string }{{v1alpha1.ControlPlaneLabel, "config/default"}, {v1alpha1.ManagedLabel, "config/components/managed"}} {
		var names []string
		for i := range c.Nodes {
			if _, is := c.Nodes[i].Labels[of.label]; is {
				names = append(names, c.Nodes[i].Name)
			}
		}
		if len(names) > 0 {
			return []Finding{{OK, subject, fmt.Sprintf("%d nodes have the label %s, which %s selects: %s", len(names), of.label, of.by, k8s.Some(names, someNames))}}
		}
	}
	return []Finding{{Warning, subject, fmt.Sprintf("no node has the label %s: label nodes with %s=true, and use config/overlays/managed or its component",
		v1alpha1.ControlPlaneLabel, v1alpha1.ManagedLabel)}}
}

// restrictedSelectors checks that a stolen node cannot select itself for the keys of the databases and of their clients, for the passwords of the
// speaker, or for external ports of VPCs.
func restrictedSelectors(_ *Cluster, spec *v1alpha1.OVNClusterSpec) (found []Finding) {
	selectors := []struct {
		field    string
		selector map[string]string
	}{{"central", spec.Central.NodeSelector}, {"controller", spec.Controller.NodeSelector}, {"network.externalGateways", spec.Network.ExternalGateways.NodeSelector}}
	if spec.Speaker != nil {
		selectors = append(selectors, struct {
			field    string
			selector map[string]string
		}{"speaker", spec.Speaker.NodeSelector})
	}
	for _, s := range selectors {
		if k8s.KubeletsMaySatisfy(s.selector) {
			found = append(found, Finding{Warning, "Labels of spec." + s.field, fmt.Sprintf("kubelets may write all labels of spec.%s.nodeSelector (%s), so that a stolen node can "+
				"select itself: use %s, or a label with the prefix node-restriction.kubernetes.io/", s.field, labels.FormatLabels(s.selector), v1alpha1.ControlPlaneLabel)})
		}
	}
	return found
}

// egressNodes checks that a stolen node cannot select itself for the addresses of EgressAddresses. An empty selector means all nodes.
func egressNodes(c *Cluster, _ *v1alpha1.OVNClusterSpec) (found []Finding) {
	for i := range c.Objects["EgressAddress"] {
		var e kubeovnv1.EgressAddress
		if runtime.DefaultUnstructuredConverter.FromUnstructured(c.Objects["EgressAddress"][i].Object, &e) != nil || e.Spec.NodeSelector == nil {
			continue // the check of objects reports one that cannot be read
		}
		required := maps.Clone(e.Spec.NodeSelector.MatchLabels)
		for _, r := range e.Spec.NodeSelector.MatchExpressions {
			if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpExists {
				required = labels.Merge(required, labels.Set{r.Key: ""})
			}
		}
		if k8s.KubeletsMaySatisfy(required) {
			found = append(found, Finding{Warning, "EgressAddress " + e.Name, fmt.Sprintf("kubelets may write all labels of nodeSelector (%s), so that a stolen node can "+
				"select itself and get the packets: use a label with the prefix node-restriction.kubernetes.io/", metav1.FormatLabelSelector(e.Spec.NodeSelector))})
		}
	}
	return found
}

// kubeProxy compares kube-proxy with spec.services.nodeAccess.
func kubeProxy(c *Cluster, spec *v1alpha1.OVNClusterSpec) []Finding {
	const subject = "kube-proxy"
	at := slices.IndexFunc(c.Workloads, func(w Workload) bool {
		return w.Kind == "DaemonSet" && (w.Name == "kube-proxy" || w.Template.Labels["k8s-app"] == "kube-proxy")
	})
	access := cmp.Or(spec.Services.NodeAccess, v1alpha1.NodeAccessKubeProxy)
	runs := at >= 0
	switch {
	case runs && access == v1alpha1.NodeAccessKiln:
		return []Finding{{Failed, subject, fmt.Sprintf("DaemonSet %s/%s runs, and services.nodeAccess is Kiln: both would translate the same packets. "+
			"Delete the DaemonSet and its rules on nodes (`kube-proxy --cleanup`), or set nodeAccess to KubeProxy", c.Workloads[at].Namespace, c.Workloads[at].Name)}}
	case runs:
		return []Finding{{OK, subject, fmt.Sprintf("DaemonSet %s/%s, mode %s", c.Workloads[at].Namespace, c.Workloads[at].Name, c.proxyMode())}}
	case access == v1alpha1.NodeAccessKubeProxy:
		return []Finding{{Warning, subject, "there is no DaemonSet kube-proxy, and services.nodeAccess is KubeProxy. Some distributions run it in their own process " +
			"(k3s, RKE2): then this is right. Otherwise set nodeAccess to Kiln, and apiServer to the address of the API server"}}
	}
	return []Finding{{OK, subject, "there is no DaemonSet kube-proxy, and services.nodeAccess is Kiln"}}
}

// proxyMode returns the mode in kubeadm's ConfigMap.
func (c *Cluster) proxyMode() string {
	for _, m := range c.ConfigMaps {
		if m.Name != "kube-proxy" {
			continue
		}
		for line := range strings.Lines(m.Data["config.conf"]) {
			if key, value, _ := strings.Cut(line, ":"); key == "mode" {
				return cmp.Or(strings.Trim(strings.TrimSpace(value), `"'`), "iptables (the default)")
			}
		}
	}
	return "unknown"
}

// plugins are other network plugins, by the names of their DaemonSets and the groups of their kinds.
var plugins = []struct{ name, daemonSet, group string }{
	{"Antrea", "antrea-agent", "crd.antrea.io"},
	{"AWS VPC CNI", "aws-node", "crd.k8s.amazonaws.com"},
	{"Azure CNI", "azure-cns", "acn.azure.com"},
	{"Calico", "calico-node", "crd.projectcalico.org"},
	{"Canal", "canal", "crd.projectcalico.org"},
	{"Cilium", "cilium", "cilium.io"},
	{"Flannel", "kube-flannel-ds", ""},
	{"kindnet", "kindnet", ""},
	{"kube-router", "kube-router", ""},
	{"OVN-Kubernetes", "ovnkube-node", "k8s.ovn.org"},
	{"Weave Net", "weave-net", ""},
}

// otherPlugins looks for other network plugins: the container runtime uses one of them.
func otherPlugins(c *Cluster, _ *v1alpha1.OVNClusterSpec) []Finding {
	const subject = "Other CNI plugins"
	var found []Finding
	for _, p := range plugins {
		at := slices.IndexFunc(c.Workloads, func(w Workload) bool { return w.Kind == "DaemonSet" && w.Name == p.daemonSet })
		switch {
		case at >= 0:
			found = append(found, Finding{Failed, subject, fmt.Sprintf("%s is installed (DaemonSet %s/%s): remove it and its files in /etc/cni/net.d",
				p.name, c.Workloads[at].Namespace, p.daemonSet)})
		case p.group != "" && slices.Contains(c.Groups, p.group) && !slices.ContainsFunc(found, func(f Finding) bool { return strings.Contains(f.Message, p.group) }):
			found = append(found, Finding{Warning, subject, fmt.Sprintf("kinds of %s exist, from %s: if it is no longer installed, remove its definitions", p.group, p.name)})
		}
	}
	if names := c.kubeOVN(); len(names) > 0 {
		found = append(found, Finding{Failed, subject, "Kube-OVN is installed (" + k8s.Some(names, someNames) +
			"): see `kubectl ko env-check --migrate` and docs/operations/migrate.md"})
	}
	if len(found) == 0 {
		return []Finding{{OK, subject, "none is known here"}}
	}
	return found
}

// definitions checks the kinds of kubeovn.io. All definitions of Kiln have the category kiln.
func definitions(c *Cluster, _ *v1alpha1.OVNClusterSpec) []Finding {
	const subject = "Definitions of kubeovn.io"
	served := map[string]bool{}
	var foreign []string
	for _, r := range c.Resources {
		served[r.Kind] = true
		if !slices.Contains(r.Categories, v1alpha1.PartOf) {
			foreign = append(foreign, r.Kind)
		}
	}
	var missing []string
	for _, kind := range append(Kinds(), &kubeovnv1.Kind{Kind: "OVNCluster"}) {
		if !served[kind.Kind] {
			missing = append(missing, kind.Kind)
		}
	}
	slices.Sort(foreign)
	switch {
	case len(served) == 0:
		return []Finding{{OK, subject, "none: `kubectl apply --server-side -k config/default` creates them"}}
	case len(foreign) > 0:
		return []Finding{{Failed, subject, fmt.Sprintf("%s are not Kiln's: replace them with `kubectl apply --server-side --force-conflicts -k config/crd`, which keeps the objects",
			k8s.Some(foreign, someNames))}}
	case len(missing) > 0:
		return []Finding{{Failed, subject, fmt.Sprintf("missing: %s. Apply the manifests of this version again", k8s.Some(missing, someNames))}}
	}
	return []Finding{{OK, subject, fmt.Sprintf("all %d kinds are served, of versions v1 and v1alpha1", len(served))}}
}

func kernel(c *Cluster, spec *v1alpha1.OVNClusterSpec) []Finding {
	if spec.Nodes.Datapath == v1alpha1.DatapathUserspace {
		return nil
	}
	versions := map[string]bool{}
	for i := range c.Nodes {
		versions[c.Nodes[i].Status.NodeInfo.KernelVersion] = true
	}
	encapsulation := cmp.Or(string(spec.Network.TunnelType), string(v1alpha1.TunnelGeneve))
	return []Finding{{Manual, subjectModules, fmt.Sprintf("the API does not show them. On each node run `modprobe -a openvswitch %s`, or use nodes.datapath Userspace. Kernels: %s",
		encapsulation, k8s.Some(slices.Sorted(maps.Keys(versions)), someNames))}}
}
