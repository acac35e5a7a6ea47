// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Priority classes that every cluster has.
const (
	nodeCritical    = "system-node-critical"
	clusterCritical = "system-cluster-critical"
)

// program describes the pod of one component; template adds the parts that all components share.
type program struct {
	app, component string
	container      string // its name; component when empty
	account        string
	priorityClass  string
	args           []string
	health         int32
	ports          []corev1.ContainerPort
	resources      corev1.ResourceRequirements
	security       *corev1.SecurityContext
	grace          int64
	mounts         []mount
	tolerations    []corev1.Toleration
}

// mount is a volume and its mount point.
type mount struct {
	name        string
	path        string
	source      corev1.VolumeSource
	readOnly    bool
	propagation *corev1.MountPropagationMode
}

// centralContainer is the name of the containers of the databases and of ovn-northd. Like those of the other containers, it is the name that
// Kube-OVN's users know from `kubectl logs -c` and `kubectl exec -c`.
const centralContainer = "ovn-central"

// template returns a pod template on the host network, because these pods run before the pod network exists.
func (c Config) template(p program) corev1.PodTemplateSpec {
	container := corev1.Container{
		Name:            cmp.Or(p.container, p.component),
		Image:           c.Image,
		ImagePullPolicy: cmp.Or(c.Spec.ImagePullPolicy, corev1.PullIfNotPresent),
		Command:         []string{"/usr/bin/kiln"},
		Args:            p.args,
		Env:             c.environment(),
		Ports:           append([]corev1.ContainerPort{port("health", p.health)}, p.ports...),
		Resources:       p.resources,
		SecurityContext: p.security,
		LivenessProbe:   probe("/healthz", p.health, 10, 6),
		ReadinessProbe:  probe("/readyz", p.health, 5, 3),
		// The operator shows the last log lines of a failed container.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	container.LivenessProbe.InitialDelaySeconds = 20
	spec := corev1.PodSpec{
		ServiceAccountName:            p.account,
		HostNetwork:                   true,
		DNSPolicy:                     corev1.DNSDefault,
		ImagePullSecrets:              c.Spec.ImagePullSecrets,
		NodeSelector:                  map[string]string{corev1.LabelOSStable: string(corev1.Linux)},
		PriorityClassName:             p.priorityClass,
		Tolerations:                   p.tolerations,
		TerminationGracePeriodSeconds: new(p.grace),
	}
	for _, m := range p.mounts {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{
			Name: m.name, MountPath: m.path, ReadOnly: m.readOnly, MountPropagation: m.propagation,
		})
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: m.name, VolumeSource: m.source})
	}
	spec.Containers = []corev1.Container{container}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: podLabels(p.app, p.component)}, Spec: spec}
}

// environment returns variables that identify the pod and its node. It adds the address of the API server, if the spec
// sets one, for use before ClusterIPs work.
func (c Config) environment() []corev1.EnvVar {
	env := []corev1.EnvVar{
		fieldEnv("NODE_NAME", "spec.nodeName"),
		fieldEnv("POD_NAME", "metadata.name"),
		fieldEnv("POD_NAMESPACE", "metadata.namespace"),
		fieldEnv("POD_IP", "status.podIP"),
	}
	if s := c.Spec.APIServer; s != nil {
		env = append(env,
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: s.Host},
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: strconv.Itoa(int(s.Port))})
	}
	return env
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
	}}
}

// port declares a host port. The scheduler does not put two pods with the same host port on one node.
func port(name string, number int32) corev1.ContainerPort {
	return corev1.ContainerPort{Name: name, ContainerPort: number, HostPort: number, Protocol: corev1.ProtocolTCP}
}

// probe uses the loopback address: the pods are on the host network, and databases answer probes only there.
func probe(path string, number, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Host: "127.0.0.1", Path: path, Port: intstr.FromInt32(number), Scheme: corev1.URISchemeHTTP,
		}},
		PeriodSeconds:    period,
		TimeoutSeconds:   5,
		FailureThreshold: failures,
	}
}

// requests are the resources of a container for which the user set none.
func requests(cpu, memory string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory),
	}}
}

// firstSet returns the first of these resources that has a value. Resources are not merged: a limit of one component and a request of several
// could contradict each other.
func firstSet(all ...corev1.ResourceRequirements) corev1.ResourceRequirements {
	for _, r := range all {
		if len(r.Requests) > 0 || len(r.Limits) > 0 || len(r.Claims) > 0 {
			return r
		}
	}
	return corev1.ResourceRequirements{}
}

// tolerateAll returns the toleration of all taints, for components that every node needs.
func tolerateAll() []corev1.Toleration {
	return []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// Tolerations returns the tolerations of northd, kube-ovn-controller and the backups: of taints of control-plane nodes and of nodes without a
// network, and those of the placement. Pods are evicted from an unreachable node after 30 seconds, so that another pod takes over. A cordoned
// node gets no new pods, so that a drain completes.
func Tolerations(p v1alpha1.Placement) []corev1.Toleration {
	exists := corev1.TolerationOpExists
	return append([]corev1.Toleration{
		{Key: v1alpha1.ControlPlaneLabel, Operator: exists},
		{Key: "CriticalAddonsOnly", Operator: exists},
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Operator: exists},
		{Key: corev1.TaintNodeNetworkUnavailable, Operator: exists},
		{Key: corev1.TaintNodeNotReady, Operator: exists},
		{Key: corev1.TaintNodeUnreachable, Operator: exists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(30))},
	}, p.Tolerations...)
}

