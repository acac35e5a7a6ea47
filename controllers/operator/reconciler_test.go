// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

const (
	soon  = 2 * time.Minute // usually immediate, but the machine may be busy
	often = 50 * time.Millisecond
	node  = "control-plane-1"
)

// scenario is one installation. The steps of TestOneInstallation run on it in order.
type scenario struct {
	*world
	// root is the test that contains the steps.
	root    *testing.T
	members map[string]*fakeMember
	pods    map[string]*corev1.Pod
	// policyRights are the rules for admission policies in the operator's manifest.
	policyRights []rbacv1.PolicyRule
}

func TestOneInstallation(t *testing.T) {
	SetDefaultEventuallyTimeout(soon)
	SetDefaultEventuallyPollingInterval(often)
	s := &scenario{world: &theWorld, root: t, members: map[string]*fakeMember{}, pods: map[string]*corev1.Pod{}}
	for _, step := range []struct {
		name string
		run  func(*scenario, *testing.T)
	}{
		{"the operator loses its rights to admission policies", (*scenario).withoutPolicyRights},
		{"without a node for the databases it says so", (*scenario).withoutNode},
		{"an OVNCluster of another name is refused", (*scenario).secondCluster},
		{"a node that appears is recorded before anything runs on it, and another one once it has gone", (*scenario).placed},
		{"each component waits for the one before", (*scenario).phaseByPhase},
		{"with every component ready it is available", (*scenario).available},
		{"without rights to admission policies it says so, and with them they are applied", (*scenario).protected},
		{"another pass writes nothing", (*scenario).writesNothing},
		{"what someone changed is changed back", (*scenario).driftRestored},
		{"admission policies that someone deleted or changed are restored", (*scenario).policiesRestored},
		{"an admission policy that cannot be applied takes none of the others away", (*scenario).onePolicyForbidden},
		{"objects of others stay and unwanted ones are deleted", (*scenario).pruned},
		{"authorities outlive a lost label", (*scenario).authoritiesStay},
		{"why a container failed is shown", (*scenario).failureShown},
		{"pods report the versions that they run", (*scenario).versionsReported},
		{"a new image goes to nodes, databases, northd and the controller, one after another", (*scenario).upgraded},
		{"an image that is set back halfway goes back in reverse", (*scenario).setBack},
		{"a new pod that fails stops it, and says what to do", (*scenario).stopped},
		{"canary nodes come first, and nothing else in mode Canary", (*scenario).canary},
		{"in mode Paused nothing is replaced", (*scenario).paused},
		{"a network that cannot be changes nothing and says what to change", (*scenario).invalidNetwork},
		{"an invalid address of a node affects only that node, and is reported", (*scenario).nodeAddresses},
		{"an unreachable member blocks nothing that does not need it", (*scenario).memberCutOff},
		{"a node that falls silent before its member has joined gives its place and its pod to another", (*scenario).joinerSilent},
		{"a requested backup is reported once it exists", (*scenario).backedUp},
		{"what happened so far is in the metrics", (*scenario).measured},
		{"while an upgrade is held backups go on, and on the right claim", (*scenario).claimChanged},
		{"a claim for backups is nothing that the network waits for", (*scenario).claimed},
		{"issuers that cannot be are refused", (*scenario).wrongIssuers},
		{"without cert-manager it says so, and once there its Certificates are made", (*scenario).withoutCertManager},
		{"the reason why an issuer does not issue is reported", (*scenario).issuerMissing},
		{"a certificate that is not a CA is reported and not used", (*scenario).unusable},
		{"an issuer's authorities are trusted first, and sign later", (*scenario).issued},
		{"with an issuer an operator that restarts writes nothing", (*scenario).restarted},
		{"one that is renewed takes over in the same steps", (*scenario).renewed},
		{"a webhook of cert-manager's that is down holds up nothing else", (*scenario).webhookDown},
		{"certificates of another issuer do as well", (*scenario).ofAnotherIssuer},
		{"CAs that are not renewed are reported before they expire", (*scenario).notRenewed},
		{"with cert-manager gone everything stays", (*scenario).certManagerGone},
		{"no secret is in the log while an issuer issues", (*scenario).secretsKept},
		{"an issuer that is given up leaves nothing behind", (*scenario).givenUp},
		{"authorities whose Secrets are deleted are created again, and no component trusts the old ones", (*scenario).lost},
		{"after years without an operator all certificates are issued again", (*scenario).away},
		{"a waiting database is retried while the other has lost its quorum", (*scenario).eachTriedAgain},
		{"the loss of a quorum is reported, and a recovery runs once", (*scenario).recovered},
		{"a member with a full disk is reported", (*scenario).fullDisk},
		{"a member of another cluster is never recorded", (*scenario).foreignMember},
		{"certificates that have expired are replaced by the same authorities", (*scenario).expired},
		{"no secret is in the log, in events or in the status", (*scenario).secretsKept},
		{"once deleted it is taken down in order", (*scenario).takenDown},
		{"it waits for nodes to be clean, but not for ever", (*scenario).nodesCleaned},
		{"made again it waits for the end of the cleaning", (*scenario).madeAgain},
		{"data is deleted when that was asked for", (*scenario).dataDeleted},
		{"the garbage collector deletes the objects of the OVNCluster", (*scenario).collected},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(s, t) }) {
			t.FailNow()
		}
	}
}

