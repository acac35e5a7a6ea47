// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/version"
)

// fakeVersions are the versions that pods report, by port.
type fakeVersions struct {
	mu       sync.Mutex
	programs map[uint16]version.Programs
	asked    int
}

func (f *fakeVersions) get(_ context.Context, address netip.AddrPort) (version.Programs, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	programs, isKnown := f.programs[address.Port()]
	if !isKnown {
		return programs, errors.New("404 Not Found")
	}
	return programs, nil
}

func (f *fakeVersions) set(component string, programs version.Programs) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.programs[render.OperandOf(component).VersionPort] = programs
}

// reset makes every pod report nothing.
func (f *fakeVersions) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.programs)
}
