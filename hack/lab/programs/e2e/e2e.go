// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package e2e imports the package that `go test -c k8s.io/kubernetes/test/e2e` builds, so that this module requires all of its
// dependencies.
package e2e

import _ "k8s.io/kubernetes/test/e2e"