// condition returns a getter for Eventually: status, reason and message of one condition.
func (s *scenario) condition(t *testing.T, kind string) func() string {
	return func() string {
		c := meta.FindStatusCondition(s.cluster(t).Status.Conditions, kind)
		if c == nil {
			return "none"
		}
		return string(c.Status) + " " + c.Reason + ": " + c.Message
	}
}

func (s *scenario) exists(t *testing.T, o client.Object, name string) func() error {
	return func() error {
		return s.admin.Get(t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, o)
	}
}

func (s *scenario) withoutNode(t *testing.T) {
	g := newG(t)
	s.addNode(t, "worker-1", "192.0.2.11", nil)
	// Kiln runs no pods on this node, does not wait for it, and does not clean it.
	s.addNode(t, "windows", "192.0.2.12", map[string]string{corev1.LabelOSStable: "windows", render.ControlPlaneLabel: ""})
	g.Expect(s.admin.Create(t.Context(), &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: "default"}})).To(Succeed())
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(
		HavePrefix("True NoNodeForDatabases"), ContainSubstring("node-role.kubernetes.io/control-plane"), ContainSubstring("label a node")))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("False"))
	g.Eventually(func() []string { return s.events(t) }).Should(ContainElement("Warning NoNodeForDatabases"))
}

func (s *scenario) events(t *testing.T) []string {
	var list eventsv1.EventList
	if err := s.admin.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list.Items {
		if e.Regarding.Kind == "OVNCluster" {
			all = append(all, e.Type+" "+e.Reason)
		}
	}
	return all
}

func (s *scenario) secondCluster(t *testing.T) {
	err := s.admin.Create(t.Context(), &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: "another"}})
	newG(t).Expect(err).To(MatchError(ContainSubstring("must be named default")))
}

