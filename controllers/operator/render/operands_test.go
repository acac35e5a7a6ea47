// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// TestOperandsAreComplete checks each row of the table against the objects, the permissions and the documentation.
func TestOperandsAreComplete(t *testing.T) {
	c := Config{Namespace: "kube-system", Image: "kiln", Spec: v1alpha1.OVNClusterSpec{}}
	c.Spec.Central.Backup.PersistentVolumeClaim = &v1alpha1.BackupClaim{ClaimName: "backups"}
	accounts := map[string]bool{}
	for _, o := range AccessObjects(c) {
		if a, is := o.(*corev1.ServiceAccount); is {
			accounts[a.Name] = true
		}
	}
	architecture, err := os.ReadFile("../../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range Operands {
		t.Run(o.Name, func(t *testing.T) {
			objects := o.Objects(c)
			i := slices.IndexFunc(objects, func(obj Object) bool { return Template(obj) != nil })
			if i < 0 {
				t.Fatal("has no workload")
			}
			workload := objects[i]
			gvk, err := apiutil.GVKForObject(workload, scheme.Scheme)
			if err != nil || gvk.Kind != o.Kind || workload.GetName() != o.Name || workload.GetLabels()[ComponentLabel] != o.Name {
				t.Errorf("its workload is %s %s (%v)", gvk.Kind, workload.GetName(), err)
			}
			template := Template(workload)
			if template.Labels[ComponentLabel] != o.Name {
				t.Errorf("its pods are of component %s", template.Labels[ComponentLabel])
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
