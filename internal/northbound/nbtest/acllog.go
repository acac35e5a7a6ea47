// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"os"
	"path/filepath"
	"strings"
)

// LogPackets makes ovn-controller log packets that match ACLs with a log.
func (c *Chassis) LogPackets() {
	c.northd.nb.t.Helper()
	c.run("usr/bin/ovn-appctl", "-t", filepath.Join(c.database.dir, "ovn-controller.ctl"), "vlog/set", "acl_log:console:info")
}

// Logged returns the complete lines of ovn-controller's log.
func (c *Chassis) Logged() []string {
	c.northd.nb.t.Helper()
	content, err := os.ReadFile(filepath.Join(c.database.dir, "ovn-controller.log"))
	if err != nil {
		c.northd.nb.t.Fatal(err)
	}
	lines := strings.Split(string(content), "\n")
	return lines[:len(lines)-1]
}
