// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package daemontest

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/eventually"
)

func shell(t testing.TB, script string) *Daemon {
	t.Helper()
	return Start(t, "a shell", filepath.Join(t.TempDir(), "log"), exec.Command("sh", "-c", script))
}

// TestADeadDaemonEndsTheWait checks that a wait ends with the daemon's log long before its limit.
func TestADeadDaemonEndsTheWait(t *testing.T) {
	d := shell(t, "echo nft is missing >&2; exit 3")
	began := time.Now()
	got := eventually.Wait{Limit: time.Hour, For: "the agent is ready"}.Last(t, func() string { return "connection refused" })
	for _, want := range []string{"the agent is ready: connection refused", "a shell ended although", "exit status 3", "nft is missing"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the wait took %s", took)
	}
	d.ExpectEnd()
}

func TestEndsThatTheTestAskedFor(t *testing.T) {
	for name, end := range map[string]func(*Daemon){
		"kill":   (*Daemon).Kill,
		"signal": func(d *Daemon) { _ = d.Signal(syscall.SIGTERM); <-d.Done() },
		"wait":   func(d *Daemon) { _ = d.cmd.Process.Kill(); _ = d.Wait() },
	} {
		t.Run(name, func(t *testing.T) {
			d := shell(t, "exec sleep 1000")
			end(d)
			if err := d.Ended(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnEndThatItsLogExplains(t *testing.T) {
	d := shell(t, "echo lease lost; exit 1")
	<-d.Done()
	if d.Ended() == nil {
		t.Error("an end without a reason counts as one that the test asked for")
	}
	if d.Tolerate("lease lost"); d.Ended() != nil {
		t.Error(d.Ended())
	}
}

func TestKeysInLogs(t *testing.T) {
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes.Repeat([]byte("0123456789"), 12)})
	encoded, err := json.Marshal(map[string][]byte{"tls.key": key})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	for name, log := range map[string]string{
		"PEM": string(key), "the JSON of a Secret": string(encoded), "numbers": fmt.Sprintf("%d", block.Bytes), "numbers of the file": fmt.Sprintf("%d", key),
		"a list of numbers": strings.ReplaceAll(fmt.Sprintf("%d", key), " ", ","), "its last line": strings.Split(string(key), "\n")[2],
	} {
		if !Shows([]byte(log), key) {
			t.Errorf("a key that is printed as %s is not found", name)
		}
	}
	if Shows([]byte("reconciled Secret with tls.key"), key) {
		t.Error("the name of a key counts as a key")
	}
}

func TestALogBeginsWithItsProcess(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	for _, line := range []string{"first", "second"} {
		d := Start(t, "a shell", log, exec.Command("sh", "-c", "echo "+line))
		if err := d.Wait(); err != nil {
			t.Fatal(err)
		}
		if got := d.Tail(); got != line+"\n" {
			t.Errorf("log %q of the %s process", got, line)
		}
	}
}
