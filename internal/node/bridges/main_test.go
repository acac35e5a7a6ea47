// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	programs, err := os.MkdirTemp("", "kiln-programs")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(programs)
	if err := prepared.UseImagePrograms(programs); err != nil {
		return 1, err
	}
	return eventually.Main(m, eventually.Allowed{
		"TestAStoppedProcessDoesNotCutTheNodeOff":                               {Why: "the guard acts after the trial and the time in which a process may hold the lock, 3 s and 5 s", Base: 12 * time.Second},
		"TestAdvertisedEntriesAreRenewed":                                       {Why: "lifetimes of 16 s, of which half passes before they are renewed, and seven eighths before the interface returns", Base: 25 * time.Second},
		"TestRefusalsNameTheirCause/a_default_route_from_router_advertisements": {Why: "routers may send an advertisement each 3 s only, so that each has 3.5 s to answer", Base: 8 * time.Second},
		"TestALeasedAddressIsRenewed":                                           {Why: "a lease of 16 s, of which half passes before it is renewed, and seven eighths before the interface returns", Base: 25 * time.Second},
	}), nil
}
