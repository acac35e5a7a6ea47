// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/trace"
)

// request makes the policies log for dropsLease, at most until the end of the run. A later time of another run stays.
func (r *dropsRun) request(ctx context.Context, until time.Time) {
	value := r.leaseEnd(until)
	var annotated []string
	keys := inTurns(slices.Collect(maps.Keys(r.watched.policies)))
	if len(keys) > maxDropPolicies {
		r.note("%d policies select these pods, and only %d are annotated: name a pod", len(keys), maxDropPolicies)
	}
	for _, key := range keys[:min(len(keys), maxDropPolicies)] {
		if ctx.Err() != nil {
			return
		}
		policy := r.watched.policies[key]
		if other := policy.GetAnnotations()[kubeovnv1.AnnotationLogDropsUntil.Key()]; other != r.requests[key] && laterThan(other, value) {
			continue
		}
		_, again := r.requests[key]
		if err := r.annotate(ctx, key, policy, value); err != nil {
			right := "patch " + resourceOf(key.Kind)
			if key.Namespace != "" {
				right += " in namespace " + key.Namespace
			}
			r.note("%s may log nothing: %v", key, missingRight(err, right))
			continue
		}
		if !again {
			annotated = append(annotated, key.String())
		}
	}
	if len(annotated) > 0 {
		r.note("annotated with %s, until the end: %s", kubeovnv1.AnnotationLogDropsUntil.Key(), k8s.Some(annotated, listed))
	}
}

// leaseEnd returns the value of the annotation, by the clock of the API server.
func (r *dropsRun) leaseEnd(until time.Time) string {
	end := time.Now().Add(dropsLease)
	if until.Before(end) {
		end = until.Add(time.Second) // the value has whole seconds
	}
	return end.Add(r.offset).UTC().Format(time.RFC3339)
}

// laterThan reports whether a text is a time that is acceptable to kube-ovn-controller and after another one.
func laterThan(text, than string) bool {
	a, err := time.Parse(time.RFC3339, strings.TrimSpace(text))
	b, otherErr := time.Parse(time.RFC3339, than)
	return err == nil && otherErr == nil && a.After(b) && a.Before(b.Add(kubeovnv1.MaxLogDrops-dropsLease))
}

// annotate writes an annotation. An interrupt does not end the request: the annotation could be written after withdraw.
func (r *dropsRun) annotate(ctx context.Context, key trace.Object, policy client.Object, value string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{kubeovnv1.AnnotationLogDropsUntil.Key(): value}}})
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	if r.kinds[key.Kind], err = r.objects.GroupVersionKindFor(policy); err != nil {
		return fmt.Errorf("find its kind: %w", err)
	}
	before, had := r.requests[key]
	r.requests[key] = value // it is withdrawn, too, if the answer is lost
	err = r.objects.Patch(ctx, r.metadata(key), client.RawPatch(types.MergePatchType, patch))
	switch {
	case err == nil:
		return nil
	case !refused(err):
	case had:
		r.requests[key] = before
	default:
		delete(r.requests, key)
	}
	return fmt.Errorf("annotate it: %w", err)
}

// metadata returns the metadata of an object, of which a patch changes only the annotation.
func (r *dropsRun) metadata(key trace.Object) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	o.SetGroupVersionKind(r.kinds[key.Kind])
	return o
}

// withdraw removes the annotations of this run. Values that others have written stay.
func (r *dropsRun) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deletion)
	defer cancel()
	path := "/metadata/annotations/" + strings.ReplaceAll(kubeovnv1.AnnotationLogDropsUntil.Key(), "/", "~1") // RFC 6901
	for _, key := range slices.SortedFunc(maps.Keys(r.requests), byName) {
		patch, err := json.Marshal([]map[string]string{{"op": "test", "path": path, "value": r.requests[key]}, {"op": "remove", "path": path}})
		if err == nil {
			err = r.objects.Patch(ctx, r.metadata(key), client.RawPatch(types.JSONPatchType, patch))
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) { // invalid: another value is there
			r.note("%s logs until %s, because its annotation %s could not be removed: %v", key, r.requests[key], kubeovnv1.AnnotationLogDropsUntil.Key(), err)
		}
	}
	clear(r.requests)
}

// inTurns sorts policies so that namespaces take turns: a namespace with many policies leaves others their places.
func inTurns(keys []trace.Object) []trace.Object {
	slices.SortFunc(keys, byName)
	turn, count := map[trace.Object]int{}, map[string]int{}
	for _, key := range keys {
		turn[key] = count[key.Namespace]
		count[key.Namespace]++
	}
	slices.SortStableFunc(keys, func(a, b trace.Object) int { return cmp.Compare(turn[a], turn[b]) })
	return keys
}

func byName(a, b trace.Object) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
}

// resourceOf returns the resource of a kind of policies.
func resourceOf(kind string) string {
	switch kind {
	case kindNetworkPolicy:
		return "networkpolicies.networking.k8s.io"
	case kindSecurityGroup:
		return "security-groups.kubeovn.io"
	case kindSubnet:
		return "subnets.kubeovn.io"
	}
	for _, k := range policy.ClusterKinds() {
		if k.Name == kind {
			return k.Resource + "." + trace.GroupPolicies
		}
	}
	return kind
}

// missingRight replaces the error of a request that the user may not make.
func missingRight(err error, right string) string {
	if apierrors.IsForbidden(err) {
		return "you may not " + right
	}
	return err.Error()
}
