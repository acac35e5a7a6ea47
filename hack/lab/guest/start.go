// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/machine"
)

// Bounds of the guest's memory, in MiB. The host keeps it in /dev/shm.
const (
	mostMemory  = 6 << 10
	leastMemory = 4 << 10
)

const bootTimeout = 2 * time.Minute

// Start starts the guest and waits until it takes commands. It does nothing if the guest runs. Writable are directories of the host that
// commands in the guest may write to.
func (d Dir) Start(ctx context.Context, c cache.Dir, writable ...string) error {
	if running, err := d.Running(); running || err != nil {
		return err
	}
	if err := d.Stop(ctx); err != nil { // what a guest that has ended leaves
		return err
	}
	memory, err := memory()
	if err != nil {
		return err
	}
	if err := d.fill(c, writable); err != nil {
		return err
	}
	if err := addLink(); err != nil {
		return err
	}
	monitor := exec.Command(d.path(programFile), MonitorCommand, string(d))
	monitor.Dir = "/"
	monitor.Env = []string{
		"PATH=" + machine.Path, "HOME=/root", "TMPDIR=/dev/shm", // of UML: its memory is a file there
		kernelVariable + "=" + c.Path(cache.KernelFile), diskVariable + "=" + c.Path(cache.DiskFile), fmt.Sprintf("%s=%dM", memoryVariable, memory),
	}
	monitor.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	before, err := allowMappings(mappingsFile)
	if err != nil {
		return err
	}
	if err := monitor.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the guest: %w", err), restoreMappings(mappingsFile, before))
	}
	p, err := machine.Identify(monitor.Process.Pid)
	if err != nil {
		return errors.Join(d.explain(err), restoreMappings(mappingsFile, before))
	}
	go func() { _ = monitor.Wait() }()
	if err := d.save(stateFile, state{Monitor: p, Mappings: before}); err != nil {
		return err
	}
	return d.awaitBoot(ctx)
}

func (d Dir) awaitBoot(ctx context.Context) error {
	var refused error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, bootTimeout, true, func(ctx context.Context) (bool, error) {
		var client *ssh.Client
		if client, refused = d.dial(ctx); refused == nil {
			return true, client.Close()
		}
		if running, _ := d.Running(); !running {
			return false, refused
		}
		return false, nil
	})
	if wait.Interrupted(err) && refused != nil {
		err = refused
	}
	return d.explain(err)
}

// Running reports whether the guest runs.
func (d Dir) Running() (bool, error) {
	s, there, err := d.load()
	return there && s.Monitor.Alive(), err
}

// Exists reports whether a guest was started and not stopped; it may have ended.
func (d Dir) Exists() (bool, error) {
	_, there, err := d.load()
	return there, err
}

// Stop turns the guest off and removes what it has written to its disk. It does nothing if there is none.
func (d Dir) Stop(ctx context.Context) error {
	s, there, err := d.load()
	if err != nil {
		return err
	}
	if there && s.Monitor.Alive() {
		if err := syscall.Kill(s.Monitor.PID, syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop the guest: %w", err)
		}
		// The monitor is not a child of this process, so its end can only be polled.
		_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) { return !s.Monitor.Alive(), nil })
	}
	err = errors.Join(removeLink(), restoreMappings(mappingsFile, s.Mappings))
	for _, name := range []string{overlayFile, stateFile, specFile, userKey, mountPoint, programFile} {
		if removed := os.Remove(d.path(name)); !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	return err
}

// memory returns the size of the guest's memory in MiB.
func memory() (int, error) {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		return 0, fmt.Errorf("read the free space of /dev/shm, which holds the guest's memory: %w", err)
	}
	free := int(st.Bavail * uint64(st.Bsize) >> 20)
	if free < leastMemory {
		return 0, fmt.Errorf("/dev/shm has %d MiB free, and the guest needs %d MiB of it as its memory", free, leastMemory)
	}
	return min(mostMemory, free*9/10), nil
}

