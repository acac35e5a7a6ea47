// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schema holds the database schemas of OVN 25.03 and Open vSwitch 3.5 as released.
package schema

import _ "embed" // for the schemas

var (
	// Northbound is the schema of OVN_Northbound.
	//go:embed ovn-nb.ovsschema
	Northbound []byte
	// Southbound is the schema of OVN_Southbound.
	//go:embed ovn-sb.ovsschema
	Southbound []byte
	// VSwitch is the schema of Open_vSwitch.
	//go:embed vswitch.ovsschema
	VSwitch []byte
)
