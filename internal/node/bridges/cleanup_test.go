// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-net/kiln/internal/node/bridges"
	"github.com/kiln-net/kiln/supervisor/ovs"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

func init() {
	bridges.CleanUp = func(t *testing.T, o bridges.Options, config string) error {
		if err := os.MkdirAll(filepath.Join(config, "kiln"), 0o700); err != nil { // the sign that something is left to remove
			return err
		}
		return ovs.CleanUp(t.Context(), ovs.Options{
			Datapath: o.Datapath, Node: o.Node, RunDir: o.RunDir, OVNRunDir: supervisortest.RunDir(t), ConfigDir: config, Log: o.Log,
			Programs: ovs.Programs{
				Tool:   supervisortest.Program(t, "usr/bin/ovsdb-tool"),
				Server: supervisortest.Program(t, "usr/sbin/ovsdb-server"), Switch: supervisortest.Program(t, "usr/lib/openvswitch-switch/ovs-vswitchd"),
				Schema: supervisortest.File(t, "usr/share/openvswitch/vswitch.ovsschema"),
			},
		})
	}
}
