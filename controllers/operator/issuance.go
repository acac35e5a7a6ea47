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
	"github.com/kiln-net/kiln/internal/pki"
)

// issuance is how far an issuer is with the authorities, for the conditions.
type issuance struct {
	// missing has, by authority, what the issuer should have made by now.
	missing map[string]string
	// overdue: those of them that expire before long.
	overdue map[string]bool
	// waiting is what comes by itself, troubles what needs a person.
	waiting, troubles []string
	// joining is when the last of the new authorities begins to sign; zero when there is none.
	joining time.Time
}

// note enters how an authority is after its Advance.
func (i *issuance) note(name string, a *pki.Authority, s pki.Succession, now time.Time) {
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

func (i *issuance) miss(name, what string, overdue bool) {
	if i.missing == nil {
		i.missing, i.overdue = map[string]string{}, map[string]bool{}
	}
	i.missing[name], i.overdue[name] = what, overdue
}

// trouble says what to do.
func (i *issuance) trouble() string {
	return strings.Join(few(i.troubles), "; ") + "; until then the authorities that are there stay"
}

// progressing is the condition of an OVNCluster that has nothing else to wait for.
func (i *issuance) progressing() metav1.Condition {
	switch {
	case len(i.troubles) > 0:
		return newCondition(v1alpha1.ConditionProgressing, false, reasonUnissued, i.trouble())
	case len(i.waiting) > 0:
		return newCondition(v1alpha1.ConditionProgressing, true, reasonOrdered, "waiting for "+strings.Join(few(i.waiting), "; "))
	case !i.joining.IsZero():
		return newCondition(v1alpha1.ConditionProgressing, true, reasonJoining,
			"new authorities are trusted beside those that sign, and sign from "+i.joining.UTC().Format(time.RFC3339))
	}
	return newCondition(v1alpha1.ConditionProgressing, false, reasonAsWanted, "everything is as specified")
}

// explain says why an authority has not been issued, in cert-manager's own words: what the newest request to this issuer says, or else the
// Certificate.
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
	what := p.issuance.missing[name]
	at := fmt.Sprintf("Certificate %s/%s: ", r.Namespace, key.Name)
	switch {
	case refusal != "":
		p.issuance.troubles = append(p.issuance.troubles, what+at+refusal)
	case p.issuance.overdue[name]:
		p.issuance.troubles = append(p.issuance.troubles, what+"see why cert-manager does not renew "+strings.TrimSuffix(at, ": "))
	case len(p.issuance.troubles) == 0:
		_, message := readiness(certificate)
		p.issuance.waiting = append(p.issuance.waiting, what+at+message)
	}
	return nil
}

// refusal is what the newest request of a Certificate to its issuer says when it is not granted; empty when it has said nothing.
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

// readiness is the status and the message of the condition Ready.
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
