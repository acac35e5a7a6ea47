// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

const centralApp = "ovn-central"

// Database describes one of OVN's databases.
type Database struct {
	// Flag is the value of `kiln ovsdb --db`.
	Flag string
	// Title is its name in messages.
	Title string
	// Workload is the name of the StatefulSet. Service is the Service of the leader and the DNS name in the servers'
	// certificates.
	Workload string
	Service  string
	// Secret holds the certificate of the members.
	Secret string
	// LeaderLabel is the label of the Raft leader's pod. The member sets it itself.
	LeaderLabel string
	// Writer is the workload that writes the database. Its pod sets WrittenLabel when it has written everything.
	Writer, WrittenLabel string
	// AdminPort is the port of a member's admin endpoint.
	AdminPort int32
	// Backed is true if members make backups. The southbound database needs none: it is derived from the northbound one.
	Backed bool
	// Of returns this database's part of the status.
	Of func(*v1alpha1.OVNClusterStatus) *v1alpha1.DatabaseStatus
	// Source returns the source of this database in a requested recovery.
	Source func(*v1alpha1.Recovery) v1alpha1.RecoverySource

	// settings are this database's part of the spec.
	settings func(*v1alpha1.Central) v1alpha1.Workload
	ports    []corev1.ContainerPort
}

// probePortOffset is the distance from a member's admin port to its port for probes.
const probePortOffset = 10

// Databases are all databases, in the order in which they come up.
var Databases = []Database{Northbound, Southbound}

// Northbound and Southbound databases.
var (
	Northbound = Database{
		Flag: "nb", Title: "northbound database", Workload: NorthboundName, Service: "ovn-nb", Secret: "kiln-tls-ovn-nb",
		LeaderLabel: "ovn-nb-leader", AdminPort: 6651, Writer: ControllerName, WrittenLabel: "kubeovn.io/northbound-written", Backed: true,
		Of:       func(s *v1alpha1.OVNClusterStatus) *v1alpha1.DatabaseStatus { return &s.Northbound },
		Source:   func(r *v1alpha1.Recovery) v1alpha1.RecoverySource { return r.Northbound },
		settings: func(c *v1alpha1.Central) v1alpha1.Workload { return c.Northbound },
		ports:    []corev1.ContainerPort{port("clients", 6641), port("raft", 6643), port("admin", 6651)},
	}
	Southbound = Database{
		Flag: "sb", Title: "southbound database", Workload: SouthboundName, Service: "ovn-sb", Secret: "kiln-tls-ovn-sb",
		LeaderLabel: "ovn-sb-leader", AdminPort: 6652, Writer: NorthdName, WrittenLabel: "kubeovn.io/southbound-written",
		Of:       func(s *v1alpha1.OVNClusterStatus) *v1alpha1.DatabaseStatus { return &s.Southbound },
		Source:   func(r *v1alpha1.Recovery) v1alpha1.RecoverySource { return r.Southbound },
		settings: func(c *v1alpha1.Central) v1alpha1.Workload { return c.Southbound },
		ports:    []corev1.ContainerPort{port("clients", 6642), port("northd", 6649), port("raft", 6644), port("admin", 6652)},
	}
)

// DatabaseObjects returns the StatefulSet of the members of one database and the Service of its leader.
func DatabaseObjects(c Config, db Database) []Object {
	return []Object{databaseService(c, db), databaseSet(c, db)}
}

// databaseSet returns the StatefulSet of the members. A member is identified by its node, not by its ordinal: the
// OVNCluster's status decides whether it creates or joins the cluster. A changed template replaces pods only when the
// operator deletes them.
func databaseSet(c Config, db Database) *appsv1.StatefulSet {
	template := c.template(program{
		app:           centralApp,
		component:     db.Workload,
		container:     centralContainer,
		account:       centralAccount,
		priorityClass: clusterCritical,
		args:          []string{"ovsdb", "--db=" + db.Flag, "--data-dir=/etc/ovn", "--tls-dir=" + tlsDirectory},
		health:        db.AdminPort + probePortOffset,
		ports:         db.ports,
		resources:     firstSet(db.settings(&c.Spec.Central).Resources, c.Spec.Central.Resources, requests("200m", "256Mi")),
		security:      onHost(),
		grace:         60,
		tolerations:   MemberTolerations(c.Spec.Central.Placement),
		mounts: []mount{
			{name: dataVolume, path: "/etc/ovn", source: hostPath(c.Spec.Central.DataDirectory, corev1.HostPathDirectoryOrCreate)},
			hostDirectory("run-ovn", "/run/ovn"),
			tlsMount(db.Secret),
		},
	})
	stamp(&template)                // before the affinity is set: changes of membership do not replace pods
	c.mountPrevious(&template.Spec) // after the stamp: members that have moved their files keep running when the mount is removed
	template.Spec.Affinity = &corev1.Affinity{
		NodeAffinity:    onNodes(c.Members[db.Flag]),
		PodAntiAffinity: onDifferentNodes(centralApp, db.Workload),
	}
	return &appsv1.StatefulSet{
		ObjectMeta: c.meta(db.Workload, centralApp, db.Workload),
		Spec: appsv1.StatefulSetSpec{
			Replicas:            new(int32(len(c.Members[db.Flag]))), //nolint:gosec // five at most
			ServiceName:         db.Service,
			Selector:            selector(centralApp, db.Workload),
			PodManagementPolicy: appsv1.ParallelPodManagement,
			UpdateStrategy:      appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			Template:            template,
		},
	}
}

// mountPrevious mounts PreviousDataDirectory.
func (c Config) mountPrevious(pod *corev1.PodSpec) {
	if c.PreviousDataDirectory == "" {
		return
	}
	const name, path = "previous-data", "/etc/ovn-previous"
	container := &pod.Containers[0]
	container.Env = append(container.Env, corev1.EnvVar{Name: "KILN_PREVIOUS_DATA_DIRECTORY", Value: path})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: hostPath(c.PreviousDataDirectory, corev1.HostPathDirectoryOrCreate)})
}

// DataDirectory returns the directory of the database files on nodes in a StatefulSet of members.
func DataDirectory(members *appsv1.StatefulSet) string {
	for _, v := range members.Spec.Template.Spec.Volumes {
		if v.Name == dataVolume && v.HostPath != nil {
			return v.HostPath.Path
		}
	}
	return ""
}

const dataVolume = "data"

// onNodes binds a pod to these nodes by name, because a node's hostname label may differ from its name.
func onNodes(names []string) *corev1.NodeAffinity {
	terms := make([]corev1.NodeSelectorTerm, 0, len(names))
	for _, name := range names {
		terms = append(terms, corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name},
		}}})
	}
	return &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}
}

// databaseService returns the Service that leads people and tools to the leader. Components take the addresses from the
// OVNCluster's status instead.
func databaseService(c Config, db Database) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: c.meta(db.Service, centralApp, db.Workload),
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{AppLabel: centralApp, v1alpha1.ComponentLabel: db.Workload, db.LeaderLabel: "true"},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		},
	}
	for _, p := range db.ports {
		if p.Name == "raft" || p.Name == "admin" {
			continue
		}
		s.Spec.Ports = append(s.Spec.Ports, servicePort(p.Name, p.ContainerPort))
	}
	return s
}

func servicePort(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: number, TargetPort: intstr.FromInt32(number)}
}
