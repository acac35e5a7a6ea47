// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package unixctl calls the control sockets of the daemons of OVN and Open vSwitch, like ovs-appctl(8) and ovn-appctl(8).
package unixctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// callTimeout bounds one call. Daemons answer between two iterations of their main loop, which can take long in ovn-northd.
const callTimeout = 15 * time.Second

// Call runs one command of the daemon that listens on socket and returns the output without its trailing newline.
func Call(ctx context.Context, socket, command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := jsonrpc.Dial(ctx, socket)
	if err != nil {
		return "", fmt.Errorf("call %s: %w", command, err)
	}
	if args == nil {
		args = []string{} // the parameters must be an array
	}
	defer conn.Close()
	var text string
	if err := conn.Call(command, args, &text); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // the end of ctx closed the connection
		}
		return "", fmt.Errorf("%s of %s: %w", command, socket, err)
	}
	return strings.TrimSuffix(text, "\n"), nil
}
