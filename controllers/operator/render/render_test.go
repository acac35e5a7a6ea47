// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/golden"
)

// defaults is `spec: {}` with the defaults that the API server fills in.
func defaults() Config {
	return Config{
		Namespace: "kube-system",
		Image:     "kiln.local/kiln:dev",
		Members:   map[string][]string{Northbound.Flag: {"control-plane-1"}, Southbound.Flag: {"control-plane-1"}},
		Spec: v1alpha1.OVNClusterSpec{
			Network: v1alpha1.Network{
				PodCIDRs:     []string{"10.16.0.0/16"},
				JoinCIDRs:    []string{"100.64.0.0/16"},
				ServiceCIDRs: []string{"10.96.0.0/12"},
				TunnelType:   v1alpha1.TunnelGeneve,
			},
			Nodes:      v1alpha1.Nodes{Datapath: v1alpha1.DatapathKernel, OpenVSwitchDirectory: "/etc/openvswitch"},
			Services:   v1alpha1.Services{NodeAccess: v1alpha1.NodeAccessKubeProxy, PodAccess: v1alpha1.PodAccessOVN},
			Policies:   v1alpha1.Policies{NetworkPolicies: v1alpha1.NetworkPoliciesEnforced},
			Central:    v1alpha1.Central{Replicas: 1, NorthdReplicas: 1, DataDirectory: "/etc/origin/ovn"},
			Controller: v1alpha1.Controller{Replicas: 1},
			Agent:      v1alpha1.Agent{CNIBinDirectory: "/opt/cni/bin", CNIConfDirectory: "/etc/cni/net.d", CNIConfPriority: "01"},
		},
	}
}

// everything sets each field that has no default.
func everything() Config {
	c := defaults()
	c.Namespace = "kiln-system"
	c.Members[Northbound.Flag] = []string{"db-1", "db-2", "db-3"}
	c.HeldNodes = []string{"held-1", "held-2"}
	c.PreviousDataDirectory = "/etc/origin/ovn"
	c.TunnelTypes = []v1alpha1.TunnelType{v1alpha1.TunnelGeneve, v1alpha1.TunnelVXLAN}
	c.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	c.Spec.APIServer = &v1alpha1.APIServer{Host: "192.0.2.1", Port: 6443}
	c.Spec.Network = v1alpha1.Network{
		PodCIDRs:     []string{"10.16.0.0/16", "fd00:10:16::/112"},
		JoinCIDRs:    []string{"100.64.0.0/16", "fd00:100:64::/112"},
		ServiceCIDRs: []string{"10.96.0.0/12", "fd00:10:96::/112"},
		PodGateways:  []string{"10.16.0.254", "fd00:10:16::fe"},
		PodVlan:      "office",
		ExcludeIPs:   []string{"10.16.0.10..10.16.0.20", "fd00:10:16::9"},
		TunnelType:   v1alpha1.TunnelVXLAN,
		MTU:          1400,
		ControlPlaneProtection: v1alpha1.ControlPlaneProtection{
			Mode: v1alpha1.ProtectionLimited, PacketsPerSecond: v1alpha1.ControlPacketRates{Rejects: 300},
		},
	}
	c.Spec.Nodes = v1alpha1.Nodes{Datapath: v1alpha1.DatapathUserspace, TunnelInterface: "eth1", OpenVSwitchDirectory: "/var/lib/openvswitch"}
	c.Spec.Services = v1alpha1.Services{NodeAccess: v1alpha1.NodeAccessKiln, PodAccess: v1alpha1.PodAccessNode}
	c.Spec.Policies.NetworkPolicies = v1alpha1.NetworkPoliciesIgnored
	c.Spec.Tenancy = v1alpha1.Tenancy{
		Membership: v1alpha1.MembershipOpen, ClusterAccess: kubeovnv1.ClusterAccessServices, PortSecurity: kubeovnv1.PortSecurityRequested,
	}
	c.Spec.ImagePullPolicy = corev1.PullAlways
	c.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}, {Name: "mirror"}}
	c.Spec.Central.Placement = v1alpha1.Placement{
		NodeSelector: map[string]string{"kube-ovn/role": "master"},
		Tolerations:  []corev1.Toleration{{Key: "dedicated", Value: "network", Effect: corev1.TaintEffectNoSchedule}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")},
		},
	}
	c.Spec.Central.Southbound.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")}
	c.Spec.Central.NorthdReplicas = 3
	c.Spec.Central.DataDirectory = "/var/lib/ovn"
	c.Spec.Controller = v1alpha1.Controller{
		Placement: v1alpha1.Placement{NodeSelector: map[string]string{"infra": "true"}, Tolerations: []corev1.Toleration{
			{Key: "infra", Operator: corev1.TolerationOpExists},
		}}, Replicas: 2, LogLevel: 3,
	}
	c.Spec.Monitoring = v1alpha1.Monitoring{
		Access: v1alpha1.MetricsAuthorized, Labels: map[string]v1alpha1.LabelValue{"release": "prometheus", "app": "not-this"},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}},
	}
	c.Spec.Agent = v1alpha1.Agent{CNIBinDirectory: "/usr/libexec/cni", CNIConfDirectory: "/etc/cni/conf.d", CNIConfPriority: "10", ToolingDirectory: "/usr/bin", LogLevel: 4}
	c.Spec.Pinger = v1alpha1.Pinger{Mode: v1alpha1.PingerEnabled, Workload: v1alpha1.Workload{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	}}, LogLevel: 5, Peers: new(int32(3))}
	c.Spec.Speaker = &v1alpha1.Speaker{
		ASN: 64512, NodeSelector: map[string]string{"edge": "true"},
		Peers: []v1alpha1.SpeakerPeer{
			{Address: "192.0.2.1", ASN: 64513, Connection: v1alpha1.ConnectionPassive, Password: &v1alpha1.SecretKey{Name: "routers", Key: "first"}},
			{Address: "192.0.2.2", ASN: 64513, Password: &v1alpha1.SecretKey{Name: "routers", Key: "second"}},
			{Address: "2001:db8::1", ASN: 64514, Password: &v1alpha1.SecretKey{Name: "other"}},
		},
		Workload: v1alpha1.Workload{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}}},
		LogLevel: 3,
	}
	return c
}

