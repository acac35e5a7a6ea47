// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// answersLast is how long an answer is believed against a cache that does not show it: far longer than a cache lags behind, and not
// for good, because an object that someone deletes while the watch is interrupted is never in the cache.
const answersLast = time.Minute

// answers are what the API server said to writes of IP objects that the cache may not show yet. Without them a cache that lags
// behind would cause a second write.
type answers struct {
	mu  sync.Mutex
	ips map[string]answer
}

type answer struct {
	ip      *kubeovnv1.IP
	deleted bool
	at      time.Time
}

// wrote keeps what the server answered to a creation or a patch.
func (a *answers) wrote(ip *kubeovnv1.IP) { a.put(ip.Name, answer{ip: ip, at: time.Now()}) }

// deleted keeps that an IP object is gone.
func (a *answers) deleted(ip *kubeovnv1.IP) {
	a.put(ip.Name, answer{ip: ip, deleted: true, at: time.Now()})
}

func (a *answers) put(name string, said answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ips == nil {
		a.ips = map[string]answer{}
	}
	a.ips[name] = said
}

// forget drops what is known of an IP object that is gone.
func (a *answers) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ips, name)
}

// newest returns the newer of what the cache has, nil for none, and what was written. believed says for how long yet it is the latter.
func (a *answers) newest(name string, cached *kubeovnv1.IP) (ip *kubeovnv1.IP, believed time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	said, ok := a.ips[name]
	if !ok {
		return cached, 0
	}
	believed = answersLast - time.Since(said.at)
	if believed <= 0 || said.isShown(cached) {
		delete(a.ips, name)
		return cached, 0
	}
	if said.deleted {
		return nil, believed
	}
	return said.ip, believed
}

// isShown reports whether the cache is as new as the answer.
func (a answer) isShown(cached *kubeovnv1.IP) bool {
	switch {
	case a.deleted:
		return cached == nil || cached.UID != a.ip.UID
	case cached == nil:
		return false
	}
	return !older(cached.ResourceVersion, a.ip.ResourceVersion)
}

// older reports whether one resource version is from before another.
func older(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