// MemberTolerations is Tolerations for members of databases, whose data is on their node: they are never evicted.
func MemberTolerations(p v1alpha1.Placement) []corev1.Toleration {
	t := Tolerations(v1alpha1.Placement{})
	t[len(t)-1] = corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	return append(t, p.Tolerations...)
}

// onDifferentNodes keeps pods of one component on different nodes.
func onDifferentNodes(app, component string) *corev1.PodAntiAffinity {
	return &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: selector(app, component), TopologyKey: corev1.LabelHostname,
	}}}
}

// confined returns the security context of processes that only use the network and write to their own directories.
func confined() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// onHost is confined for processes that, as root, use directories of the node, which belong to root. They have only these
// capabilities.
func onHost(capabilities ...corev1.Capability) *corev1.SecurityContext {
	s := confined()
	s.Capabilities.Add = capabilities
	// With SELinux enforced, other container types cannot access the node's files. Without SELinux this has no effect.
	s.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"}
	return s
}

// Capabilities (capabilities(7)) of the processes that configure the node's network.
const (
	// netAdmin allows changes of interfaces, routes, nftables and the kernel's datapath.
	netAdmin = corev1.Capability("NET_ADMIN")
	// netBroadcast allows notifications of interfaces that move to other namespaces.
	netBroadcast = corev1.Capability("NET_BROADCAST")
	// netRaw allows packet sockets, with which the userspace datapath reads and writes interfaces.
	netRaw = corev1.Capability("NET_RAW")
	// sysAdmin allows entering the namespaces of pods (setns(2)).
	sysAdmin = corev1.Capability("SYS_ADMIN")
	// sysNice allows datapath threads to set their priority.
	sysNice = corev1.Capability("SYS_NICE")
)

// temporary mounts /tmp for ovsdb-server, which stores its remotes in a temporary file if it has no configuration file
// (ovsdb-server(8)).
func temporary() mount {
	return mount{name: "tmp", path: "/tmp", source: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// datapath returns the security context of a container with ovs-vswitchd. The userspace datapath creates interfaces with
// /dev/net/tun, which some runtimes allow only in privileged containers.
func (c Config) datapath() *corev1.SecurityContext {
	if c.Spec.Nodes.Datapath == v1alpha1.DatapathUserspace {
		return &corev1.SecurityContext{Privileged: new(true), ReadOnlyRootFilesystem: new(true)}
	}
	return onHost(netAdmin, netBroadcast, netRaw, sysNice)
}

func hostDirectory(name, path string) mount {
	return mount{name: name, path: path, source: hostPath(path, corev1.HostPathDirectoryOrCreate)}
}

func hostPath(path string, kind corev1.HostPathType) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: new(kind)}}
}

// tlsMount mounts a process's certificate: tls.crt, tls.key and ca.crt.
func tlsMount(secret string) mount {
	return mount{name: "tls", path: tlsDirectory, readOnly: true, source: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: new(int32(0o440))},
	}}
}

const tlsDirectory = "/etc/kiln/tls"

// placed restricts a pod to the nodes that NodeSelector selects for a placement, in addition to its node affinity.
func placed(t *corev1.PodTemplateSpec, p v1alpha1.Placement) {
	if len(p.NodeSelector) > 0 {
		maps.Copy(t.Spec.NodeSelector, p.NodeSelector)
		return
	}
	if t.Spec.Affinity == nil {
		t.Spec.Affinity = &corev1.Affinity{}
	}
	if t.Spec.Affinity.NodeAffinity == nil {
		t.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{}},
		}}
	}
	terms := t.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		terms[i].MatchExpressions = append(terms[i].MatchExpressions, corev1.NodeSelectorRequirement{
			Key: v1alpha1.ControlPlaneLabel, Operator: corev1.NodeSelectorOpExists,
		})
	}
}

// daemonSet returns the DaemonSet of a component.
func (c Config) daemonSet(app, component string, strategy appsv1.DaemonSetUpdateStrategy, template corev1.PodTemplateSpec) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: c.meta(component, app, component),
		Spec:       appsv1.DaemonSetSpec{Selector: selector(app, component), UpdateStrategy: strategy, Template: template},
	}
}

// onDelete leaves the order and the time of pod replacements to the operator.
func onDelete() appsv1.DaemonSetUpdateStrategy {
	return appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
}

// rolling replaces pods while at most this number of them, or this share with a percent sign, is missing.
func rolling(maxUnavailable string) appsv1.DaemonSetUpdateStrategy {
	return appsv1.DaemonSetUpdateStrategy{
		Type:          appsv1.RollingUpdateDaemonSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.Parse(maxUnavailable))},
	}
}

// deployment returns the Deployment of a component.
func (c Config) deployment(
	app, component string, replicas int32, strategy appsv1.DeploymentStrategy, template corev1.PodTemplateSpec,
) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: c.meta(component, app, component),
		Spec:       appsv1.DeploymentSpec{Replicas: new(replicas), Selector: selector(app, component), Strategy: strategy, Template: template},
	}
}

// replaceInPlace stops a pod before its replacement starts, because both use the same ports of the node.
func replaceInPlace() appsv1.DeploymentStrategy {
	return appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxUnavailable: new(intstr.FromInt32(1)), MaxSurge: new(intstr.FromInt32(0)),
		},
	}
}
