// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config renders the configuration of the programs of a node. It is pure: it computes files and command lines from the
// plan.
package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/hack/lab/pki"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// Paths on a node.
const (
	ContainerdFile    = "/etc/containerd/config.toml"
	KubeletFile       = "/etc/kubernetes/kubelet.yaml"
	KubeProxyFile     = "/etc/kubernetes/kube-proxy.yaml"
	PKIDir            = "/etc/kubernetes/pki"
	RegistriesDir     = "/etc/containerd/certs.d"
	ContainerdSocket  = "/run/containerd/containerd.sock"
	CNIConfDir        = "/etc/cni/net.d"
	CNIBinDir         = "/opt/cni/bin"
	ControlPlaneLabel = "node-role.kubernetes.io/control-plane"
	clusterDomain     = "cluster.local"
	serviceIssuer     = "https://kubernetes.default.svc." + clusterDomain
)

// Images that the nodes have from the start.
const (
	PauseImage   = "registry.k8s.io/pause:3.10"
	AgnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
	CoreDNSImage = "registry.k8s.io/coredns/coredns:v1.13.1"
	// BaseImage is layer 1 of Kiln's image. Nodes have it so that loading Kiln's image moves only the other layers.
	BaseImage = "kiln.local/base:" + "trixie"
)

// Client is a user of the API with credentials: it has its own kubeconfig at ConfigFile.
type Client string

// The clients on nodes.
const (
	Admin             Client = "admin"
	Kubelet           Client = "kubelet"
	KubeProxy         Client = "kube-proxy"
	ControllerManager Client = "controller-manager"
	Scheduler         Client = "scheduler"
)

// ConfigFile is the path of the client's kubeconfig on a node.
func (c Client) ConfigFile() string { return "/etc/kubernetes/" + string(c) + ".conf" }

// Subject is the identity that the API server sees: the user and the groups in the client's certificate.
func (c Client) Subject(node string) pki.Subject {
	switch c {
	case Admin:
		return pki.Subject{Name: "kubernetes-admin", Groups: []string{"system:masters"}, Client: true}
	case Kubelet:
		return pki.Subject{Name: "system:node:" + node, Groups: []string{"system:nodes"}, Client: true}
	default:
		return pki.Subject{Name: "system:kube-" + strings.TrimPrefix(string(c), "kube-"), Client: true}
	}
}

// Kubeconfig renders the credentials of a client, without client-go's clientcmd, which takes a minute to compile: `make demo` compiles this package before
// its first step.
func Kubeconfig(server netip.Addr, authority []byte, credentials pki.Pair) ([]byte, error) {
	const name = "kiln-lab"
	named := func(kind string, value any) []any { return []any{map[string]any{"name": name, kind: value}} }
	return render(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": name,
		"clusters":        named("cluster", map[string]any{"server": "https://" + Endpoint(server), "certificate-authority-data": authority}),
		"users":           named("user", map[string]any{"client-certificate-data": credentials.Certificate, "client-key-data": credentials.Key}),
		"contexts":        named("context", map[string]any{"cluster": name, "user": name}),
	})
}

// Endpoint is host and port of the API server.
func Endpoint(server netip.Addr) string {
	return net.JoinHostPort(server.String(), strconv.Itoa(topology.APIServerPort))
}

// APIServerSubject is the subject of the API server's certificate, with all its DNS names and addresses.
func APIServerSubject(top topology.Topology) pki.Subject {
	addresses := append(append([]netip.Addr{}, top.APIServer()...), top.APIServiceIP()...)
	return pki.Subject{
		Name: "kube-apiserver",
		DNSNames: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain,
			"localhost", top.Nodes()[0].Name,
		},
		Addresses: append(addresses, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()),
		Server:    true,
	}
}

// KubeletConfiguration renders a node's KubeletConfiguration (kubelet.config.k8s.io/v1beta1). The nodes share the resources of one
// machine. Therefore node allocatable is not enforced, and pods are not evicted when the disk is full.
func KubeletConfiguration(top topology.Topology, n topology.Node) ([]byte, error) {
	c := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"address":    "::",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": PKIDir + "/ca.crt"},
		},
		"authorization":               map[string]any{"mode": "Webhook"},
		"tlsCertFile":                 PKIDir + "/kubelet.crt",
		"tlsPrivateKeyFile":           PKIDir + "/kubelet.key",
		"clusterDNS":                  texts(top.DNSServiceIP()),
		"clusterDomain":               clusterDomain,
		"resolvConf":                  "",
		"containerRuntimeEndpoint":    "unix://" + ContainerdSocket,
		"cgroupDriver":                "cgroupfs",
		"cgroupRoot":                  Cgroup(n),
		"enforceNodeAllocatable":      []string{},
		"failCgroupV1":                false,
		"failSwapOn":                  false,
		"imageGCHighThresholdPercent": 100,
		"evictionHard": map[string]any{
			"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
		},
		"maxPods":        250,
		"eventRecordQPS": 0,
		// Tests kill processes repeatedly. A short back-off keeps the kubelet's restart delay out of their waits.
		"crashLoopBackOff": map[string]any{"maxContainerRestartPeriod": "2s"},
	}
	if n.ControlPlane {
		c["registerWithTaints"] = []any{map[string]any{"key": ControlPlaneLabel, "effect": "NoSchedule"}}
	}
	return render(c)
}

// Cgroup is the parent control group, in each hierarchy, of a node's containers.
func Cgroup(n topology.Node) string { return "/" + CgroupPrefix + n.Name }

// CgroupPrefix is the prefix of the names of the nodes' control groups.
const CgroupPrefix = "kiln-lab-"

// KubeProxyConfiguration renders a node's KubeProxyConfiguration. It leaves the connection tracking settings unchanged, because the
// table's size is the host's.
func KubeProxyConfiguration(n topology.Node) ([]byte, error) {
	return render(map[string]any{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"mode":             "nftables",
		"hostnameOverride": n.Name,
		"clientConnection": map[string]any{"kubeconfig": KubeProxy.ConfigFile()},
		"conntrack": map[string]any{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
		},
	})
}

// Containerd renders containerd's configuration in version 2, which containerd 1.x reads.
func Containerd() []byte {
	return []byte(`version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  # Lowering oom_score_adj takes CAP_SYS_RESOURCE, which the lab may not have.
  restrict_oom_score_adj = true
  disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "` + CNIBinDir + `"
  conf_dir = "` + CNIConfDir + `"

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "` + RegistriesDir + `"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
`)
}

// RegistryFile is containerd's file about the lab's registry.
func RegistryFile() string { return RegistriesDir + "/" + topology.Registry().String() + "/hosts.toml" }

// Registry renders RegistryFile: the registry has no TLS. containerd 1.7 does not read a file without a table for a host.
func Registry() []byte {
	return fmt.Appendf(nil, "[host.\"http://%s\"]\n", topology.Registry())
}

func render(c map[string]any) ([]byte, error) {
	raw, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c["kind"], err)
	}
	return raw, nil
}

func texts[T fmt.Stringer](in []T) []string {
	out := make([]string, 0, len(in))
	for _, v := range in {
		out = append(out, v.String())
	}
	return out
}

func join[T fmt.Stringer](in []T) string { return strings.Join(texts(in), ",") }
