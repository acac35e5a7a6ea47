// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"slices"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Drain empties the queue of a controller and returns the names of its requests, sorted.
func Drain(q workqueue.TypedRateLimitingInterface[ctrl.Request]) []string {
	var names []string
	for q.Len() > 0 {
		req, _ := q.Get()
		q.Done(req)
		names = append(names, req.Name)
	}
	slices.Sort(names)
	return names
}
