// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package unixctl calls the control sockets of the daemons of OVN and Open vSwitch: what ovs-appctl(8) and ovn-appctl(8) do.
package unixctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kiln-net/kiln/internal/supervisor/jsonrpc"
)

// callTimeout bounds one call. Daemons answer between two turns of their main loop, which may be long in ovn-northd.
const callTimeout = 15 * time.Second

// Call runs one command of the daemon behind socket and returns its text without the newline at the end.
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
			err = context.Cause(ctx) // which closed the connection
		}
		return "", fmt.Errorf("%s of %s: %w", command, socket, err)
	}
	return strings.TrimSuffix(text, "\n"), nil
}
