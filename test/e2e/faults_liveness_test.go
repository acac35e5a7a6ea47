// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/test/cluster"
)

const faultsObjects = "e2e-faults" // the name of cluster-scoped objects

// refusedPort makes the northbound database refuse every transaction with the port of one pod, because another system's port has
// its name. The pod gets a warning event, and its network after the other port is deleted.
func refusedPort(ctx context.Context, begin func()) func(context.Context) {
	GinkgoHelper()
	const name = "refused"
	nbctl := func(ctx context.Context, args ...string) {
		GinkgoHelper()
		_, err := ko(ctx, append([]string{"nbctl"}, args...)...)
		Expect(err).NotTo(HaveOccurred())
	}
	nbctl(ctx, "ls-add", faultsObjects, "--", "lsp-add", faultsObjects, name+"."+faultsNamespace)
	DeferCleanup(func(ctx SpecContext) { // if the spec fails earlier
		nbctl(ctx, "--if-exists", "ls-del", faultsObjects)
		removePods(ctx, faultsNamespace, name)
	}, NodeTimeout(2*time.Minute))
	begin()
	_, err := suite.Cluster.CoreV1().Pods(faultsNamespace).Create(ctx, cluster.Server(faultsNamespace, name, suite.Workers[0]), metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return func(ctx context.Context) {
		Expect(warnings(ctx, faultsNamespace, name)).To(ContainElement(ContainSubstring(name + "." + faultsNamespace)))
		nbctl(ctx, "ls-del", faultsObjects)
		_, err := suite.Cluster.WaitPod(ctx, faultsNamespace, name, cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		removePods(ctx, faultsNamespace, name)
	}
}

// deposeLeader removes the leader's term from the database, which is its right to write, as the restore of an older copy does.
func deposeLeader(ctx context.Context, begin func()) func(context.Context) {
	GinkgoHelper()
	leading := leadingController(ctx)
	struck[leading.UID] = restarts(leading) // it ends by itself
	begin()
	_, err := ko(ctx, "nbctl", "remove", "NB_Global", ".", "external_ids", "kiln-leader-term")
	Expect(err).NotTo(HaveOccurred())
	return nil
}

// silentMember drops packets to the first member in the clients' list of members, and kills the leading controller, so that its
// successor has to open a new connection.
func silentMember(ctx context.Context, begin func()) func(context.Context) {
	GinkgoHelper()
	node := settled(ctx, trialDatabases[0], 3).Members[0].Node
	leading := leadingController(ctx)
	begin()
	restore := cutOff(ctx, []string{"tcp dport { 6641, 6643 }"}, []string{"tcp dport 6643"}, node)
	strike(ctx, leading)
	return restore
}

// stallMember stops the ovsdb-server of a database's leader with SIGSTOP. Its connections stay open.
func stallMember(db trialDatabase) injection {
	return func(ctx context.Context, begin func()) func(context.Context) {
		GinkgoHelper()
		node := theOne(ctx, db, leader).Spec.NodeName
		signal := func(ctx context.Context, name string) {
			GinkgoHelper()
			exec(ctx, node, "sh", "-c", fmt.Sprintf("kill -%s $(pgrep -f '^[^ ]*ovsdb-server .*/%s[.]')", name, strings.TrimSuffix(db.file, ".db")))
		}
		DeferCleanup(func(ctx SpecContext) { signal(ctx, "CONT") }, NodeTimeout(time.Minute)) // if the spec fails earlier
		begin()
		signal(ctx, "STOP")
		return func(ctx context.Context) { signal(ctx, "CONT") }
	}
}

// tooManyRequests makes the API server answer 429 to requests of the accounts of kube-system while it works on another of their
// requests. Open watches continue.
func tooManyRequests(ctx context.Context, _ func()) func(context.Context) {
	GinkgoHelper()
	none := int32(0)
	level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: faultsObjects}, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited,
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: &none, LendablePercent: &none, BorrowingLimitPercent: &none,
			LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
		},
	}}
	schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: faultsObjects}, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: faultsObjects},
		MatchingPrecedence:         2, // after the FlowSchema exempt only
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: "system:serviceaccounts:" + cluster.Namespace}}},
			ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true}},
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
		}},
	}}
	return during(ctx, level, schema)
}

// internalErrors makes the API server answer 500 to each write of Kiln's accounts in kube-system, because a webhook cannot be
// reached.
func internalErrors(ctx context.Context, _ func()) func(context.Context) {
	GinkgoHelper()
	fail, none, limit := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, int32(1)
	return during(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: faultsObjects}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name: "fails.example.com", FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: &limit, AdmissionReviewVersions: []string{"v1"},
		ClientConfig:    admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:9/")}, // the discard port, where no server listens
		MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "kiln", Expression: "request.userInfo.username.startsWith('system:serviceaccount:" + cluster.Namespace + ":k')"}},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
		}},
	}}})
}

// during creates objects, and returns a function that deletes them.
func during(ctx context.Context, objects ...client.Object) func(context.Context) {
	GinkgoHelper()
	remove := func(ctx context.Context) {
		GinkgoHelper()
		for _, o := range objects {
			Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, o))).To(Succeed())
		}
	}
	DeferCleanup(func(ctx SpecContext) { remove(ctx) }, NodeTimeout(time.Minute)) // if the spec fails earlier
	for _, o := range objects {
		Expect(suite.Objects.Create(ctx, o)).To(Succeed())
	}
	return remove
}
