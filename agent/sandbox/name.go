// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// Names is the number of names for the host's end of a container's interface. There are two, so that a new device never takes the name of
// a port that Open vSwitch still has: ovs-vswitchd would continue to use the deleted device.
const Names = 2

// HostName returns the name of the host's end of an interface of a container; alternative counts from 0 to Names-1. The name is a hash
// because container IDs may share any prefix, and has 14 characters because the kernel's limit is 15.
func HostName(containerID, ifName string, alternative int) string {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName))
	return hex.EncodeToString(sum[:6]) + [Names]string{"_h", "_g"}[alternative]
}

// Named reports whether a name has the form that HostName and ProbeName return.
func Named(name string) bool { return named(name) }

var named = regexp.MustCompile(`^([0-9a-f]{12}_[hg]|` + ProbePrefix + `[0-9a-f]{10})$`).MatchString
