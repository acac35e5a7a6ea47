// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// Names that the host's end of a container's interface may have. There are two, so that a new device never takes the name of one
// that Open vSwitch still holds: ovs-vswitchd would go on with the device that is gone.
const Names = 2

// HostName is the name of the host's end of an interface of a container; alternative counts from 0 to Names-1. It is a hash,
// because container IDs may share any prefix, and 14 characters long, because 15 are the kernel's limit.
func HostName(containerID, ifName string, alternative int) string {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName))
	return hex.EncodeToString(sum[:6]) + [Names]string{"_h", "_g"}[alternative]
}

// Named reports whether HostName or ProbeName may have made a name.
func Named(name string) bool { return named(name) }

var named = regexp.MustCompile(`^([0-9a-f]{12}_[hg]|` + ProbePrefix + `[0-9a-f]{10})$`).MatchString
