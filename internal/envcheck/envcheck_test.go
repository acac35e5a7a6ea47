// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// TestDocumentedPortsAreChecked compares hostPorts with the table of TCP ports in the page about the installation.
func TestDocumentedPortsAreChecked(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations/install.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []int32
	for _, row := range regexp.MustCompile(`(?m)^\| ([0-9, to]+)/tcp `).FindAllStringSubmatch(string(page), -1) {
		for _, item := range strings.Split(row[1], ", ") {
			from, to, isRange := strings.Cut(item, " to ")
			if !isRange {
				to = from
			}
			first, errFirst := strconv.Atoi(from)
			last, errLast := strconv.Atoi(to)
			if errFirst != nil || errLast != nil {
				t.Fatalf("cannot read %q", item)
			}
			for p := first; p <= last; p++ {
				documented = append(documented, int32(p))
			}
		}
	}
	if len(documented) < 10 {
		t.Fatalf("the table of the page cannot be read: %v", documented)
	}
	for _, p := range documented {
		if !slices.Contains(hostPorts, p) {
			t.Errorf("port %d of the page is not in hostPorts", p)
		}
	}
}

func TestEachSettingHasOneRow(t *testing.T) {
	for _, c := range components {
		if c.settings == nil {
			if c.level == "" || c.text == "" {
				t.Errorf("%s has neither settings nor a text", c.name)
			}
			continue
		}
		var names []string
		for _, s := range c.settings() {
			names = append(names, s.name)
			if (s.level == Carried) != (s.carry != nil && s.field != "") || s.level != "" && s.level != Carried && s.text == "" {
				t.Errorf("%s: the row of %s is incomplete", c.name, s.name)
			}
		}
		slices.Sort(names)
		if len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("%s has a setting twice: %v", c.name, names)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, tt := range []struct {
		words string
		want  string
	}{
		{"/start.sh --one=b", "--one=b"},
		{"--one b --two", "--one=b --two=true"},
		{"-v=3 --two=", "--v=3 --two="},
		{"--type=$(TYPE)/$(OTHER)", "--type=vxlan/$(OTHER)"},
		{"sh -c script --flag=1", "--flag=1"},
		{"-- - x", ""},
	} {
		var got []string
		for _, g := range arguments(strings.Fields(tt.words), map[string]string{"TYPE": "vxlan"}) {
			got = append(got, g.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q has the arguments %v, want %s", tt.words, got, tt.want)
		}
	}
}

// workload returns a workload of Kube-OVN with these arguments.
func workload(kind, name string, args ...string) Workload {
	return Workload{Kind: kind, ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Replicas: 1, Template: corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: args}}},
	}}
}

