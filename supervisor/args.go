// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

// TLSArgs returns the TLS options that all daemons of OVN and Open vSwitch share. The daemons reload the files when they change.
func TLSArgs(key, certificate, authority string) []string {
	return []string{
		"--private-key=" + key,
		"--certificate=" + certificate,
		"--ca-cert=" + authority,
		"--ssl-protocols=TLSv1.2+",
	}
}
