// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import "github.com/ovn-kubernetes/libovsdb/client"

// ErrNotFound reports that a replica does not have the row.
var ErrNotFound = client.ErrNotFound
