// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

func testAttachment() Attachment {
	return Attachment{
		Name: "b66785ef9b54_h", LogicalPort: "web.shop", PodUID: "u1", PodName: "web", PodNamespace: "shop",
		ContainerID: "c1", IfName: "eth0", Network: "kube-ovn", NetNS: "/run/netns/n1", MAC: "02:00:00:00:00:09",
		Addresses:  []netip.Addr{netip.MustParseAddr("10.16.0.9"), netip.MustParseAddr("fd00:10:16::9")},
		CIDRs:      []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")},
		Gateways:   []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00:10:16::1")},
		ProbePorts: []uint16{80, 65535},
	}
}

func TestAttachmentsAreReadAsTheyWereWritten(t *testing.T) {
	for name, change := range map[string]func(*Attachment){
		"a pod of two families":    func(*Attachment) {},
		"a pod that is not probed": func(a *Attachment) { a.ProbePorts = nil },
	} {
		t.Run(name, func(t *testing.T) {
			want := testAttachment()
			change(&want)
			row := &vswitch.Interface{Name: want.Name, ExternalIDs: want.externalIDs()}
			got, ok := attachmentOf(row)
			if !ok {
				t.Fatalf("no attachment in %v", row.ExternalIDs)
			}
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("(-written +read):\n%s", diff)
			}
		})
	}
}

func TestRowsOfOthersAreNoAttachments(t *testing.T) {
	for _, key := range []string{keyVendor, keyContainer} {
		ids := testAttachment().externalIDs()
		delete(ids, key)
		if a, ok := attachmentOf(&vswitch.Interface{Name: "p", ExternalIDs: ids}); ok {
			t.Errorf("a row without %s is %+v", key, a)
		}
	}
}

func TestAPortIsTheAttachmentOfItsValues(t *testing.T) {
	a, failure := testAttachment(), "no such device"
	for name, c := range map[string]struct {
		change func(*vswitch.Interface)
		want   bool
	}{
		"the same":                       {func(*vswitch.Interface) {}, true},
		"with values of ovn-controller":  {func(row *vswitch.Interface) { row.ExternalIDs[keyInstalled] = "true" }, true},
		"with an address of another pod": {func(row *vswitch.Interface) { row.ExternalIDs[keyAddresses] = "10.16.0.10" }, false},
		"of an internal port":            {func(row *vswitch.Interface) { row.Type = "internal" }, false},
		"without its device":             {func(row *vswitch.Interface) { row.Error = &failure }, false},
	} {
		row := &vswitch.Interface{Name: a.Name, ExternalIDs: maps.Clone(a.externalIDs())}
		c.change(row)
		if got := a.is(row); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
