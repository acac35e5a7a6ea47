// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
)

// busyCommand is the hidden subcommand of the processes of startLoad.
const busyCommand = "busy"

// startLoad starts processes that use a CPU each, and one that writes and syncs a file in the directory of temporary files. They end with the returned function,
// with this process, or with ctx.
func startLoad(ctx context.Context, busy int) (end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	file, err := os.CreateTemp("", "kiln-load-")
	if err != nil {
		return nil, fmt.Errorf("file of the load: %w", err)
	}
	_ = file.Close()
	ctx, cancel := context.WithCancel(ctx)
	var running []*exec.Cmd
	end = func() {
		cancel()
		for _, cmd := range running {
			_ = cmd.Wait()
		}
		_ = os.Remove(file.Name())
	}
	for i := range busy + 1 {
		cmd := exec.CommandContext(ctx, self, busyCommand)
		if i == busy {
			cmd.Args = append(cmd.Args, file.Name())
		}
		if _, err := cmd.StdinPipe(); err != nil { // its end ends the process
			end()
			return nil, fmt.Errorf("pipe of a busy process: %w", err)
		}
		if err := cmd.Start(); err != nil {
			end()
			return nil, fmt.Errorf("start a busy process: %w", err)
		}
		running = append(running, cmd)
	}
	return end, nil
}

// busy is the command of a process that uses a CPU, or that writes and syncs a file, until its standard input ends.
func busy() *cobra.Command {
	return &cobra.Command{
		Use: busyCommand + " [FILE]", Hidden: true, Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin)
				os.Exit(0)
			}()
			if len(args) == 0 {
				for n := 0; ; n++ { // a counter is enough work
				}
			}
			file, err := os.OpenFile(args[0], os.O_WRONLY, 0)
			if err != nil {
				return fmt.Errorf("open the file to write: %w", err)
			}
			defer file.Close()
			for page := make([]byte, 4096); ; {
				if _, err := file.WriteAt(page, 0); err != nil {
					return fmt.Errorf("write: %w", err)
				}
				if err := file.Sync(); err != nil {
					return fmt.Errorf("sync: %w", err)
				}
			}
		},
	}
}
