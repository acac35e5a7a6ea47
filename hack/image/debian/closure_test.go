// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const index = `Package: ovn-host
Version: 25.03.0-1
Architecture: amd64
Pre-Depends: init-system-helpers (>= 1.54~)
Depends: ovn-common (= 25.03.0-1), kmod | module-init-tools, libc6 (>= 2.38),
Filename: pool/main/o/ovn/ovn-host_25.03.0-1_amd64.deb
SHA256: 00

Package: ovn-common
Version: 25.03.0-1
Architecture: amd64
Depends: libc6, awk-of-yore | python3:any, ovn-host
Filename: pool/main/o/ovn/ovn-common_25.03.0-1_amd64.deb

Package: libc6
Version: 2.41
Architecture: amd64
Description: a text
 Package: not-a-field

Package: python3
Version: 3.13
Architecture: amd64
`

func TestClosureOfDependencies(t *testing.T) {
	all, err := parseIndex(strings.NewReader(strings.ReplaceAll(index, "2.38),\n", "2.38)\n")))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := all["ovn-host"].Package, (Package{"ovn-host", "25.03.0-1", "amd64", "00", "pool/main/o/ovn/ovn-host_25.03.0-1_amd64.deb"}); got != want {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		name           string
		wanted, omit   []string
		want           []string
		failureMention string
	}{
		{"a cycle ends, and the first alternative that exists counts", []string{"ovn-host"}, []string{"init-system-helpers", "kmod"}, []string{"libc6", "ovn-common", "ovn-host", "python3"}, ""},
		{"an omitted alternative omits the dependency", []string{"ovn-host"}, []string{"init-system-helpers", "kmod", "python3"}, []string{"libc6", "ovn-common", "ovn-host"}, ""},
		{"a dependency that no package meets", []string{"ovn-host"}, []string{"kmod"}, nil, "init-system-helpers"},
		{"a package that does not exist", []string{"ovn-vtep"}, nil, nil, "ovn-vtep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			packages, err := closure(all, c.wanted, c.omit)
			if c.failureMention != "" {
				if err == nil || !strings.Contains(err.Error(), c.failureMention) {
					t.Errorf("error %v does not name %s", err, c.failureMention)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range packages {
				got = append(got, p.Name)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMirrorsOfApt(t *testing.T) {
	for _, c := range []struct {
		name, targets string
		want          mirrors
	}{
		{"Debian's own", "bookworm main http://d.example/debian/\nbookworm-updates main http://d.example/debian/\nbookworm-security main http://s.example/debian-security/\n", mirrors{"http://d.example/debian", "http://s.example/debian-security"}},
		{"archives of others first", "trixie main http://o.example/prod/\ntrixie-pgdg main http://p.example/apt/\nnodistro main http://n.example/debian\ntrixie contrib http://d.example/x/debian/\ntrixie main http://d.example/debian/\n", mirrors{"http://d.example/debian", "http://d.example/debian-security"}},
		{"none", "noble main http://u.example/ubuntu/\n", mirrors{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := parseTargets(c.targets); got != c.want {
				t.Errorf("%+v; want %+v", got, c.want)
			}
		})
	}
	m := mirrors{"http://d.example/debian", "http://s.example/debian-security"}
	if got := m.uri(Package{Path: "pool/updates/main/o/openssl/x.deb"}); got != "http://s.example/debian-security/pool/updates/main/o/openssl/x.deb" {
		t.Error(got)
	}
}
