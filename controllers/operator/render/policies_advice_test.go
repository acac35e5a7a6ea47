// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1/requesttest"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

// warnings collects the warnings of an API server.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

// take returns the warnings since the last call.
func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.text, "\n")
	w.text = nil
	return all
}

// adviser is a client of an API server with the policies that inform users.
type adviser struct {
	client.Client
	config *rest.Config
	said   *warnings
}

func newAdviser(t *testing.T) adviser {
	t.Helper()
	said := &warnings{}
	config := rest.CopyConfig(apiserver.StartFor(t, "subnets", "vpcs", "vips", "ips", "provider-networks", "vpc-dnses", "egress-addresses", "ovn-eips").Config)
	config.WarningHandler = said
	scheme := clientgoscheme.Scheme
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	a := adviser{c, config, said}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	err = errors.Join(client.IgnoreAlreadyExists(c.Create(t.Context(), account)))
	components := Config{Namespace: "kube-system"}
	for _, p := range []policy{podRequests(), components.adviceOnFields(), components.advice()} {
		for _, o := range p.objects(components) {
			err = errors.Join(err, c.Create(t.Context(), o.(client.Object)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		denied := a.Create(t.Context(), pod(map[string]string{"ovn.kubernetes.io/ip_address": "a"}), client.DryRunAll) != nil
		if denied && a.about(t, pod(map[string]string{"ovn.kubernetes.io/nonsense": "a"})) != "" {
			return a
		}
		if time.Now().After(deadline) {
			t.Fatal("the API server does not load the policies")
		}
	}
}

// about returns the warnings about an object.
func (a adviser) about(t *testing.T, o client.Object) string {
	t.Helper()
	a.said.take()
	if err := a.Create(t.Context(), o, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	return a.said.take()
}

func pod(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Annotations: annotations}, Spec: podSpec()}
}

func hostPod(annotations map[string]string) *corev1.Pod {
	p := pod(annotations)
	p.Spec.HostNetwork = true
	return p
}

func one(key, value string) map[string]string { return map[string]string{key: value} }

func template(annotations map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: one("app", "a"), Annotations: annotations}, Spec: podSpec()}
}

// deployment returns a Deployment with annotations of its own and of its pods.
func deployment(own, pods map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d", Annotations: own},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: one("app", "a")}, Template: template(pods)},
	}
}

func subnetOf(cidrs string, excluded ...string) *kubeovnv1.Subnet {
	return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidrs, ExcludeIPs: excluded}}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "c"}}}
}

