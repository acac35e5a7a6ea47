// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// mount is one call of mount(2), below the machine's root.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

// mountRoot makes the machine's root file system and moves into it. It runs in the machine's own mount namespace, so the host does
// not see the mounts.
func mountRoot(s Spec) error {
	root := s.root()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	overlay := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", s.Base, s.Upper(), s.work())
	if err := unix.Mount("overlay", root, "overlay", 0, overlay); err != nil {
		return fmt.Errorf("mount the root file system (%s; the lab's state must lie on a disk file system): %w", overlay, err)
	}
	for _, m := range append(systemMounts(), bindMounts(s.Binds)...) {
		if err := m.do(root); err != nil {
			return err
		}
	}
	for _, step := range []func(root string) error{resolvConf, clockSpeed} {
		if err := step(root); err != nil {
			return err
		}
	}
	if err := pivot(root); err != nil {
		return err
	}
	// Containers with mount propagation need a shared tree, as on any node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// systemMounts returns the mounts of the kernel's file systems. /sys is a new mount, because sysfs shows the network namespace of
// the process that mounts it. The host's cgroup hierarchies, of either version, are bound below it.
func systemMounts() []mount {
	const quiet = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV
	mounts := []mount{
		{"proc", "/proc", "proc", quiet, ""},
		{"sysfs", "/sys", "sysfs", quiet, ""},
		{"/sys/fs/cgroup", "/sys/fs/cgroup", "", unix.MS_BIND | unix.MS_REC, ""},
		{"/dev", "/dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	}
	if _, err := os.Stat("/lib/modules"); err == nil {
		mounts = append(mounts, mount{"/lib/modules", "/usr/lib/modules", "", unix.MS_BIND | unix.MS_REC, ""})
	}
	return mounts
}

func bindMounts(binds []Bind) []mount {
	var mounts []mount
	for _, b := range binds {
		mounts = append(mounts, mount{b.Source, b.Target, "", unix.MS_BIND | unix.MS_REC, ""})
		if b.ReadOnly {
			mounts = append(mounts, mount{"", b.Target, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""})
		}
	}
	return mounts
}

func (m mount) do(root string) error {
	target := filepath.Join(root, m.target)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.Mount(m.source, target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on the machine's %s: %w", m.source, m.target, err)
	}
	return nil
}

// resolvConf leaves the machine without a resolver: there is no name server outside the cluster.
func resolvConf(root string) error {
	path := filepath.Join(root, "etc/resolv.conf")
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove the resolver's configuration: %w", err)
	}
	return WriteFile(path, nil, 0o644)
}

// clockSpeed adds a clock speed to the machine's /proc/cpuinfo, if the kernel reports none: kubelet does not start without one.
func clockSpeed(root string) error {
	const field = "cpu MHz"
	path := filepath.Join(root, "proc/cpuinfo")
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the clock speed: %w", err)
	}
	if bytes.Contains(raw, []byte(field)) {
		return nil
	}
	file := filepath.Join(root, "run/cpuinfo")
	if err := WriteFile(file, append([]byte(field+"\t\t: 1000.000\n"), raw...), 0o444); err != nil {
		return err
	}
	if err := unix.Mount(file, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount a clock speed: %w", err)
	}
	return nil
}

// pivot makes root the root directory and detaches the old one, pivot_root(2).
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot to the new root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	return unix.Chdir("/")
}

// unixForkExec starts a program with this process's output. os/exec would reap the process itself, but Init does that.
func unixForkExec(program string, args ...string) (int, error) {
	return syscall.ForkExec(program, append([]string{program}, args...), &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=" + Path, "HOME=/root"},
		Files: []uintptr{0, 1, 2},
	})
}
