// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/internal/pki"
)

// issuerStatus is the progress of the issuer of the CAs, for the conditions.
type issuerStatus struct {
	// missing describes, by CA name, the certificates that the issuer has not issued yet.
	missing map[string]string
	// overdue marks the missing CAs that expire soon.
	overdue map[string]bool
	// waiting lists steps that complete by themselves; troubles lists problems that need a person.
	waiting, troubles []string
	// joining is the time at which the last of the new CAs begins to sign; zero if there are none.
	joining time.Time
}

// note records the state of a CA after its Advance.
func (i *issuerStatus) note(name string, a *pki.Authority, s pki.Rotation, now time.Time) {
	until, issued := a.Signing()
	authorityEnd.DeletePartialMatch(map[string]string{"authority": name})
	madeBy := "operator"
	if issued {
		madeBy = "issuer"
	}
	authorityEnd.WithLabelValues(name, madeBy).Set(float64(until.Unix()))
	at := a.Joining()
	if at.After(i.joining) {
		i.joining = at
	}
	if !s.ByIssuer || !at.IsZero() {
		return
	}
	overdue := issued && !now.Before(a.Overdue())
	switch {
	case overdue:
		i.miss(name, fmt.Sprintf("authority %s is good until %s and has no successor: ", name, until.UTC().Format(time.RFC3339)), true)
	case s.Issued == nil:
		i.miss(name, fmt.Sprintf("authority %s: ", name), false)
	}
}

func (i *issuerStatus) miss(name, what string, overdue bool) {
	if i.missing == nil {
		i.missing, i.overdue = map[string]string{}, map[string]bool{}
	}
	i.missing[name], i.overdue[name] = what, overdue
}

// trouble returns the message of the conditions: the problems, and that the existing CAs stay in use.
func (i *issuerStatus) trouble() string {
	return strings.Join(rollout.Few(i.troubles), "; ") + "; until then the authorities that are there stay"
}

// progressing returns the condition Progressing of an OVNCluster that waits for nothing else.
func (i *issuerStatus) progressing() metav1.Condition {
	switch {
	case len(i.troubles) > 0:
		return newCondition(v1alpha1.ConditionProgressing, false, reasonUnissued, i.trouble())
	case len(i.waiting) > 0:
		return newCondition(v1alpha1.ConditionProgressing, true, reasonOrdered, "waiting for "+strings.Join(rollout.Few(i.waiting), "; "))
	case !i.joining.IsZero():
		return newCondition(v1alpha1.ConditionProgressing, true, reasonJoining,
			"new CAs are trusted next to the current ones, and sign from "+i.joining.UTC().Format(time.RFC3339))
	}
	return newCondition(v1alpha1.ConditionProgressing, false, reasonAsWanted, "everything is as specified")
}

// explain records why cert-manager has not issued a CA. It uses the message of the newest CertificateRequest to this
// issuer, or else the Certificate's.
func (r *Reconciler) explain(ctx context.Context, p *pass, name string) error {
	key := objectKey{certificateKind, types.NamespacedName{Namespace: r.Namespace, Name: issuedPrefix + name}}
	object, err := r.cached(ctx, key)
	if err != nil {
		return err
	}
	certificate, _ := object.(*unstructured.Unstructured)
	refusal, err := r.refusal(ctx, certificate)
	if err != nil {
		return err
	}
	what := p.issuer.missing[name]
	at := fmt.Sprintf("Certificate %s/%s: ", r.Namespace, key.Name)
	switch {
	case refusal != "":
		p.issuer.troubles = append(p.issuer.troubles, what+at+refusal)
	case p.issuer.overdue[name]:
		p.issuer.troubles = append(p.issuer.troubles, what+"see why cert-manager does not renew "+strings.TrimSuffix(at, ": "))
	case len(p.issuer.troubles) == 0:
		_, message := readiness(certificate)
		p.issuer.waiting = append(p.issuer.waiting, what+at+message)
	}
	return nil
}

// refusal returns the message of a Certificate's newest request to its issuer if the request was not granted, or an empty
// string.
func (r *Reconciler) refusal(ctx context.Context, certificate *unstructured.Unstructured) (string, error) {
	if certificate == nil {
		return "", nil
	}
	var requests unstructured.UnstructuredList
	requests.SetGroupVersionKind(requestKind)
	if err := r.cache.List(ctx, &requests, client.InNamespace(r.Namespace)); err != nil {
		return "", fmt.Errorf("list CertificateRequests: %w", err)
	}
	var newest *unstructured.Unstructured
	for i := range requests.Items {
		request := &requests.Items[i]
		if !metav1.IsControlledBy(request, certificate) || !equality.Semantic.DeepEqual(issuerOf(request), issuerOf(certificate)) {
			continue
		}
		created := request.GetCreationTimestamp()
		if newest == nil || created.After(newest.GetCreationTimestamp().Time) {
			newest = request
		}
	}
	status, message := readiness(newest)
	if status != string(metav1.ConditionFalse) {
		return "", nil
	}
	return message, nil
}

func issuerOf(u *unstructured.Unstructured) map[string]any {
	ref, _, _ := unstructured.NestedMap(u.Object, "spec", "issuerRef")
	return ref
}

// readiness returns the status and the message of the condition Ready.
func readiness(u *unstructured.Unstructured) (status, message string) {
	const silence = "cert-manager has not said anything of it: see that it runs"
	if u == nil {
		return "", silence
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if condition, is := c.(map[string]any); is && condition["type"] == "Ready" {
			status, _ = condition["status"].(string)
			message, _ = condition["message"].(string)
			return status, message
		}
	}
	return "", silence
}
