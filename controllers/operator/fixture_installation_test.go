// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// scenario is an installation: nodes, an OVNCluster and the members of its databases.
type scenario struct {
	*world
	members map[string]*fakeMember
	pods    map[string]*corev1.Pod
	// first is the OVNCluster as install left it.
	first *v1alpha1.OVNCluster
	// spoilt is set when a test on it failed.
	spoilt bool
}

// Cluster IDs of the databases.
const (
	northboundID = "10000000-0000-4000-8000-000000000001"
	southboundID = "20000000-0000-4000-8000-000000000001"
)

// newScenario returns a scenario with two nodes that get no database, and without an OVNCluster. It has no objects of earlier
// tests. Its own objects are deleted at the end of the test.
func newScenario(t *testing.T) *scenario {
	t.Helper()
	s := bareScenario(t)
	t.Cleanup(func() { s.clear(t) })
	return s
}

func bareScenario(t *testing.T) *scenario {
	t.Helper()
	theWorld.discard(t)
	s := &scenario{world: &theWorld, members: map[string]*fakeMember{}, pods: map[string]*corev1.Pod{}}
	s.operator(t)
	s.addNode(t, "worker-1", "192.0.2.11", nil)
	// Kiln runs no pods on this node, does not wait for it, and does not clean it.
	s.addNode(t, "windows", "192.0.2.12", map[string]string{corev1.LabelOSStable: "windows", v1alpha1.ControlPlaneLabel: ""})
	return s
}

// installed returns a scenario in which all components are available. The databases have pods. The other components have
// none, and their status is set. It is the restored installation of an earlier test, if there is one. A test that leaves
// changes that restore does not revert uses newInstallation.
func installed(t *testing.T) *scenario {
	t.Helper()
	t.Cleanup(func() {
		if s := theWorld.standing; s != nil && t.Failed() {
			s.spoilt = true
		}
	})
	theWorld.operator(t)
	if s := theWorld.standing; s != nil && !s.spoilt && s.restore(t) {
		return s
	}
	s := bareScenario(t)
	theWorld.standing = s
	s.install(t)
	return s
}

// newInstallation is installed without an earlier test's installation. It is deleted at the end of the test.
func newInstallation(t *testing.T) *scenario {
	t.Helper()
	s := newScenario(t)
	s.install(t)
	return s
}

// working is installed with workload controllers that create and replace pods.
func working(t *testing.T) (*scenario, *workloads) {
	t.Helper()
	s := installed(t)
	return s, s.atWork(t)
}

// create creates a node for the databases, and the OVNCluster.
func (s *scenario) create(t *testing.T) {
	t.Helper()
	s.addNode(t, node, "192.0.2.1", map[string]string{v1alpha1.ControlPlaneLabel: ""})
	s.createCluster(t)
}

func (s *scenario) createCluster(t *testing.T) {
	t.Helper()
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	cluster.Spec.Pinger.Mode = v1alpha1.PingerDisabled // its pods would be one more workload to settle in each test
	if err := s.admin.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
}

// settled are the workloads besides the databases in the order of their start, with the numbers of their pods.
func settled() []settledWorkload {
	return []settledWorkload{
		{&appsv1.Deployment{}, render.NorthdName, 1}, {&appsv1.DaemonSet{}, render.OpenVSwitch, 2},
		{&appsv1.Deployment{}, render.ControllerName, 1}, {&appsv1.DaemonSet{}, render.AgentName, 2},
		{&appsv1.Deployment{}, render.MonitorName, 1},
	}
}

type settledWorkload struct {
	object client.Object
	name   string
	pods   int32
}

// install creates the OVNCluster and starts its components.
func (s *scenario) install(t *testing.T) {
	t.Helper()
	s.create(t)
	s.installCreated(t)
}

// installCreated starts the components of an OVNCluster that exists, each once the operator has created its workload.
func (s *scenario) installCreated(t *testing.T) {
	t.Helper()
	await := func(o client.Object, name string) {
		newG(t).Eventually(s.exists(t, o, name)).Should(Succeed(), name)
	}
	await(&appsv1.StatefulSet{}, render.NorthboundName)
	s.startDatabase(t, render.Northbound, northboundID)
	await(&appsv1.StatefulSet{}, render.SouthboundName)
	s.startDatabase(t, render.Southbound, southboundID)
	workloads := settled()
	if s.cluster(t).Spec.Pinger.Mode == v1alpha1.PingerEnabled {
		workloads = append(workloads, settledWorkload{&appsv1.DaemonSet{}, render.PingerName, 2})
	}
	for _, w := range workloads {
		await(w.object, w.name)
		s.settle(t, w.object, w.pods)
	}
	newG(t).Eventually(func() bool { return s.complete(t) }).Should(BeTrue())
	s.first = s.cluster(t)
}

// complete reports whether the conditions are those of a complete installation.
func (s *scenario) complete(t *testing.T) bool {
	c := s.cluster(t)
	return c.Status.ObservedGeneration == c.Generation && strings.HasPrefix(s.condition(t, "Available")(), "True") &&
		strings.HasPrefix(s.condition(t, "Progressing")(), "False AsSpecified") && strings.HasPrefix(s.condition(t, "Degraded")(), "False")
}

// serveMember starts the admin endpoint of a database's only member.
func (s *scenario) serveMember(db render.Database, id string) {
	member := &fakeMember{status: leading(db, id)}
	s.members[db.Flag] = member
	s.world.members.serve(db.AdminPort, s.mount(db.Secret), member.handler())
}

// leading returns the report of a database's only member.
func leading(db render.Database, id string) adminapi.Status {
	return adminapi.Status{
		ClusterID: id, ServerID: "server-" + db.Flag, Address: "ssl:192.0.2.1:6643", Role: adminapi.RoleLeader, Term: 3, Connected: true,
		Members: []adminapi.Member{{ServerID: "serv", Address: "ssl:192.0.2.1:6643"}},
	}
}

// startDatabase acts as the StatefulSet controller, the kubelet and the member.
func (s *scenario) startDatabase(t *testing.T, db render.Database, id string) {
	t.Helper()
	set := &appsv1.StatefulSet{}
	s.settle(t, s.named(set, db.Workload), 1)
	s.serveMember(db, id)
	pod := s.addPod(t, db.Workload+"-0", db.Workload, node, "192.0.2.1", revisionOf(set))
	s.setReady(t, pod, true)
	s.pods[db.Flag] = pod
}

// touch wakes the operator by a change of a pod's readiness.
func (s *scenario) touch(t *testing.T, db string) {
	s.setReady(t, s.podOf(t, db), false)
	s.setReady(t, s.podOf(t, db), true)
}

// passWithReport waits until a pass with the present report of a database's member has ended, and no other pass is due.
func (s *scenario) passWithReport(t *testing.T, db string) {
	t.Helper()
	s.setReady(t, s.podOf(t, db), false)
	s.passAfter(t, func() { s.setReady(t, s.podOf(t, db), true) })
}

// podOf returns the pod of a database as it is.
func (s *scenario) podOf(t *testing.T, db string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := s.exists(t, pod, s.pods[db].Name)(); err != nil {
		t.Fatal(err)
	}
	return pod
}
