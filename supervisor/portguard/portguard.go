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

// file is the name of the report, in OVN's runtime directory. It contains the boot ID, so that a report of the time before a reboot does not count, or
// the reason of a failure.
const file = "kiln-databases-guard"

// bootID identifies the boot of the kernel (random(4)). Tests replace it.
var bootID = "/proc/sys/kernel/random/boot_id"

// Report reports that the access is limited since this boot. Repeating it changes nothing.
func Report(directory string) error {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return fmt.Errorf("read the boot ID: %w", err)
	}
	if have, err := os.ReadFile(filepath.Join(directory, file)); err == nil && string(have) == string(boot) {
		return nil
	}
	return write(directory, string(boot))
}

func write(directory, report string) error {
	path := filepath.Join(directory, file)
	err := os.WriteFile(path+".new", []byte(report), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("report the guard of the databases' ports: %w", err)
	}
	return nil
}

// failed begins a report of a failure.
const failed = "failed: "

// Fail replaces the report by the reason why the access cannot be limited. Repeating it changes nothing.
func Fail(directory, why string) error {
	if Failure(directory) == why {
		return nil
	}
	return write(directory, failed+why)
}

// Failure returns the reason why the access cannot be limited, "" if there is none.
func Failure(directory string) string {
	have, err := os.ReadFile(filepath.Join(directory, file))
	if err != nil {
		return ""
	}
	why, is := strings.CutPrefix(string(have), failed)
	if !is {
		return ""
	}
	return why
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
