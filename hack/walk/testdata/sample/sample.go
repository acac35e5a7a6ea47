// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sample has calls for the test of walk.
package sample

import "github.com/kiln-net/kiln/hack/walk/testdata/sample/deep"

type applier interface{ Apply() }

// Job is done through an interface.
type Job struct{ to applier }

// Run calls Apply through a closure and an interface, and count on the side.
func (j *Job) Run() {
	count()
	func() { commit(j.to) }()
}

// New makes a Job.
func New() *Job { return &Job{to: &deep.Store{}} }

func commit(a applier) { a.Apply() }

func count() { deep.Count() }
