// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package portguard

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestAReportEndsWithTheBoot(t *testing.T) {
	directory, real := t.TempDir(), bootID
	bootID = filepath.Join(t.TempDir(), "boot_id")
	t.Cleanup(func() { bootID = real })
	boot := func(id string) { must.Succeed(t, os.WriteFile(bootID, []byte(id+"\n"), 0o600)) }
	want := func(when string, reported bool) {
		t.Helper()
		if Reported(directory) != reported {
			t.Errorf("%s: reported %t", when, !reported)
		}
	}
	boot("first")
	want("before a report", false)
	must.Succeed(t, Report(directory))
	must.Succeed(t, Report(directory))
	want("after a report", true)
	boot("second")
	want("after a reboot", false)
	must.Succeed(t, Report(directory))
	want("after the report of this boot", true)
	must.Succeed(t, Withdraw(directory))
	must.Succeed(t, Withdraw(directory))
	want("after it was withdrawn", false)
	must.Succeed(t, Fail(directory, "no nftables"))
	must.Succeed(t, Fail(directory, "no nftables"))
	want("after a failure", false)
	if why := Failure(directory); why != "no nftables" {
		t.Errorf("the failure is %q", why)
	}
	must.Succeed(t, Report(directory))
	want("after the failure ended", true)
	if why := Failure(directory); why != "" {
		t.Errorf("after it ended the failure is %q", why)
	}
	must.Succeed(t, os.Remove(bootID))
	want("without a boot ID", false)
}
