// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// kubectl-ko is a kubectl plugin: `kubectl ko`.
package main

import "github.com/kiln-net/kiln/internal/kubectlko"

func main() { kubectlko.Main() }
