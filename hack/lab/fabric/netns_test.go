// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheHostsNamespaceIsFoundWhenTheMainThreadWasLeftInAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace takes root") // make test runs as root
	}
	want, err := os.Readlink(thisThreadNetns)
	if err != nil {
		t.Fatal(err)
	}
	mainThreads := func() string {
		ns, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	if mainThreads() == want { // an earlier run in this process may have moved it already: it never returns
		giveUpTheMainThread(t)
	}
	if left := mainThreads(); left == want {
		t.Fatalf("the main thread is in %s, the namespace of this test", left)
	}
	h, err := netnsHandle("")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var got, host unix.Stat_t
	if err := unix.Fstat(int(h), &got); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(thisThreadNetns, &host); err != nil {
		t.Fatal(err)
	}
	if got.Ino != host.Ino {
		t.Errorf("the host's namespace is taken for net:[%d], it is net:[%d]", got.Ino, host.Ino)
	}
}

// giveUpTheMainThread runs a function of onThread on the main thread, which then stays in a namespace of its own. Goroutines that
// got another thread hold it, so that the next goroutine gets a different one.
func giveUpTheMainThread(t *testing.T) {
	t.Helper()
	const threads = 1000
	release := make(chan struct{})
	defer close(release)
	for range threads {
		main := make(chan bool)
		go func() {
			if err := onThread(func() error {
				if unix.Gettid() != unix.Getpid() {
					main <- false
					<-release
					return nil
				}
				err := unix.Unshare(unix.CLONE_NEWNET)
				main <- true
				return err
			}); err != nil {
				t.Error(err)
			}
		}()
		if <-main {
			return
		}
	}
	t.Fatalf("none of %d goroutines ran on the main thread", threads)
}
