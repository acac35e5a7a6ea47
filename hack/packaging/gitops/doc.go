// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitops tests config/gitops.
package gitops
