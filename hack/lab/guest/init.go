// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/hack/lab/machine"
)

// Init is the first process of the guest: it mounts the file systems, configures the link to the host, starts the server of commands, and
// then reaps orphaned processes. SIGTERM, or the end of the server, turns the guest off. Init does not return.
func Init(dir string) {
	fmt.Fprintln(os.Stderr, "guest:", boot(Dir(dir)))
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	os.Exit(1) // the kernel panics
}

// boot returns when the guest cannot go on.
func boot(dir Dir) error {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	s, err := dir.spec()
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		s.mount, s.completeCache, func() error { return unix.Sethostname([]byte("kiln-lab")) }, configureLink,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	server, err := syscall.ForkExec("/proc/self/exe", []string{"lab", ServeCommand, string(dir)}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=" + machine.Path, "HOME=/root"}, Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return fmt.Errorf("start the server of commands: %w", err)
	}
	go func() {
		<-terminate
		fmt.Fprintln(os.Stderr, "guest: turned off")
		unix.Sync()
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}()
	return machine.Reap(server)
}

func (d Dir) spec() (s spec, err error) {
	raw, err := os.ReadFile(d.path(specFile))
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		return s, fmt.Errorf("read the guest's configuration: %w", err)
	}
	return s, nil
}

// mount mounts what the host's file system, which is the read-only root, does not have or must not share. The kernel has mounted /dev.
func (s spec) mount() error {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV
	mounts := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"proc", "/proc", "proc", quiet, ""},
		{"sysfs", "/sys", "sysfs", quiet, ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", quiet, "nsdelegate"},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID, "gid=5,mode=620,ptmxmode=666"},
		{"tmpfs", "/dev/shm", "tmpfs", quiet, ""},
		{"tmpfs", "/run", "tmpfs", quiet, "mode=755"},
		{"tmpfs", "/tmp", "tmpfs", quiet, ""},
		{"tmpfs", "/var/log", "tmpfs", quiet, "mode=755"},
		{"/dev/ubda", s.Dir.path(mountPoint), "ext4", 0, ""},
	}
	for _, m := range mounts {
		if m.kind == "devpts" || m.target == "/dev/shm" {
			if err := os.MkdirAll(m.target, 0o755); err != nil {
				return fmt.Errorf("make a mount point: %w", err)
			}
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
		}
	}
	if err := os.Symlink("/proc/self/fd", "/dev/fd"); err != nil { // bash needs it, and on other machines udev makes it
		return fmt.Errorf("link the files of a process: %w", err)
	}
	for _, path := range s.Writable {
		if err := unix.Mount("none", path, "hostfs", 0, path); err != nil {
			return fmt.Errorf("mount the host's %s for writing: %w", path, err)
		}
	}
	return nil
}

// completeCache links what the disk's copy of the cache lacks to the host's cache, which is read-only here.
func (s spec) completeCache() error {
	for _, dir := range []string{"", "bin"} {
		entries, err := os.ReadDir(filepath.Join(s.HostCache, dir))
		if err != nil {
			return fmt.Errorf("read the host's cache: %w", err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") { // the lock, and incomplete builds
				continue
			}
			name := filepath.Join(dir, e.Name())
			err := os.Symlink(filepath.Join(s.HostCache, name), filepath.Join(s.Dir.cache(), name))
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("complete the cache: %w", err)
			}
		}
	}
	return nil
}

// guestLink is the guest's interface to the host, as UML names it.
const guestLink = "vec0"

func configureLink() error {
	for name, address := range map[string]netip.Prefix{"lo": {}, guestLink: guestAddress} {
		if err := setUp(name, address); err != nil {
			return err
		}
	}
	return nil
}

// setUp sets a link up and adds an address, if it is valid.
func setUp(name string, address netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if address.IsValid() {
		parsed, err := netlink.ParseAddr(address.String())
		if err == nil {
			err = netlink.AddrReplace(link, parsed)
		}
		if err != nil {
			return fmt.Errorf("add %s to %s: %w", address, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
