// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"os"
	"slices"
	"strings"
	"testing"

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
	accounts := map[string]bool{}
	for _, a := range accesses(false) {
		accounts[a.account] = true
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
			if !accounts[account] && (account != "" || token == nil || *token) {
				t.Errorf("its ServiceAccount %q is not in accesses", account)
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