func TestAdvice(t *testing.T) {
	a := newAdviser(t)
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}
	cron.Spec.Schedule = "@hourly"
	cron.Spec.JobTemplate.Spec.Template = template(map[string]string{"ovn.kubernetes.io/ip_addr": "10.16.0.9"})
	cron.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	hostDeployment := deployment(nil, one("ovn.kubernetes.io/loss", "1"))
	hostDeployment.Spec.Template.Spec.HostNetwork = true
	tests := []struct {
		name   string
		object client.Object
		want   string // part of the only warning; empty if there is none
	}{
		{"nothing of ours", pod(one("example.com/a", "b")), ""},
		{"a request", pod(map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.9, fd00::9", "ovn.kubernetes.io/security_groups": ""}), ""},
		{"an exported manifest", pod(map[string]string{"ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/vlan_id": "0", "ovn.kubernetes.io/pod_nic_type": "veth-pair"}), ""},
		{"a typing error", pod(one("ovn.kubernetes.io/ip_addr", "10.16.0.9")), "ovn.kubernetes.io/ip_addr (did you mean ip_address?): Kiln knows no such annotation"},
		{"a short name", pod(one("ovn.kubernetes.io/vi", "a")), "ovn.kubernetes.io/vi (did you mean vip or virtualmachine?): Kiln knows"},
		{"a name like no other", pod(one("ovn.kubernetes.io/address", "a")), "ovn.kubernetes.io/address: Kiln knows no such annotation: look for a typing error in docs"},
		{"a feature that is missing", pod(one("ovn.kubernetes.io/activation_strategy", "parallel")), "ovn.kubernetes.io/activation_strategy: without effect in this version"},
		{"another network", pod(one("net1.default.ovn.kubernetes.io/ip_address", "10.16.0.9")), "net1.default.ovn.kubernetes.io/ip_address: without effect"},
		{"another network of another plugin", pod(one("net1.default.kubernetes.io/ip_address.net1", "10.16.0.9")), "without effect in this version"},
		{"the API group as the domain", pod(one("kubeovn.io/ip_address", "10.16.0.9")), "kubeovn.io/ip_address: without effect: write ovn.kubernetes.io/ip_address"},
		{"another annotation with the API group", pod(one("kubeovn.io/team", "a")), ""},
		{"further interfaces", deployment(nil, one("k8s.v1.cni.cncf.io/networks", "net1")), "k8s.v1.cni.cncf.io/networks: Kiln makes one interface; only Multus"},
		{"an annotation of Kubernetes", pod(one("a.alpha.kubernetes.io/name", "b")), ""},
		{"a value that is ignored", pod(one("ovn.kubernetes.io/port_security", "yes")), `ovn.kubernetes.io/port_security: "yes" cannot be read, and is ignored: write true or false`},
		{"a bandwidth that is no quantity", pod(one(kubeovnv1.KeyIngressBandwidth, "10Mbit")), `kubernetes.io/ingress-bandwidth: "10Mbit" cannot be read, and is ignored: write a number of bit/s, such as 10M`},
		{"a bandwidth of 0", pod(one(kubeovnv1.KeyEgressBandwidth, "0")), `kubernetes.io/egress-bandwidth: "0" cannot be read`},
		{"too high a bandwidth", pod(one(kubeovnv1.KeyEgressBandwidth, "2T")), `kubernetes.io/egress-bandwidth: "2T" cannot be read`},
		{"a limit of a pod with hostNetwork", hostPod(map[string]string{"ovn.kubernetes.io/ingress_rate": "1"}), "ovn.kubernetes.io/ingress_rate: without effect with hostNetwork"},
		{"copies of a pod with hostNetwork", hostPod(map[string]string{"ovn.kubernetes.io/mirror": "true"}), "ovn.kubernetes.io/mirror: without effect with hostNetwork"},
		{"a bandwidth of a pod with hostNetwork", hostPod(one(kubeovnv1.KeyEgressBandwidth, "1M")), "kubernetes.io/egress-bandwidth: without effect with hostNetwork"},
		{"a Deployment of pods with hostNetwork", hostDeployment, "ovn.kubernetes.io/loss: without effect with hostNetwork"},
		{"a pod with hostNetwork", hostPod(one("ovn.kubernetes.io/port_security", "true")), ""},
		{"delays of another network", pod(one("net1.default.ovn.kubernetes.io/latency", "10")), "net1.default.ovn.kubernetes.io/latency: without effect in this version"},
		{"a bandwidth", pod(one(kubeovnv1.KeyEgressBandwidth, "1.5Gi")), ""},
		{"a pod template", deployment(nil, one("ovn.kubernetes.io/aaps", "A")), `ovn.kubernetes.io/aaps: "A" cannot be read, and is ignored: write names of Vips`},
		{"a value of several lines", pod(one("ovn.kubernetes.io/security_groups", "a\nb")), `ovn.kubernetes.io/security_groups: "a\nb" cannot be read`},
		{"a Deployment instead of its pods", deployment(one("ovn.kubernetes.io/ip_pool", "a"), nil), "ovn.kubernetes.io/ip_pool: without effect here: annotations of pods belong"},
		{"a CronJob", cron, "Kiln knows no such annotation"},
		{"a subnet", &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: one("ovn.kubernetes.io/bgp", "cluster")}}, ""},
		{"an EgressAddress", &kubeovnv1.EgressAddress{
			ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: one("ovn.kubernetes.io/bgp", "true")}, Spec: kubeovnv1.EgressAddressSpec{OvnEip: "a"},
		}, ""},
		{"an EgressAddress with a value that is ignored", &kubeovnv1.EgressAddress{
			ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: one("ovn.kubernetes.io/bgp", "yes")}, Spec: kubeovnv1.EgressAddressSpec{OvnEip: "a"},
		},
			`ovn.kubernetes.io/bgp: "yes" cannot be read, and is ignored: write true, cluster, local or false`},
		{"an OvnEip of Kube-OVN", &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: one("ovn.kubernetes.io/vpc_nat", "a")}}, ""},
		{"an OvnEip", &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: one("ovn.kubernetes.io/bgp", "true")}}, ""},
		{"an OvnEip with a value that is ignored", &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: one("ovn.kubernetes.io/bgp", "yes")}},
			`ovn.kubernetes.io/bgp: "yes" cannot be read, and is ignored: write true, cluster, local or false`},
		{"a subnet with a value that is ignored", &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: one("ovn.kubernetes.io/bgp", "yes")}},
			`ovn.kubernetes.io/bgp: "yes" cannot be read, and is ignored: write true, cluster, local or false`},
		{"a node", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: one("ovn.kubernetes.io/tunnel_interface", "eth1")}}, "tunnel_interface: without effect"},
		{"a Service", &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", Annotations: one("ovn.kubernetes.io/attachmentprovider", "a.b")},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, "ovn.kubernetes.io/attachmentprovider: without effect"},
		{"a VPC that no object can be", &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", Annotations: one("ovn.kubernetes.io/logical_router", "Blue")},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, `ovn.kubernetes.io/logical_router: "Blue" cannot be read, and is ignored: write the name of a Vpc`},
		{"a subnet with a VLAN", &kubeovnv1.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{Vlan: "v", EnableExternalLBAddress: true},
		}, "without effect in this version: spec.enableExternalLBAddress"},
		{"a subnet outside of an interconnection", &kubeovnv1.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", DisableInterConnection: true},
		}, "without effect in this version: spec.disableInterConnection"},
		{"the join subnet as Kube-OVN writes it", &kubeovnv1.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.JoinSubnet}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "100.64.0.0/16", DisableInterConnection: true},
		}, ""},
		{"an overlay subnet", &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24"}}, ""},
		{"a subnet of both families", subnetOf("10.0.0.0/24,fd00::/64", "10.0.0.9", "10.0.0.20..10.0.0.30", "fd00::9", "fd00::1..fd00::5", "10.0.0.128/25"), ""},
		{"a network with host bits", subnetOf("10.204.0.5/24, fd00::/64"), "cidrBlock: 10.204.0.5/24 has bits after the prefix length, and means 10.204.0.0/24"},
		{"an IPv6 network with host bits", subnetOf("fd00::5/64"), "cidrBlock: fd00::5/64 has bits after the prefix length, and means fd00::/64"},
		{"an excluded address outside", subnetOf("10.0.0.0/24,fd00::/64", "10.0.0.9", "10.0.1.9", "fd01::1..fd01::5", "10.1.0.0/24"),
			"excludeIps: 10.0.1.9, fd01::1..fd01::5, 10.1.0.0/24 is outside of cidrBlock 10.0.0.0/24,fd00::/64, and has no effect"},
		{"a provider of another plugin", &kubeovnv1.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", Provider: "net1.default.ovn"},
		}, "provider net1.default.ovn: this version makes networks of the provider ovn only"},
		{"the provider of Kiln", &kubeovnv1.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", Provider: "ovn"},
		}, ""},
		{"a type of Vips that does not exist", &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VipSpec{Type: "switch-lb-vip"}},
			"type switch-lb-vip: Kiln knows no such type, and ignores it: leave it out, or write switch_lb_vip, "},
		{"a type of Vips", &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VipSpec{Type: kubeovnv1.VipTypeSwitchLB}}, ""},
		{"a VPC with BFD", &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VpcSpec{EnableBfd: true}}, ""},
		{"a ProviderNetwork with exchanged names", &kubeovnv1.ProviderNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1", ExchangeLinkName: true},
		}, "without effect in this version: spec.exchangeLinkName"},
		{"a Vip of attachments", &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VipSpec{AttachSubnets: []string{"a"}}}, "spec.attachSubnets"},
		{"an IP as Kube-OVN writes it", &kubeovnv1.IP{
			ObjectMeta: metav1.ObjectMeta{Name: "i"}, Spec: kubeovnv1.IPSpec{AttachIPs: []string{}, AttachMACs: []string{}, AttachSubnets: []string{}},
		}, ""},
		{"an IP of attachments", &kubeovnv1.IP{
			ObjectMeta: metav1.ObjectMeta{Name: "i"}, Spec: kubeovnv1.IPSpec{AttachIPs: []string{"10.0.0.1"}, AttachMACs: []string{"02:00:00:00:00:01"}, ContainerID: "c"},
		}, "without effect in this version: spec.attachIps, spec.attachMacs, spec.containerID"},
		{"a kind without a controller", &kubeovnv1.VpcDns{
			ObjectMeta: metav1.ObjectMeta{Name: "v"},
		}, "this version of Kiln does not implement the kind VpcDns: the object has no effect"},
		{"a namespace", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: one("ovn.kubernetes.io/logical_swich", "s")}}, "logical_swich (did you mean logical_router or logical_switch?): Kiln knows no such annotation"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := a.about(t, tt.object)
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) || strings.Contains(got, "\n") {
				t.Errorf("warned %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("an annotation that an existing Deployment gets", func(t *testing.T) {
		d := deployment(nil, nil)
		if err := a.Create(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		base := d.DeepCopy()
		d.Annotations = one("ovn.kubernetes.io/ip_pool", "a")
		a.said.take()
		if err := a.Patch(t.Context(), d, client.MergeFrom(base), client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		if got := a.said.take(); !strings.Contains(got, "ovn.kubernetes.io/ip_pool: without effect here") {
			t.Errorf("warned %q", got)
		}
	})
	t.Run("a pod that a controller creates", func(t *testing.T) {
		config := rest.CopyConfig(a.config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "system:kube-controller-manager", Groups: []string{"system:masters"}}
		c, err := client.New(config, client.Options{Scheme: a.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		if got := (adviser{c, a.config, a.said}).about(t, pod(one("ovn.kubernetes.io/ip_addr", "10.16.0.9"))); got != "" {
			t.Errorf("warned %q, which no user sees", got)
		}
	})
	t.Run("values", func(t *testing.T) { a.agreesWithTheParsers(t) })
}

// agreesWithTheParsers compares the warnings about values that Kiln ignores with its parsers.
func (a adviser) agreesWithTheParsers(t *testing.T) {
	t.Helper()
	for name, values := range requesttest.OfPods() {
		for _, value := range append(values.Valid, values.Invalid...) {
			annotations := map[string]string{kubeovnv1.Annotation(name).Key(): value}
			if _, err := kubeovnv1.ParsePodRequest(annotations); err != nil {
				continue // denied instead
			}
			errs := kubeovnv1.CheckRequests(kubeovnv1.OnPod, annotations)
			if got := a.about(t, pod(annotations)); (got == "") != (len(errs) == 0) {
				t.Errorf("%s: %s: the API server warns %q, the parser %v", name, value, got, errs)
			}
		}
	}
}