// TestSettings judges one setting at a time.
func TestSettings(t *testing.T) {
	for _, tt := range []struct {
		component, argument string
		level               Level // empty: no finding
		want                string
	}{
		{"kube-ovn-controller", "--enable-np=true", "", ""},
		{"kube-ovn-controller", "--enable-np=false", Carried, "policies.networkPolicies"},
		{"kube-ovn-controller", "--worker-num=9", "", ""},
		{"kube-ovn-controller", "--network-type=geneve", Carried, "network.tunnelType"},
		{"kube-ovn-controller", "--network-type=stt", Lost, "geneve and vxlan"},
		{"kube-ovn-controller", "--network-type=vlan", Lost, "set network.podVlan"},
		{"kube-ovn-controller", "--default-exchange-link-name=true", Lost, "exchangeLinkName of ProviderNetworks has no effect"},
		{"kube-ovn-cni", "--cni-conf-name=05-kube-ovn.conflist", Carried, "agent.cniConfPriority"},
		{"kube-ovn-cni", "--cni-conf-name=kube-ovn.conflist", Lost, "the two digits of the name"},
		{"kube-ovn-controller", "--default-cidr=ten", Lost, "ten"},
		{"kube-ovn-controller", "--default-ls=other", Lost, "the name is fixed"},
		{"kube-ovn-controller", "--never-seen=1", Lost, "does not know the flag"},
		{"kube-ovn-controller", "--default-gateway=10.16.0.1", Differs, "stays in the Subnet"},
		{"kube-ovn-cni", "--iface=eth1", Carried, "nodes.tunnelInterface"},
		{"kube-ovn-cni", "--iface=eth.*", Lost, "one name for all nodes"},
		{"kube-ovn-cni", "--mtu=0", Carried, "network.mtu"},
		{"kube-ovn-cni", "--mtu=12", Lost, "not an MTU"},
		{"kube-ovn-cni", "--enable-tproxy=true", Differs, "by themselves"},
	} {
		t.Run(tt.argument, func(t *testing.T) {
			w := workload("Deployment", tt.component, tt.argument)
			w.Replicas = 0
			found := w.migrate(newProposal())
			if tt.level == "" {
				if len(found) > 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			if len(found) != 1 || found[0].Level != tt.level || !strings.Contains(found[0].Message, tt.want) {
				t.Errorf("found %v, want %s with %q", found, tt.level, tt.want)
			}
		})
	}
}

func unstructuredOf(kind, name string, spec map[string]any) unstructured.Unstructured {
	u := unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(kubeovnv1.GroupVersion.WithKind(kind))
	u.SetName(name)
	return u
}

// TestNothingIsLost: the exit code of a migration that loses nothing is 0. Many objects with one problem are one finding.
func TestNothingIsLost(t *testing.T) {
	c := &Cluster{
		Workloads: []Workload{workload("Deployment", "kube-ovn-controller", "--default-cidr=10.16.0.0/16"), workload("Deployment", "ovn-central")},
		Objects: map[string][]unstructured.Unstructured{
			"Vpc": {unstructuredOf("Vpc", "ovn-cluster", map[string]any{})},
			"Subnet": {
				unstructuredOf("Subnet", "ovn-default", map[string]any{"cidrBlock": "10.18.0.0/16", "vpc": "ovn-cluster", "default": true, "natOutgoing": true}),
				unstructuredOf("Subnet", "join", map[string]any{"cidrBlock": "100.64.0.0/16", "vpc": "ovn-cluster"}),
			},
		},
	}
	report, err := Migration(c)
	if err != nil || report.Failed() {
		t.Fatalf("%v: %v", err, report)
	}
	if text := fmt.Sprint(report.OVNCluster); !strings.Contains(text, "podCIDRs:[10.18.0.0/16]") || !strings.Contains(text, "dataDirectory:"+DataDirectory) {
		t.Errorf("the proposal is %s: the subnet has precedence over the argument", text)
	}
	for i := range 20 {
		c.Objects["VpcDns"] = append(c.Objects["VpcDns"], unstructuredOf("VpcDns", fmt.Sprint("v", i), nil))
		c.Pods = append(c.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: fmt.Sprint("p", i), Annotations: map[string]string{"ovn.kubernetes.io/activation_strategy": "none", "ovn.kubernetes.io/vlan_id": "5"},
		}})
	}
	if report, err = Migration(c); err != nil || !report.Failed() {
		t.Fatalf("%v: %v", err, report)
	}
	var lost []string
	for _, f := range report.Findings {
		if f.Level == Lost {
			lost = append(lost, f.Subject)
		}
	}
	if want := "VpcDns v0, v1, v2, v3, v4, and 15 more; Annotation ovn.kubernetes.io/activation_strategy"; strings.Join(lost, "; ") != want {
		t.Errorf("lost %s, want %s", strings.Join(lost, "; "), want)
	}
}

