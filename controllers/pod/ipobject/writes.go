// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipobject

import (
	"sync"
	"time"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// answersLast is how long an answer overrides a cache that does not show it. It is far longer than a cache lags behind. It is finite,
// because an object that is deleted while the watch is interrupted never reaches the cache.
const answersLast = time.Minute

// ipWrites are the API server's responses to writes of IP objects that the cache may not show yet. Without them a stale cache would cause
// a second write.
type ipWrites struct {
	mu  sync.Mutex
	ips map[string]answer
}

type answer struct {
	ip      *kubeovnv1.IP
	deleted bool
	at      time.Time
}

// wrote stores the response to a creation or a patch.
func (a *ipWrites) wrote(ip *kubeovnv1.IP) { a.put(ip.Name, answer{ip: ip, at: time.Now()}) }

// deleted records that an IP object was deleted.
func (a *ipWrites) deleted(ip *kubeovnv1.IP) {
	a.put(ip.Name, answer{ip: ip, deleted: true, at: time.Now()})
}

func (a *ipWrites) put(name string, said answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ips == nil {
		a.ips = map[string]answer{}
	}
	a.ips[name] = said
}

// forget drops the answer about a deleted IP object.
func (a *ipWrites) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ips, name)
}

// newest returns the newer of the cached object, nil for none, and the last answer. believed is how long the answer still overrides the
// cache; it is 0 if newest returns the cached object.
func (a *ipWrites) newest(name string, cached *kubeovnv1.IP) (ip *kubeovnv1.IP, believed time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	said, ok := a.ips[name]
	if !ok {
		return cached, 0
	}
	shown := cached != nil && !k8s.OlderVersion(cached.ResourceVersion, said.ip.ResourceVersion)
	if said.deleted {
		shown = cached == nil || cached.UID != said.ip.UID
	}
	believed = answersLast - time.Since(said.at)
	if believed <= 0 || shown {
		delete(a.ips, name)
		return cached, 0
	}
	if said.deleted {
		return nil, believed
	}
	return said.ip, believed
}
