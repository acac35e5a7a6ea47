// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// link is the mutable state of a session: its endpoints and its current connection.
type link struct {
	mu        sync.Mutex
	endpoints []string
	changed   chan struct{}    // closed and replaced when endpoints change
	conn      *conn            // nil while disconnected
	endpoint  string           // of conn
	ready     chan struct{}    // closed while connected
	failures  map[string]error // by endpoint, the error of the last attempt
}

func newLink(endpoints []string) link {
	return link{endpoints: endpoints, changed: make(chan struct{}), ready: make(chan struct{})}
}

func (l *link) setEndpoints(endpoints []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Equal(l.endpoints, endpoints) {
		return
	}
	l.endpoints, l.failures = endpoints, nil
	close(l.changed)
	l.changed = make(chan struct{})
	if l.conn != nil && !slices.Contains(endpoints, l.endpoint) {
		l.conn.close()
	}
}

// candidates returns the endpoints, and a channel that is closed when they change.
func (l *link) candidates() ([]string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.endpoints), l.changed
}

func (l *link) up(c *conn, endpoint string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.endpoint, l.failures = c, endpoint, nil
	close(l.ready)
	if !slices.Contains(l.endpoints, endpoint) {
		c.close()
	}
}

func (l *link) down() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = nil
	l.ready = make(chan struct{})
}

func (l *link) current() *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

func (l *link) connected() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

func (l *link) failed(endpoint string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures == nil {
		l.failures = map[string]error{}
	}
	if endpoint != "" {
		err = fmt.Errorf("%s: %w", endpoint, err)
	}
	l.failures[endpoint] = err
}

// lastError returns the last failure of each endpoint since the last connection.
func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []error
	for _, endpoint := range slices.Sorted(maps.Keys(l.failures)) {
		all = append(all, l.failures[endpoint])
	}
	return errors.Join(all...)
}