// Keys of the ConfigMap of external gateways that Kiln does not read have objects instead. Nothing is reported once these exist.
func TestTheConfigMapOfExternalGateways(t *testing.T) {
	config := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ovn-external-gw-config"}, Data: map[string]string{
		"enable-external-gw": " true\n", "type": "distributed", "external-gw-nodes": "n1", "external-gw-nic": "eth1", "external-gw-addr": "172.56.0.1/16",
		"nic-ip": "172.56.0.254/16", "nic-mac": "16:52:f3:13:6a:25",
	}}
	c := &Cluster{
		ConfigMaps: []corev1.ConfigMap{config},
		Workloads:  []Workload{workload("Deployment", "kube-ovn-controller", "--bfd-min-tx=200", "--bfd-min-rx=20", "--detect-mult=4")},
		Objects:    map[string][]unstructured.Unstructured{"Vpc": {unstructuredOf("Vpc", "ovn-cluster", map[string]any{})}},
	}
	found := func() (all []string) {
		report, err := Migration(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range report.Findings {
			if strings.HasPrefix(f.Subject, "ConfigMap") || strings.Contains(f.Subject, "bfd-") || strings.Contains(f.Subject, "detect-") {
				all = append(all, fmt.Sprint(f.Level, " ", f.Subject, ": ", f.Message))
			}
		}
		if text := fmt.Sprint(report.OVNCluster); !strings.Contains(text, "externalGateways:map[bfd:map[minTransmit:200ms multiplier:4]]") {
			t.Errorf("the proposal is %s", text)
		}
		slices.Sort(all)
		return all
	}
	flags := []string{
		"carried Deployment kube-ovn-controller --bfd-min-tx=200: network.externalGateways.bfd.minTransmit",
		"carried Deployment kube-ovn-controller --detect-mult=4: network.externalGateways.bfd.multiplier",
	}
	tooShort := "lost Deployment kube-ovn-controller --bfd-min-rx=20: the interval must be from 50 to 60000 ms"
	want := append(slices.Clone(flags),
		"lost ConfigMap ovn-external-gw-config enable-external-gw: set enableExternal of Vpc ovn-cluster",
		"lost ConfigMap ovn-external-gw-config external-gw-nic, external-gw-addr: create a ProviderNetwork with defaultInterface eth1, a Vlan, and Subnet external with this vlan and gateway 172.56.0.1 (docs/user/external.md)",
		"lost ConfigMap ovn-external-gw-config nic-ip, nic-mac: create OvnEip ovn-cluster-external of type lrp with these addresses: v4Ip 172.56.0.254, macAddress 16:52:f3:13:6a:25",
		"lost ConfigMap ovn-external-gw-config type: OvnFips without a type are centralized: set type: distributed of these OvnFips", tooShort)
	if got := found(); !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	delete(config.Data, "type")
	c.Objects = map[string][]unstructured.Unstructured{
		"Vpc":    {unstructuredOf("Vpc", "ovn-cluster", map[string]any{"enableExternal": true})},
		"Subnet": {unstructuredOf("Subnet", "external", map[string]any{"vlan": "v"})},
		"OvnEip": {unstructuredOf("OvnEip", "ovn-cluster-external", map[string]any{"type": "lrp"})},
	}
	if got := found(); !slices.Equal(got, append(slices.Clone(flags), tooShort)) {
		t.Errorf("with the objects: %s", strings.Join(got, "\n"))
	}
	config.Data["enable-external-gw"] = "false"
	c.Objects = nil
	if got := found(); !slices.Equal(got, append(slices.Clone(flags), tooShort)) {
		t.Errorf("disabled: %s", strings.Join(got, "\n"))
	}
}

