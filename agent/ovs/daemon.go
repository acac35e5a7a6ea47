// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// CheckSwitch returns an error if the ovs-vswitchd whose control socket is in directory does not answer. Its rows in the database stay
// unchanged when it stops.
func CheckSwitch(ctx context.Context, directory string) error {
	return callSwitch(ctx, directory, "version")
}

// callSwitch runs a command of the ovs-vswitchd whose control socket is in directory (ovs-vswitchd(8)).
func callSwitch(ctx context.Context, directory, command string, args ...string) error {
	const program = "ovs-vswitchd"
	content, err := os.ReadFile(filepath.Join(directory, program+".pid"))
	if err != nil {
		return fmt.Errorf("find %s: %w", program, err)
	}
	pid, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 32)
	if err != nil {
		return fmt.Errorf("find %s: %w", program, err)
	}
	if _, err := unixctl.Call(ctx, filepath.Join(directory, fmt.Sprintf("%s.%d.ctl", program, pid)), command, args...); err != nil {
		return fmt.Errorf("%s does not answer: %w", program, err)
	}
	return nil
}
