// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manyWritten is how many writes a cache is never behind.
const manyWritten = 4096

// believedFor is how long a write is waited for that the cache does not show: far longer than a cache lags behind. What is not there by then is
// no more, as after etcd was restored from a backup, whose versions are older.
const believedFor = time.Minute

// versions are the newest that this process has made of objects. What is forgotten was made many writes ago.
type versions struct {
	mu         sync.Mutex
	young, old map[types.UID]madeVersion
	now        func() time.Time
}

type madeVersion struct {
	version string
	at      time.Time
}

var written = versions{now: time.Now}

func (v *versions) add(obj client.Object) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.young == nil || len(v.young) == manyWritten {
		v.young, v.old = map[types.UID]madeVersion{}, v.young
	}
	v.young[obj.GetUID()] = madeVersion{obj.GetResourceVersion(), v.now()}
}

// newerThan reports whether what was read of an object is older than what this process has made of it.
func (v *versions) newerThan(read client.Object) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	made, ok := v.young[read.GetUID()]
	if !ok {
		made = v.old[read.GetUID()]
	}
	order, err := resourceversion.CompareResourceVersion(read.GetResourceVersion(), made.version)
	return err == nil && order < 0 && v.now().Sub(made.at) < believedFor
}