func (s *scenario) placed(t *testing.T) {
	g := newG(t)
	g.Expect(s.exists(t, &appsv1.StatefulSet{}, render.NorthboundName)()).NotTo(Succeed())
	const shortLived = "control-plane-0"
	s.addNode(t, shortLived, "192.0.2.100", map[string]string{render.ControlPlaneLabel: ""})
	set := &appsv1.StatefulSet{}
	g.Eventually(s.exists(t, set, render.NorthboundName)).Should(Succeed())
	g.Expect(s.cluster(t).Status.Northbound.BootstrapNode).To(Equal(shortLived))
	pending := func(name string) *corev1.Pod {
		pod := s.newPod(name, render.NorthboundName, "", revisionOf(set))
		pod.Spec.Affinity = set.Spec.Template.Spec.Affinity
		g.Expect(s.admin.Create(t.Context(), pod)).To(Succeed())
		return pod
	}
	s.settle(t, set, 1)
	pending("ovn-central-nb-0")

	// No database was ever created there.
	g.Expect(s.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: shortLived}})).To(Succeed())
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("True NoNodeForDatabases"))
	s.addNode(t, node, "192.0.2.1", map[string]string{render.ControlPlaneLabel: ""})
	recorded := func() []v1alpha1.DatabaseStatus {
		return []v1alpha1.DatabaseStatus{s.cluster(t).Status.Northbound, s.cluster(t).Status.Southbound}
	}
	wanted := v1alpha1.DatabaseStatus{BootstrapNode: node, Members: []v1alpha1.DatabaseMember{{Node: node, Address: "192.0.2.1"}}}
	g.Eventually(recorded).Should(HaveEach(wanted))

	// The pod waits for a node that holds no member.
	g.Eventually(func() []string {
		g.Expect(s.exists(t, set, render.NorthboundName)()).To(Succeed())
		return allowedNodes(&corev1.Pod{Spec: set.Spec.Template.Spec})
	}).Should(Equal([]string{node}))
	s.settle(t, set, 1)
	g.Eventually(s.absent(t, &corev1.Pod{}, "ovn-central-nb-0")).Should(BeTrue())
	waits := pending("ovn-central-nb-0")
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True WaitingForDatabase: the northbound database has no leader"))
	g.Consistently(s.exists(t, &corev1.Pod{}, waits.Name)).Should(Succeed())
	g.Expect(s.admin.Delete(t.Context(), waits, client.GracePeriodSeconds(0))).To(Succeed())
}

func (s *scenario) phaseByPhase(t *testing.T) {
	g := newG(t)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True WaitingForDatabase: the northbound database has no leader"))
	before := func(o client.Object, name string) {
		g.Expect(apierrors.IsNotFound(s.exists(t, o, name)())).To(BeTrue(), name)
	}

	before(&appsv1.StatefulSet{}, render.SouthboundName)
	s.startDatabase(t, render.Northbound, "10000000-0000-4000-8000-000000000001")
	g.Eventually(s.exists(t, &appsv1.StatefulSet{}, render.SouthboundName)).Should(Succeed())
	g.Eventually(func() string { return s.cluster(t).Status.Northbound.Leader }).Should(Equal(node))
	nb := s.cluster(t).Status.Northbound
	g.Expect(nb.ClusterID).To(Equal("10000000-0000-4000-8000-000000000001"))
	g.Expect(nb.Term).To(Equal(int64(3)))
	g.Expect(nb.Members).To(Equal([]v1alpha1.DatabaseMember{{Node: node, Address: "192.0.2.1", ServerID: "server-nb", Role: "leader"}}))

	before(&appsv1.Deployment{}, render.NorthdName)
	s.startDatabase(t, render.Southbound, "20000000-0000-4000-8000-000000000001")
	g.Eventually(s.exists(t, &appsv1.Deployment{}, render.NorthdName)).Should(Succeed())

	before(&appsv1.DaemonSet{}, render.OpenVSwitch)
	s.settle(t, s.named(&appsv1.Deployment{}, render.NorthdName), 1)
	g.Eventually(s.exists(t, &appsv1.DaemonSet{}, render.OpenVSwitch)).Should(Succeed())

	before(&appsv1.Deployment{}, render.ControllerName)
	s.settle(t, s.named(&appsv1.DaemonSet{}, render.OpenVSwitch), 2)
	g.Eventually(s.exists(t, &appsv1.Deployment{}, render.ControllerName)).Should(Succeed())

	before(&appsv1.DaemonSet{}, render.AgentName)
	s.settle(t, s.named(&appsv1.Deployment{}, render.ControllerName), 1)
	g.Eventually(s.exists(t, &appsv1.DaemonSet{}, render.AgentName)).Should(Succeed())
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("False"))
}

