// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// kube-ovn is the CNI plugin that container runtimes execute.
package main

import "github.com/kiln-net/kiln/cni/plugin"

func main() { plugin.Main() }