// fill writes the files that the guest needs.
func (d Dir) fill(c cache.Dir, writable []string) error {
	for _, path := range append([]string{d.path(mountPoint)}, writable...) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make a directory of the guest: %w", err)
		}
	}
	if err := machine.KeepProgram(d.path(programFile)); err != nil {
		return err
	}
	_, err := d.withKeys(spec{Dir: d, Address: netip.AddrPortFrom(guestAddress.Addr(), sshPort), Writable: writable, HostCache: string(c)})
	return err
}

// withKeys makes the keys of the guest and of its user, and saves the spec with them.
func (d Dir) withKeys(s spec) (spec, error) {
	host, _, err := newKey()
	if err != nil {
		return s, err
	}
	user, permitted, err := newKey()
	if err != nil {
		return s, err
	}
	if err := machine.WriteFile(d.path(userKey), user, 0o600); err != nil {
		return s, err
	}
	s.HostKey, s.UserKey = string(host), string(permitted)
	return s, d.save(specFile, s)
}

// newKey returns a key pair: the private key as PEM, the public one as in authorized_keys.
func newKey() (private, public []byte, err error) {
	p, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(k, "")
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	parsed, err := ssh.NewPublicKey(p)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(block), ssh.MarshalAuthorizedKey(parsed), nil
}

func addLink() error {
	if err := removeLink(); err != nil {
		return err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: guestEnd}
	pair.Name = Link
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("add %s, the link to the guest: %w", Link, err)
	}
	return errors.Join(setUp(guestEnd, netip.Prefix{}), setUp(Link, hostAddress))
}

func removeLink() error {
	link, err := netlink.LinkByName(Link)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	return err
}

// explain adds the last lines of the console to an error of a guest that has ended.
func (d Dir) explain(err error) error {
	if running, _ := d.Running(); running || err == nil {
		return err
	}
	raw, _ := os.ReadFile(d.Console())
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return fmt.Errorf("%w: the lab's guest has ended; the end of its log %s:\n\t%s", err, d.Console(), strings.Join(lines[max(0, len(lines)-15):], "\n\t"))
}

// The monitor's environment.
const (
	kernelVariable = "KILN_GUEST_KERNEL"
	diskVariable   = "KILN_GUEST_DISK"
	memoryVariable = "KILN_GUEST_MEMORY"
)

// Monitor runs the guest's kernel with its output in the console's log, until it ends, or until SIGTERM. The guest gets one CPU, the host's
// last, and stays there: a kernel whose threads move between CPUs is several times slower.
func Monitor(ctx context.Context, dir string) error {
	d := Dir(dir)
	console, err := os.OpenFile(d.Console(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the guest's log: %w", err)
	}
	defer console.Close()
	kernel := exec.Command(os.Getenv(kernelVariable), "mem="+os.Getenv(memoryVariable), "root=/dev/root", "rootfstype=hostfs", "ro",
		"init="+d.path(programFile), "con=null", "con0=null,fd:1", "ubd0="+d.path(overlayFile)+","+os.Getenv(diskVariable), "seccomp=on", "ncpus=1",
		"vec0:transport=raw,ifname="+guestEnd+",depth=64,gro=1", "panic=1", InitCommand, dir)
	kernel.Stdout, kernel.Stderr = pipe{console}, pipe{console}
	kernel.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kernel.Cancel = nil
	if err := startPinned(kernel); err != nil {
		fmt.Fprintln(console, err)
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- kernel.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	// UML's helper processes may survive it.
	_ = syscall.Kill(-kernel.Process.Pid, syscall.SIGKILL)
	return err
}

// pipe hides the file, so that os/exec gives the kernel a pipe, which UML's console needs.
type pipe struct{ *os.File }

func startPinned(c *exec.Cmd) error {
	runtime.LockOSThread() // children of the thread have its affinity
	defer runtime.UnlockOSThread()
	var all, last unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("read the CPUs of this process: %w", err)
	}
	for cpu := range len(all) * 64 {
		if all.IsSet(cpu) {
			last.Zero()
			last.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &last); err != nil {
		return fmt.Errorf("choose the guest's CPU: %w", err)
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start the guest's kernel: %w", err)
	}
	return nil
}
