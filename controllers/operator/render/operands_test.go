// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/workload"
)

// TestOperandsAreComplete checks each row of the table against the objects, the permissions and the documentation.
func TestOperandsAreComplete(t *testing.T) {
	c := Config{Namespace: "kube-system", Image: "kiln", Spec: v1alpha1.OVNClusterSpec{}}
	c.Spec.Central.Backup.PersistentVolumeClaim = &v1alpha1.BackupClaim{ClaimName: "backups"}
	c.Spec.Pinger.Mode = v1alpha1.PingerEnabled
	c.Spec.Speaker = &v1alpha1.Speaker{ASN: 64512}
	accounts := map[string]bool{} // true if the account may write labels or annotations of pods
	for _, a := range accesses(false, false) {
		accounts[a.account] = slices.ContainsFunc(slices.Concat(a.cluster, a.own), func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, "pods/status") && slices.Contains(r.Verbs, "patch")
		})
	}
	architecture, err := os.ReadFile("../../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range Operands {
		t.Run(o.Name, func(t *testing.T) {
			objects := o.Objects(c)
			i := slices.IndexFunc(objects, func(obj Object) bool { return workload.Template(obj) != nil })
			if i < 0 {
				t.Fatal("has no workload")
			}
			operand := objects[i]
			gvk, err := apiutil.GVKForObject(operand, scheme.Scheme)
			if err != nil || gvk.Kind != o.Kind || operand.GetName() != o.Name || operand.GetLabels()[v1alpha1.ComponentLabel] != o.Name {
				t.Errorf("its workload is %s %s (%v)", gvk.Kind, operand.GetName(), err)
			}
			template := workload.Template(operand)
			if template.Labels[v1alpha1.ComponentLabel] != o.Name {
				t.Errorf("its pods are of component %s", template.Labels[v1alpha1.ComponentLabel])
			}
			account, token := template.Spec.ServiceAccountName, template.Spec.AutomountServiceAccountToken
			writes, known := accounts[account]
			if !known && (account != "" || token == nil || *token) {
				t.Errorf("its ServiceAccount %q is not in accesses", account)
			}
			if own := o.Name != ImageName && o.Name != BackupsName; own && writes != o.LabelsPods { // the others borrow an account
				t.Errorf("its account may patch pods/status: %v, and LabelsPods is %v", writes, o.LabelsPods)
			}
			if (o.Removal == 0) != (o.Name == CleanUpName) {
				t.Errorf("it ends in step %d of a removal", o.Removal)
			}
			if o.Stage != "" && template.Annotations[TemplateAnnotation] == "" {
				t.Error("upgrades replace its pods, and its template has no stamp")
			}
			if !strings.Contains(string(architecture), "`"+o.Name+"`") {
				t.Error("docs/architecture.md does not name it in the table of processes")
			}
		})
	}
	if o := OperandOf("none"); o.Name != "none" || o.Kind != "" {
		t.Errorf("an unknown operand: %+v", o)
	}
}