var operands = map[string]func(Config) []Object{
	"access":      AccessObjects,
	"policies":    Policies,
	"northbound":  func(c Config) []Object { return DatabaseObjects(c, Northbound) },
	"southbound":  func(c Config) []Object { return DatabaseObjects(c, Southbound) },
	"northd":      NorthdObjects,
	"openvswitch": OpenVSwitchObjects,
	"controller":  ControllerObjects,
	"agent":       AgentObjects,
	"pinger": func(c Config) []Object {
		c.Spec.Pinger.Mode = v1alpha1.PingerEnabled
		return PingerObjects(c)
	},
	"speaker": func(c Config) []Object {
		if c.Spec.Speaker == nil {
			c.Spec.Speaker = &v1alpha1.Speaker{ASN: 64512}
		}
		return SpeakerObjects(c)
	},
	"disruption": DisruptionBudgets,
	"image":      ImageObjects,
	"cleanup":    func(c Config) []Object { return []Object{CleanUp(c)} },
	"monitor":    MonitorObjects,
	"prometheus": func(c Config) []Object {
		return slices.Concat(MetricsServices(c), ServiceMonitors(c), PrometheusRules(c))
	},
	"backups": func(c Config) []Object {
		c.Spec.Central.Backup.PersistentVolumeClaim = &v1alpha1.BackupClaim{ClaimName: "ovn-backups"}
		return BackupsObjects(c)
	},
}

func TestOperandsAreAsInTheGoldenFiles(t *testing.T) {
	for name, build := range operands {
		for variant, config := range map[string]Config{"defaults": defaults(), "everything": everything()} {
			t.Run(name+"/"+variant, func(t *testing.T) {
				golden.Compare(t, filepath.Join("testdata", name+"."+variant+".golden.yaml"), encode(t, build(config)))
			})
		}
	}
}

// TestLogsAndProfilesChangeNoObject: processes follow these fields by themselves, so a change replaces no pod.
func TestLogsAndProfilesChangeNoObject(t *testing.T) {
	for name, build := range operands {
		if name == "cleanup" { // it exists only after the OVNCluster was deleted
			continue
		}
		quiet, loud := defaults(), defaults()
		loud.Spec.Central.LogLevel, loud.Spec.Controller.LogLevel, loud.Spec.Agent.LogLevel = 1, 2, 3
		loud.Spec.Pinger.LogLevel = 4
		quiet.Spec.Speaker, loud.Spec.Speaker = &v1alpha1.Speaker{ASN: 64512}, &v1alpha1.Speaker{ASN: 64512, LogLevel: 6}
		loud.Spec.Logging = v1alpha1.Logging{
			Format: v1alpha1.LogText, OperatorLevel: 4, Databases: "dbg", Northd: "dbg", OpenVSwitch: "off", OVNController: "err",
		}
		loud.Spec.Debug.Profiling = v1alpha1.ProfilingEnabled
		if !bytes.Equal(encode(t, build(quiet)), encode(t, build(loud))) {
			t.Errorf("objects of %s depend on levels of logs or on profiling", name)
		}
	}
}

func encode(t *testing.T, objects []Object) []byte {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, admissionv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	for i, o := range objects {
		var kinds []schema.GroupVersionKind
		var err error
		if u, untyped := o.(*unstructured.Unstructured); untyped {
			kinds = append(kinds, u.GroupVersionKind())
		} else if kinds, _, err = scheme.ObjectKinds(o); err != nil {
			t.Fatal(err)
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		delete(content, "status")
		content["apiVersion"], content["kind"] = kinds[0].GroupVersion().String(), kinds[0].Kind
		encoded, err := yaml.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		b.Write(encoded)
	}
	return b.Bytes()
}