// TestLabelsThatKubeletsMayWriteAreReported checks selectors by which a stolen node gets the keys of the databases, of their clients, or of the operator.
func TestLabelsThatKubeletsMayWriteAreReported(t *testing.T) {
	kubeOVN, restricted := map[string]string{"kube-ovn/role": "master"}, map[string]string{v1alpha1.ManagedLabel: "true"}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelOSStable: "linux", "kube-ovn/role": "master"}}}
	managed := *node.DeepCopy()
	managed.Labels[v1alpha1.ManagedLabel] = "true"
	for _, tt := range []struct {
		name string
		node corev1.Node
		spec v1alpha1.OVNClusterSpec
		want []string // subjects of warnings
	}{
		{"restricted labels", managed, v1alpha1.OVNClusterSpec{
			Central:    v1alpha1.Central{Placement: v1alpha1.Placement{NodeSelector: restricted}},
			Controller: v1alpha1.Controller{Placement: v1alpha1.Placement{NodeSelector: restricted}},
			Speaker:    &v1alpha1.Speaker{NodeSelector: map[string]string{"ovn.kubernetes.io/bgp": "true"}},
		}, nil},
		{"labels of Kube-OVN", node, v1alpha1.OVNClusterSpec{
			Central:    v1alpha1.Central{Placement: v1alpha1.Placement{NodeSelector: kubeOVN}},
			Controller: v1alpha1.Controller{Placement: v1alpha1.Placement{NodeSelector: kubeOVN}},
			Speaker:    &v1alpha1.Speaker{NodeSelector: kubeOVN},
			Network:    v1alpha1.Network{ExternalGateways: v1alpha1.ExternalGateways{NodeSelector: kubeOVN}},
		}, []string{"Nodes of the operator", "Labels of spec.central", "Labels of spec.controller", "Labels of spec.network.externalGateways", "Labels of spec.speaker"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			c := &Cluster{Nodes: []corev1.Node{tt.node}}
			for _, f := range append(operatorNodes(c, &tt.spec), restrictedSelectors(c, &tt.spec)...) {
				if f.Level != OK {
					got = append(got, f.Subject)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("warnings %q, want %q", got, tt.want)
			}
		})
	}
}

// TestEgressAddressesWithLabelsOfKubeletsAreReported checks selectors by which a stolen node gets the packets of other nodes' pods.
func TestEgressAddressesWithLabelsOfKubeletsAreReported(t *testing.T) {
	exists := func(key, operator string) map[string]any {
		return map[string]any{"matchExpressions": []any{map[string]any{"key": key, "operator": operator}}}
	}
	const restricted = "node-restriction.kubernetes.io/gateway"
	for name, c := range map[string]struct {
		selector map[string]any
		warned   bool
	}{
		"a label of kubelets":              {map[string]any{"matchLabels": map[string]any{"example.com/gateway": "yes"}}, true},
		"a restricted label":               {map[string]any{"matchLabels": map[string]any{restricted: "yes"}}, false},
		"one of two":                       {map[string]any{"matchLabels": map[string]any{restricted: "yes", "example.com/gateway": "yes"}}, false},
		"an expression":                    {exists("example.com/gateway", "Exists"), true},
		"a restricted expression":          {exists(restricted, "Exists"), false},
		"all nodes":                        {map[string]any{}, false},
		"nodes without a restricted label": {exists(restricted, "DoesNotExist"), false},
	} {
		e := unstructuredOf("EgressAddress", "out", map[string]any{"addresses": []any{"192.0.2.9"}, "nodeSelector": c.selector})
		found := egressNodes(&Cluster{Objects: map[string][]unstructured.Unstructured{"EgressAddress": {e}}}, nil)
		if warned := len(found) == 1 && found[0].Level == Warning && found[0].Subject == "EgressAddress out"; warned != c.warned || len(found) > 1 {
			t.Errorf("%s: %v", name, found)
		}
	}
	byEip := unstructuredOf("EgressAddress", "eip", map[string]any{"ovnEip": "shop"})
	if found := egressNodes(&Cluster{Objects: map[string][]unstructured.Unstructured{"EgressAddress": {byEip}}}, nil); len(found) > 0 {
		t.Errorf("with an OvnEip: %v", found)
	}
}

