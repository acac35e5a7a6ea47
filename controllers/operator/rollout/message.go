// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import "fmt"

// maxListed is the number of texts of a list that messages contain.
const maxListed = 3

// Few shortens a list of texts for a message: troubles, or names of nodes.
func Few(texts []string) []string {
	if len(texts) <= maxListed {
		return texts
	}
	return append(texts[:maxListed:maxListed], fmt.Sprintf("and %d more", len(texts)-maxListed))
}
