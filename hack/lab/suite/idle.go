// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// AwaitIdle waits until the load of the last minute is at most the limit. read returns the content of /proc/loadavg. If ctx ends earlier, the machine
// has other work.
func AwaitIdle(ctx context.Context, limit string, every time.Duration, read func() ([]byte, error)) error {
	most, err := strconv.ParseFloat(limit, 64)
	if err != nil {
		return fmt.Errorf("the limit of the load, %q, is not a number: %w", limit, err)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		load, err := loadOf(read)
		if err != nil || load <= most {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the load of the last minute is %.2f, and timed specs need an idle machine (at most %s): stop other programs, and try again", load, limit)
		case <-ticker.C:
		}
	}
}

func loadOf(read func() ([]byte, error)) (float64, error) {
	text, err := read()
	if err != nil {
		return 0, fmt.Errorf("read the load: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("read the load from %q: %w", text, err)
	}
	return load, nil
}