// TestChecks judges clusters with one fault each.
func TestChecks(t *testing.T) {
	node := func(name, address string, labels map[string]string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		for k, v := range labels {
			n.Labels[k] = v
		}
		if address != "" {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		}
		return n
	}
	cp := map[string]string{"node-role.kubernetes.io/control-plane": ""}
	daemon := func(name string, labels map[string]string) Workload {
		return Workload{Kind: "DaemonSet", ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: labels}}
	}
	hostPort := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "exporter"}, Spec: corev1.PodSpec{
		NodeName: "a", HostNetwork: true, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 10665}}}},
	}}
	ofKiln := *hostPort.DeepCopy()
	ofKiln.Labels = map[string]string{"app.kubernetes.io/part-of": "kiln"}
	fine := func() *Cluster {
		return &Cluster{Version: "v1.33.2+k3s1", Nodes: []corev1.Node{node("a", "192.0.2.1", cp)}, Workloads: []Workload{daemon("kube-proxy", nil)}, Pods: []corev1.Pod{ofKiln}}
	}
	for _, tt := range []struct {
		name   string
		change func(*Cluster, *v1alpha1.OVNClusterSpec)
		want   string // of a failed finding; empty if there is none
	}{
		{"nothing", func(*Cluster, *v1alpha1.OVNClusterSpec) {}, ""},
		{"old Kubernetes", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) { c.Version = "v1.29.9" }, "Kiln needs 1.31 or newer"},
		{"no InternalIP", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) { c.Nodes = append(c.Nodes, node("b", "", nil)) }, "no InternalIP on nodes b"},
		{"one address of two nodes", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) { c.Nodes = append(c.Nodes, node("b", "192.0.2.1", nil)) }, "nodes a, b have one InternalIP"},
		{"no control plane", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) {
			c.Nodes[0].Labels = map[string]string{corev1.LabelOSStable: "linux"}
		}, "0 nodes match"},
		{"kube-proxy in addition", func(_ *Cluster, s *v1alpha1.OVNClusterSpec) { s.Services.NodeAccess = v1alpha1.NodeAccessKiln }, "both would translate the same packets"},
		{"another plugin", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) {
			c.Workloads = append(c.Workloads, daemon("calico-node", nil))
		}, "Calico is installed"},
		{"Kube-OVN", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) {
			c.Workloads = append(c.Workloads, daemon("kube-ovn-cni", nil))
		}, "Kube-OVN is installed (DaemonSet kube-system/kube-ovn-cni)"},
		{"Kiln", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) {
			c.Workloads = append(c.Workloads, daemon("kube-ovn-cni", map[string]string{"app.kubernetes.io/part-of": "kiln"}))
		}, ""},
		{"a port of a node", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) { c.Pods = append(c.Pods, hostPort) }, "pod a/exporter has port 10665 of node a"},
		{"overlapping networks", func(_ *Cluster, s *v1alpha1.OVNClusterSpec) { s.Network.JoinCIDRs = []string{"10.16.0.0/24"} }, "network.joinCIDRs 10.16.0.0/24 overlaps network.podCIDRs 10.16.0.0/16"},
		{"definitions of others", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) { c.Resources = []metav1.APIResource{{Kind: "Subnet"}} }, "Subnet are not Kiln's"},
		{"missing definitions", func(c *Cluster, _ *v1alpha1.OVNClusterSpec) {
			c.Resources = []metav1.APIResource{{Kind: "Subnet", Categories: []string{"kiln"}}}
		}, "missing: BgpConf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, spec := fine(), &v1alpha1.OVNClusterSpec{}
			tt.change(c, spec)
			report := Environment(c, spec)
			var failed []string
			for _, f := range report.Findings {
				if f.Level == Failed {
					failed = append(failed, f.Message)
				}
			}
			if report.Failed() != (tt.want != "") || !strings.Contains(strings.Join(failed, "\n"), tt.want) {
				t.Errorf("failed %q, want %q", failed, tt.want)
			}
		})
	}
}
