// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manyWritten is more writes than a cache ever lags behind.
const manyWritten = 4096

// believedFor is how long the cache may not show a write: far longer than a cache lags. A write that is missing after that time
// does not exist any longer, for example because etcd was restored from a backup, which has older versions.
const believedFor = time.Minute

// versions holds the newest resource versions that this process wrote. Old entries are discarded after many more writes.
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

// newerThan reports whether read is older than the last version of the object that this process wrote.
func (v *versions) newerThan(read client.Object) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	made, ok := v.young[read.GetUID()]
	if !ok {
		made = v.old[read.GetUID()]
	}
	return OlderVersion(read.GetResourceVersion(), made.version) && v.now().Sub(made.at) < believedFor
}
