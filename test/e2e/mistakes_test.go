// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

// mistakesReport is the environment variable with the path of the table of mistakes that the spec writes.
const mistakesReport = "MISTAKES_REPORT"

const (
	mistakesNamespace = "e2e-mistakes"
	// movedNamespace has a pod before a Subnet binds it.
	movedNamespace = "e2e-mistakes-moved"
	// heldAddress is the address of the pod holder.
	heldAddress = "10.16.150.9"
)

// An administrator makes the mistakes in objects that concern the cluster, and a tenant with the role edit those in a namespace. They look at the answer of
// the API server, at conditions and at events, and must find the cause and what to change there.
var _ = Describe("mistakes of users", Ordered, func() {
	var tenant *rest.Config
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "mistake-8"}}
	used := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "mistake-36"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.150.36.0/24"}}
	made := []client.Object{vpc, used}

	BeforeAll(func(ctx SpecContext) {
		for _, name := range []string{mistakesNamespace, movedNamespace} {
			makeNamespace(ctx, name)
		}
		DeferCleanup(func(ctx SpecContext) {
			deleteNamespace(ctx, mistakesNamespace)
			deleteNamespace(ctx, movedNamespace)
			slices.Reverse(made)
			deleteObjects(ctx, made...)
		}, NodeTimeout(4*time.Minute))
		tenant = makeTenant(ctx, mistakesNamespace)
		for _, o := range []client.Object{vpc, used} {
			Expect(suite.Objects.Create(ctx, o)).To(Succeed())
		}
		holder, moved, user := cluster.Server(mistakesNamespace, "holder", ""), cluster.Server(movedNamespace, "moved", ""), cluster.Server(mistakesNamespace, "used", "")
		holder.Annotations = map[string]string{kubeovnv1.AnnotationIPAddress.Key(): heldAddress}
		user.Annotations = map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): used.Name}
		for _, pod := range []*corev1.Pod{holder, moved, user} {
			_, err := suite.Cluster.Run(ctx, pod)
			Expect(err).NotTo(HaveOccurred())
		}
	}, NodeTimeout(4*time.Minute))

	It("are answered with the cause and what to change", func(ctx SpecContext) {
		var asked []*answered
		for _, m := range mistakesOfUsers() {
			a := &answered{mistake: m}
			asked = append(asked, a)
			a.send(ctx, tenant)
			if created := a.object; created.GetNamespace() == "" && created.GetUID() != "" && !m.dryRun && !m.deletes {
				made = append(made, created)
			}
		}
		defer func() {
			table := tableOf(asked)
			AddReportEntry("mistakes", table)
			if path := os.Getenv(mistakesReport); path != "" {
				Expect(os.WriteFile(path, []byte(table), 0o644)).To(Succeed())
			}
		}()
		Eventually(func(g Gomega) { // events about ports and classes come after a minute
			g.Expect(withoutAnswer(ctx, asked, tenant)).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(100 * time.Second).WithPolling(time.Second).Should(Succeed())
	}, SpecTimeout(3*time.Minute))
})

// answered is a mistake with the answers that its user sees.
type answered struct {
	mistake

	object *unstructured.Unstructured
	// seen has the answers: of the API server by inError and inWarning, and the last ones of a condition or of events.
	seen map[string][]string
	done bool
}

// HandleWarningHeader implements rest.WarningHandler.
func (a *answered) HandleWarningHeader(_ int, _, text string) {
	a.seen[inWarning] = append(a.seen[inWarning], text)
}

