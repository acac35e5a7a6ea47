// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/ovs"
)

func TestMembersAreAskedWhereTheyAnswer(t *testing.T) {
	if render.Northbound.AdminPort != adminapi.PortNorthbound || render.Southbound.AdminPort != adminapi.PortSouthbound {
		t.Errorf("admin ports are %d and %d; members answer on %d and %d", render.Northbound.AdminPort, render.Southbound.AdminPort,
			adminapi.PortNorthbound, adminapi.PortSouthbound)
	}
	if render.ChassisSigner != ovs.SignerName {
		t.Errorf("requests to %q are granted; nodes ask %q", render.ChassisSigner, ovs.SignerName)
	}
	if certs.ChassisTrustFile != ovs.ChassisTrustFile {
		t.Errorf("the CA of chassis certificates is written to %q; nodes read %q", certs.ChassisTrustFile, ovs.ChassisTrustFile)
	}
}
