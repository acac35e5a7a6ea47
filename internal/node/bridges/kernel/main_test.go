// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestMain(m *testing.M) { os.Exit(eventually.Main(m)) }

func TestABridgeWhoseAddressesHaveEndedIsNotComplete(t *testing.T) {
	s := State{Addresses: []Address{{Prefix: netip.MustParsePrefix("192.0.2.50/24"), Valid: SinceBoot() - time.Second}}}
	complete, err := s.On(must.Value(netlink.LinkByName("lo")))
	if complete || err != nil {
		t.Errorf("complete: %t, %v", complete, err)
	}
}