func (s *scenario) named(o client.Object, name string) client.Object {
	o.SetNamespace(testNamespace)
	o.SetName(name)
	return o
}

// startDatabase acts as the StatefulSet controller, the kubelet and the member.
func (s *scenario) startDatabase(t *testing.T, db render.Database, id string) {
	t.Helper()
	set := &appsv1.StatefulSet{}
	s.settle(t, s.named(set, db.Workload), 1)
	member := &fakeMember{status: adminapi.Status{
		ClusterID: id, ServerID: "server-" + db.Flag, Address: "ssl:192.0.2.1:6643", Role: adminapi.RoleLeader, Term: 3, Connected: true,
		Members: []adminapi.Member{{ServerID: "serv", Address: "ssl:192.0.2.1:6643"}},
	}}
	s.members[db.Flag] = member
	s.world.members.serve(s.root, db.AdminPort, s.mount(s.root, db.Secret), adminapi.Handler(member))
	pod := s.addPod(t, db.Workload+"-0", db.Workload, node, "192.0.2.1", revisionOf(set))
	s.setReady(t, pod, true)
	s.pods[db.Flag] = pod
}

func (s *scenario) available(t *testing.T) {
	g := newG(t)
	s.settle(t, s.named(&appsv1.DaemonSet{}, render.AgentName), 2)
	g.Eventually(s.condition(t, "Available")).Should(HavePrefix("True"))
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False"))
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	c := s.cluster(t)
	g.Expect(c.Status.ObservedGeneration).To(Equal(c.Generation))
	names := []string{}
	for _, row := range c.Status.Components {
		names = append(names, row.Name)
		g.Expect(row.Ready).To(Equal(row.Desired), row.Name)
		g.Expect(row.Image).To(Equal("kiln.local/kiln:test"), row.Name)
		g.Expect(row.Message).To(BeEmpty(), row.Name)
	}
	g.Expect(names).To(Equal(render.Components()))
}

// versions returns the resource versions of all objects that the operator writes.
func (s *scenario) versions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"OVNCluster": s.cluster(t).ResourceVersion}
	for _, kind := range append(ownedKinds(), policyKinds()...) {
		gvk, err := apiutil.GVKForObject(kind, s.admin.Scheme())
		if err != nil {
			t.Fatal(err)
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)
		if err := s.admin.List(t.Context(), list, client.MatchingLabels{render.ManagedByLabel: render.ManagedBy}); err != nil {
			t.Fatal(err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			m := o.(*metav1.PartialObjectMetadata)
			all[gvk.Kind+"/"+m.Name] = m.ResourceVersion
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// stable waits until the operator has no work left: it was idle, and the objects that it watches did not change, for a
// while.
func (s *scenario) stable(t *testing.T) map[string]string {
	t.Helper()
	var last map[string]string
	newG(t).Eventually(func() bool {
		before, now := last, s.versions(t)
		last = now
		return idle(t) && maps.Equal(before, now)
	}).WithPolling(500 * time.Millisecond).Should(BeTrue())
	return last
}

// idle reports whether the operator runs no pass and has none queued.
func idle(t *testing.T) bool {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if name := family.GetName(); name != "workqueue_depth" && name != "controller_runtime_active_workers" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if metric.GetGauge().GetValue() != 0 {
				return false
			}
		}
	}
	return true
}

func (s *scenario) writesNothing(t *testing.T) {
	g := newG(t)
	before := s.stable(t)
	g.Expect(len(before)).To(BeNumerically(">", 35))
	// A reconciler without its in-memory state applies every object again.
	again := *s.operate
	again.applied = nil
	result, err := again.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "default"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(BeNumerically("~", 365*24*time.Hour*2/3, 24*time.Hour), "it wakes up to renew certificates")
	g.Expect(s.versions(t)).To(Equal(before))
}

func (s *scenario) driftRestored(t *testing.T) {
	g := newG(t)
	controller := &appsv1.Deployment{}
	g.Expect(s.exists(t, controller, render.ControllerName)()).To(Succeed())
	changed := controller.DeepCopy()
	changed.Spec.Template.Spec.Containers[0].Image = "example.com/other:1"
	changed.Spec.Replicas = new(int32(4))
	g.Expect(s.admin.Patch(t.Context(), changed, client.MergeFrom(controller))).To(Succeed())
	g.Eventually(func() string {
		g.Expect(s.exists(t, controller, render.ControllerName)()).To(Succeed())
		return imageOf(controller.Spec.Template)
	}).Should(Equal("kiln.local/kiln:test"))
	g.Expect(*controller.Spec.Replicas).To(Equal(int32(1)))
	s.settle(t, controller, 1)

	service := &corev1.Service{}
	g.Expect(s.exists(t, service, "ovn-nb")()).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), service)).To(Succeed())
	g.Eventually(s.exists(t, &corev1.Service{}, "ovn-nb")).Should(Succeed())
}