// send makes the mistake, as kubectl does.
func (a *answered) send(ctx context.Context, tenant *rest.Config) {
	GinkgoHelper()
	a.object, a.seen = &unstructured.Unstructured{}, map[string][]string{}
	Expect(yaml.Unmarshal([]byte(a.mistake.object), &a.object.Object)).To(Succeed(), "%d: %s", a.number, a.what)
	config := rest.CopyConfig(suite.Cluster.Config)
	if a.tenant {
		config = rest.CopyConfig(tenant)
	}
	config.WarningHandler = a
	plain, err := client.New(config, client.Options{Scheme: suite.Objects.Scheme(), Mapper: suite.Objects.RESTMapper()})
	Expect(err).NotTo(HaveOccurred())
	c := client.WithFieldValidation(plain, metav1.FieldValidationStrict)
	if a.dryRun {
		c = client.NewDryRunClient(c)
	}
	switch {
	case a.deletes:
		err = c.Delete(ctx, a.object)
	case a.change != "":
		patch, convertErr := yaml.YAMLToJSON([]byte(a.change))
		Expect(convertErr).NotTo(HaveOccurred())
		err = c.Patch(ctx, a.object.DeepCopy(), client.RawPatch("application/merge-patch+json", patch))
	default:
		err = c.Create(ctx, a.object)
	}
	if err != nil {
		a.seen[inError] = []string{err.Error()}
	}
}

// withoutAnswer returns the mistakes without a sufficient answer, with the answers.
func withoutAnswer(ctx context.Context, asked []*answered, tenant *rest.Config) ([]string, error) {
	admins, err := suite.Cluster.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{}) // those about cluster-wide objects
	if err != nil {
		return nil, err
	}
	asTenant, err := kubernetes.NewForConfig(tenant)
	if err != nil {
		return nil, err
	}
	tenants, err := asTenant.CoreV1().Events(mistakesNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	events := append(admins.Items, tenants.Items...)
	var left []string
	for _, a := range asked {
		if a.done = a.done || a.look(ctx, events); !a.done {
			left = append(left, fmt.Sprintf("%d, %s: want %s with %q, seen: %q", a.number, a.what, a.where, a.says, a.seen))
		}
	}
	return left, nil
}

// look reports whether the user sees a sufficient answer where it is expected.
func (a *answered) look(ctx context.Context, events []corev1.Event) bool {
	switch a.where {
	case inError, inWarning:
	case inEvent:
		a.seen[inEvent] = nil
		for i := range events {
			if a.isAbout(&events[i].InvolvedObject) {
				a.seen[inEvent] = append(a.seen[inEvent], events[i].Message)
			}
		}
	default:
		a.seen[a.where] = nil
		stored := a.object.DeepCopy()
		if err := suite.Objects.Get(ctx, client.ObjectKeyFromObject(stored), stored); err != nil {
			return false
		}
		conditions, _, _ := unstructured.NestedSlice(stored.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == a.where {
				a.seen[a.where] = append(a.seen[a.where], fmt.Sprintf("%v: %v", c["status"], c["message"]))
			}
		}
	}
	return a.answer() != ""
}

// isAbout reports whether an event is about the object, or about a pod of the Deployment.
func (a *answered) isAbout(o *corev1.ObjectReference) bool {
	if a.object.GetKind() == "Deployment" && o.Kind == "Pod" {
		return strings.HasPrefix(o.Name, a.object.GetName()+"-")
	}
	return o.Kind == a.object.GetKind() && o.Name == a.object.GetName()
}

// answer returns the sentence with the essential parts, "" if there is none.
func (a *answered) answer() string {
	for _, text := range a.seen[a.where] {
		if strings.Contains(text, "another owner") { // of rows in the northbound database, which are not the user's concern
			continue
		}
		if !slices.ContainsFunc(a.says, func(part string) bool { return !strings.Contains(text, part) }) {
			return text
		}
	}
	return ""
}

// tableOf returns the mistakes as a table of Markdown. A is an answer with which the user can repair the mistake, B another answer, and C none.
func tableOf(asked []*answered) string {
	table := &strings.Builder{}
	table.WriteString("| # | mistake | where | answer | |\n|---|---|---|---|---|\n")
	for _, a := range asked {
		text, verdict := a.answer(), "A"
		if text == "" {
			text, verdict = strings.Join(slices.Concat(slices.Collect(maps.Values(a.seen))...), "; "), "B"
		}
		if text == "" {
			verdict = "C"
		}
		text = strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
		fmt.Fprintf(table, "| %d | %s | %s | %s | %s |\n", a.number, a.what, a.where, text, verdict)
	}
	return table.String()
}
