// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"slices"

	"github.com/kiln-net/kiln/internal/k8s"
)

// Drain empties the queue of a controller and returns the names of its requests, sorted.
func Drain(q k8s.Queue) []string {
	var names []string
	for q.Len() > 0 {
		req, _ := q.Get()
		q.Done(req)
		names = append(names, req.Name)
	}
	slices.Sort(names)
	return names
}