func (s *scenario) pruned(t *testing.T) {
	g := newG(t)
	labels := map[string]string{render.ManagedByLabel: render.ManagedBy}
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Namespace: testNamespace, Labels: labels}}
	g.Expect(s.admin.Create(t.Context(), foreign)).To(Succeed())
	for _, old := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: render.BackupsSecret, Namespace: testNamespace, Labels: labels}},
		render.BackupsObjects(withBackups())[0].(client.Object),
	} {
		old.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(s.cluster(t), v1alpha1.GroupVersion.WithKind("OVNCluster"))})
		g.Expect(s.admin.Create(t.Context(), old)).To(Succeed())
		g.Eventually(func() bool { return apierrors.IsNotFound(s.exists(t, old, old.GetName())()) }).Should(BeTrue())
	}
	g.Expect(s.exists(t, &corev1.ConfigMap{}, "foreign")()).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), foreign)).To(Succeed())
}

func (s *scenario) authoritiesStay(t *testing.T) {
	g := newG(t)
	secret := &corev1.Secret{}
	g.Expect(s.exists(t, secret, "kiln-ca-nb-server")()).To(Succeed())
	held := secret.DeepCopy()
	stripped := secret.DeepCopy()
	stripped.Labels = nil
	g.Expect(s.admin.Patch(t.Context(), stripped, client.MergeFrom(secret))).To(Succeed())
	g.Eventually(func() map[string]string {
		g.Expect(s.exists(t, secret, "kiln-ca-nb-server")()).To(Succeed())
		return secret.Labels
	}).Should(HaveKey(render.ManagedByLabel))
	g.Expect(secret.Data).To(Equal(held.Data))
	g.Expect(secret.OwnerReferences).To(BeEmpty(), "an authority outlives the OVNCluster")
	for name, files := range map[string][]string{
		"kiln-tls-ovn-nb":     {"tls.crt", "tls.key", "ca.crt", "admin-ca.crt"},
		"kiln-tls-ovn-sb":     {"tls.crt", "tls.key", "ca.crt", "admin-ca.crt"},
		"kiln-tls-northd":     {"tls.crt", "tls.key", "ca.crt"},
		"kiln-tls-controller": {"tls.crt", "tls.key", "ca.crt"},
	} {
		g.Expect(s.exists(t, secret, name)()).To(Succeed())
		for _, f := range files {
			g.Expect(secret.Data).To(HaveKeyWithValue(f, Not(BeEmpty())), name)
		}
	}
	trust := &corev1.ConfigMap{}
	g.Expect(s.exists(t, trust, render.TrustConfigMap)()).To(Succeed())
	for _, file := range []string{render.TrustFile, certs.ChassisTrustFile} {
		g.Expect(trust.Data[file]).To(ContainSubstring("BEGIN CERTIFICATE"), file)
	}
}

