// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/nodehealth"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// checkReport makes one fault after the other on a node that serves: each one must appear in the report, in its own field only.
func checkReport(t *testing.T, c central, o Options) {
	t.Helper()
	reported := func(what string, holds func(nodehealth.Report) bool) {
		t.Helper()
		supervisortest.Eventually(t, what, func() error {
			r, err := nodehealth.Get(t.Context(), netip.MustParseAddrPort(o.HealthAddress))
			if err == nil && !holds(r) {
				err = fmt.Errorf("report %+v", r)
			}
			return err
		})
	}
	well := func(r nodehealth.Report) bool {
		return r.OpenVSwitch == "" && r.OVNController == "" && r.Southbound == ""
	}
	vsctl := func(args ...string) {
		command(t, "usr/bin/ovs-vsctl", append([]string{"--db=unix:" + o.socket(), "--timeout=60"}, args...)...)
	}
	reported("all is well", func(r nodehealth.Report) bool { return well(r) && r.Ports == 0 && len(r.Unbound) == 0 })

	vsctl("add-port", "br-int", "report0", "--", "set", "Interface", "report0", "type=internal", "external_ids:iface-id=report")
	reported("a port without a logical port is not bound", func(r nodehealth.Report) bool { return well(r) && r.Ports == 1 && len(r.Unbound) == 1 })
	nbctl := func(args ...string) {
		command(t, "usr/bin/ovn-nbctl", append([]string{"--db=unix:" + filepath.Join(filepath.Dir(c.southbound), "ovnnb_db.sock")}, args...)...)
	}
	nbctl("ls-add", "report", "--", "lsp-add", "report", "report")
	reported("the port is bound", func(r nodehealth.Report) bool { return well(r) && r.Ports == 1 && len(r.Unbound) == 0 })
	const podLink = "0123456789ab_h"
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: podLink}, PeerName: "report1"}))
	reported("a pod has no port", func(r nodehealth.Report) bool { return well(r) && slices.Equal(r.Portless, []string{podLink}) })
	vsctl("add-port", "br-int", podLink, "--", "set", "Interface", podLink, "external_ids:iface-id=lost")
	reported("the pod has a port again", func(r nodehealth.Report) bool { return well(r) && len(r.Portless) == 0 })
	vsctl("del-port", "br-int", podLink)
	must.Succeed(t, netlink.LinkDel(must.Value(netlink.LinkByName(podLink))))

	nbctl("ls-del", "report")
	reported("the port is not bound anymore", func(r nodehealth.Report) bool { return well(r) && len(r.Unbound) == 1 })
	vsctl("del-port", "br-int", "report0")

	for _, stopped := range []struct {
		file  string
		fault func(nodehealth.Report) bool
	}{
		{filepath.Join(o.OVNRunDir, "ovn-controller.pid"), func(r nodehealth.Report) bool { return r.OVNController != "" && r.OpenVSwitch == "" }},
		{filepath.Join(o.RunDir, "ovs-vswitchd.pid"), func(r nodehealth.Report) bool { return r.OpenVSwitch != "" && r.OVNController == "" }},
		{filepath.Join(o.RunDir, "ovsdb-server.pid"), func(r nodehealth.Report) bool { return r.OpenVSwitch != "" && r.OVNController == "" }},
	} {
		pid := must.Value(strconv.Atoi(strings.TrimSpace(string(must.Value(os.ReadFile(stopped.file))))))
		must.Succeed(t, syscall.Kill(pid, syscall.SIGSTOP))
		reported(filepath.Base(stopped.file)+": the daemon is stopped", stopped.fault)
		must.Succeed(t, syscall.Kill(pid, syscall.SIGCONT))
		reported("all is well again", well)
	}
}
