// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import "github.com/ovn-kubernetes/libovsdb/client"

// ErrNotFound says that a replica holds no such row.
var ErrNotFound = client.ErrNotFound
