// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/hack/lab/machine"
)

// served returns the directory of a guest whose server of commands runs in this process.
func served(t *testing.T) Dir {
	t.Helper()
	d := Dir(t.TempDir())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	s, err := d.withKeys(spec{Dir: d, Address: netip.MustParseAddrPort(listener.Addr().String())})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.serve(listener) }()
	return d
}

func TestCommandsRunAsOnTheHost(t *testing.T) {
	d := served(t)
	t.Setenv("KILN_TEST_TEXT", "it's\n$HOME \\ `id`")
	t.Chdir("/usr")
	var stdout, stderr bytes.Buffer
	script := `printf %s "$KILN_TEST_TEXT"; pwd; echo "$KILN_CACHE" "$1"; cat; echo complaint >&2; exit 7`
	err := d.Run(t.Context(), machine.Command{
		Args: []string{"sh", "-c", script, "sh", "a 'word"}, Stdin: strings.NewReader("input"), Stdout: &stdout, Stderr: &stderr,
	})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Status != 7 {
		t.Errorf("error %v, want exit status 7", err)
	}
	if want := "it's\n$HOME \\ `id`/usr\n" + d.cache() + " a 'word\ninput"; stdout.String() != want {
		t.Errorf("output %q, want %q", stdout.String(), want)
	}
	if stderr.String() != "complaint\n" {
		t.Errorf("errors %q", stderr.String())
	}
}

// A command can end while its input is open, and leave a daemon with its output.
func TestACommandEndsBeforeItsInputAndItsDaemons(t *testing.T) {
	d := served(t)
	never, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	if err := d.Run(t.Context(), machine.Command{Args: []string{"sh", "-c", "sleep 60 & exit 0"}, Stdin: never, Stdout: &bytes.Buffer{}}); err != nil {
		t.Error(err)
	}
}

func TestTheEndOfTheContextEndsTheCommand(t *testing.T) {
	d := served(t)
	ctx, cancel := context.WithCancel(t.Context())
	started, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- d.Run(ctx, machine.Command{Args: []string{"sh", "-c", "echo $$; exec sleep 600"}, Stdout: write})
	}()
	line := make([]byte, 32)
	n, err := started.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	process := "/proc/" + strings.TrimSpace(string(line[:n]))
	for range 100 {
		if _, err := os.Stat(process); err != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("%s runs", process)
}

func TestStrangersAreRefused(t *testing.T) {
	d := served(t)
	stranger, _, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := machine.WriteFile(d.path(userKey), stranger, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Run(t.Context(), machine.Command{Args: []string{"true"}}); err == nil {
		t.Error("a command ran with another key")
	}
}