func (s *scenario) failureShown(t *testing.T) {
	g := newG(t)
	set := &appsv1.DaemonSet{}
	g.Expect(s.exists(t, set, render.OpenVSwitch)()).To(Succeed())
	pod := s.addPod(t, "ovs-ovn-x", render.OpenVSwitch, "worker-1", "192.0.2.11", set.Spec.Template.Annotations[render.TemplateAnnotation])
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "ovs-ovn", Image: "kiln", ImageID: "kiln",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Message: "starting\nthere is no interface eth9: set spec.nodes.tunnelInterface to one of eth0, eth1\n",
		}},
	}}
	g.Expect(s.admin.Status().Update(t.Context(), pod)).To(Succeed())
	why := "node worker-1: there is no interface eth9: set spec.nodes.tunnelInterface to one of eth0, eth1"
	g.Eventually(s.condition(t, "Degraded")).Should(Equal("True ComponentTrouble: ovs-ovn: " + why))
	g.Expect(s.row(t, render.OpenVSwitch).Message).To(Equal(why))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"), "one broken node does not make the network unavailable")
	s.setReady(t, pod, true)
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}

func (s *scenario) row(t *testing.T, name string) v1alpha1.ComponentStatus {
	for _, row := range s.cluster(t).Status.Components {
		if row.Name == name {
			return row
		}
	}
	return v1alpha1.ComponentStatus{}
}

func (s *scenario) changeSpec(t *testing.T, change func(*v1alpha1.OVNClusterSpec)) {
	t.Helper()
	c := s.cluster(t)
	changed := c.DeepCopy()
	change(&changed.Spec)
	if err := s.admin.Patch(t.Context(), changed, client.MergeFrom(c)); err != nil {
		t.Fatal(err)
	}
}

func (s *scenario) invalidNetwork(t *testing.T) {
	g := newG(t)
	before := s.stable(t)
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Image = "kiln.local/kiln:never"
		spec.Network.JoinCIDRs = []string{"192.0.2.0/24"}
	})
	g.Eventually(s.condition(t, "Degraded")).Should(Equal(
		"True InvalidNetwork: network.joinCIDRs 192.0.2.0/24 holds 192.0.2.1, the address of node control-plane-1: " +
			"choose a CIDR that no node is in"))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"), "running workloads continue")
	after := s.stable(t)
	delete(before, "OVNCluster")
	delete(after, "OVNCluster")
	g.Expect(after).To(Equal(before))
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Image = imageNext
		spec.Network.JoinCIDRs = nil
	})
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}

func (s *scenario) fullDisk(t *testing.T) {
	g := newG(t)
	pod := &corev1.Pod{}
	g.Expect(s.exists(t, pod, "ovn-central-sb-0")()).To(Succeed())
	before, _ := s.members["sb"].Status(t.Context())
	s.members["sb"].set(func(status *adminapi.Status) { *status = adminapi.Status{Waiting: "no room", DiskFailure: "no room"} })
	s.setReady(t, pod, false)
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("ovn-central-sb: node " + node + ": no room"))
	s.members["sb"].set(func(status *adminapi.Status) { *status = before })
	s.setReady(t, pod, true)
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))

	// Other messages do not replace it.
	s.members["nb"].set(func(status *adminapi.Status) { status.BackupFailure = "no space" })
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.Replicas = 3 })
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(ContainSubstring(" fail: no space"), ContainSubstring("label a node")))
	s.members["nb"].set(func(status *adminapi.Status) { status.BackupFailure = "" })
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.Replicas = 1 })
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}

func (s *scenario) foreignMember(t *testing.T) {
	g := newG(t)
	id := s.cluster(t).Status.Southbound.ClusterID
	s.members["sb"].set(func(status *adminapi.Status) { status.ClusterID = "30000000-0000-4000-8000-000000000001" })
	pod := &corev1.Pod{}
	g.Expect(s.exists(t, pod, "ovn-central-sb-0")()).To(Succeed())
	s.setReady(t, pod, false)
	s.setReady(t, pod, true)
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("True ForeignDatabase: southbound database: the member on node " + node))
	g.Expect(s.cluster(t).Status.Southbound.ClusterID).To(Equal(id))
}
