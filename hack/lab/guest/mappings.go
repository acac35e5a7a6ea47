// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mappingsFile is the highest number of mappings of a process (sysctl vm.max_map_count, in Documentation/admin-guide/sysctl/vm.rst of the
// kernel's source).
const mappingsFile = "/proc/sys/vm/max_map_count"

// mappings is the number of mappings that the guest needs. A process of the guest is a process of the host, in which each page may be a
// mapping of its own; 2 million pages are 8 GiB, more than the guest's memory. At the default, 65,530, a large process such as the API server
// gets no more pages, and with seccomp=on UML does not notice: it makes a system call of the process out of the error, whose result goes to a
// register of the process.
const mappings = 1 << 21

// allowMappings raises the number in the file if it is lower than mappings. It returns the previous number, or 0 if it changed nothing.
func allowMappings(file string) (before int, err error) {
	n, err := readMappings(file)
	if err != nil || n >= mappings {
		return 0, err
	}
	return n, writeMappings(file, mappings)
}

// restoreMappings writes the number before allowMappings, unless somebody has changed it since.
func restoreMappings(file string, before int) error {
	n, err := readMappings(file)
	if err != nil || before == 0 || n != mappings {
		return err
	}
	return writeMappings(file, before)
}

func readMappings(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("read how many mappings a process may have: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	return n, nil
}

func writeMappings(file string, n int) error {
	if err := os.WriteFile(file, []byte(strconv.Itoa(n)), 0o644); err != nil {
		return fmt.Errorf("set how many mappings a process may have: %w", err)
	}
	return nil
}
