// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manyWritten is how many writes a cache is never behind.
const manyWritten = 4096

// versions are the newest that this process has made of objects. What is forgotten was made many writes ago.
type versions struct {
	mu         sync.Mutex
	young, old map[types.UID]string
}

var written versions

func (v *versions) add(obj client.Object) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.young == nil || len(v.young) == manyWritten {
		v.young, v.old = map[types.UID]string{}, v.young
	}
	v.young[obj.GetUID()] = obj.GetResourceVersion()
}

// newerThan reports whether what was read of an object is older than what this process has made of it.
func (v *versions) newerThan(read client.Object) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	made, ok := v.young[read.GetUID()]
	if !ok {
		made = v.old[read.GetUID()]
	}
	order, err := resourceversion.CompareResourceVersion(read.GetResourceVersion(), made)
	return err == nil && order < 0
}
