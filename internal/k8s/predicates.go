// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// ComesOrGoes passes creations and deletions, and no updates.
var ComesOrGoes = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}

// Changed passes all creations and deletions, and updates in which the result of view differs. view returns the fields that the
// watcher reads.
func Changed[T client.Object, V comparable](view func(T) V) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(T)
		after, isT := e.ObjectNew.(T)
		return !ok || !isT || view(before) != view(after)
	}}
}

// NodeRecords passes the events of IP objects of nodes' ports that changed passes.
func NodeRecords(changed predicate.Predicate) predicate.Predicate {
	return predicate.And(predicate.NewPredicateFuncs(func(o client.Object) bool {
		ip, ok := o.(*kubeovnv1.IP)
		return ok && NodeOf(ip) != ""
	}), changed)
}
