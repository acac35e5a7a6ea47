// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package portguard is how `kiln ovs` reports to the databases of its node that nftables limits the access to their ports. The databases have no right
// to read nftables.
package portguard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// file is the name of the report, in OVN's runtime directory. It contains the boot ID, so that a report of the time before a reboot does not count.
const file = "kiln-databases-guard"

// bootID identifies the boot of the kernel (random(4)). Tests replace it.
var bootID = "/proc/sys/kernel/random/boot_id"

// Report reports that the access is limited since this boot. Repeating it changes nothing.
func Report(directory string) error {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return fmt.Errorf("read the boot ID: %w", err)
	}
	path := filepath.Join(directory, file)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(boot) {
		return nil
	}
	if err := os.WriteFile(path+".new", boot, 0o600); err != nil {
		return fmt.Errorf("report the guard of the databases' ports: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("report the guard of the databases' ports: %w", err)
	}
	return nil
}

// Withdraw removes the report, before the access is opened.
func Withdraw(directory string) error {
	if err := os.Remove(filepath.Join(directory, file)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("withdraw the report about the databases' ports: %w", err)
	}
	return nil
}

// Reported reports whether the access is limited since this boot.
func Reported(directory string) bool {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return false
	}
	have, err := os.ReadFile(filepath.Join(directory, file))
	return err == nil && strings.TrimSpace(string(have)) == strings.TrimSpace(string(boot)) && len(boot) > 0
}
