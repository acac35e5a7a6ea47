// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command coredns is CoreDNS with a fifth of its plugins: the lab's Corefile and Kubernetes' tests of the network use them, and log and reload help to look
// around. The others import the libraries of three clouds, which take longer to compile than the rest of CoreDNS and the kubelet.
package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/metrics" // prometheus in a Corefile
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"

	"github.com/coredns/coredns/coremain"
)

func main() { coremain.Run() }
