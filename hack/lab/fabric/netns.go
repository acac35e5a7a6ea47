// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The directory of named network namespaces, as in ip-netns(8), and the prefix of the lab's namespaces.
const (
	netnsDir    = "/run/netns"
	netnsPrefix = "kiln-lab-"
	nsfsMagic   = 0x6e736673 // statfs(2)
)

// thisThreadNetns is the network namespace of the calling thread. /proc/self is wrong here: it shows the main thread's namespace.
// Go cannot end the main thread, so after onThread has run on it, the main thread stays in the namespace that f left it in.
const thisThreadNetns = "/proc/thread-self/ns/net"

// sysctls are set in every namespace of the lab: all of them forward packets, and packets may arrive by another path than the
// return path.
var sysctls = map[string]string{
	"net/ipv4/ip_forward":                "1",
	"net/ipv4/conf/all/rp_filter":        "0",
	"net/ipv4/conf/default/rp_filter":    "0",
	"net/ipv6/conf/all/disable_ipv6":     "0",
	"net/ipv6/conf/default/disable_ipv6": "0",
	"net/ipv6/conf/all/forwarding":       "1",
	"net/ipv6/conf/default/forwarding":   "1",
}

// NetnsPath is the path of the namespace of a node, of Bridges, Router or OutsideHost.
func NetnsPath(name string) string { return filepath.Join(netnsDir, netnsPrefix+name) }

// Netnses returns the names of the lab's namespaces that exist.
func Netnses() ([]string, error) {
	paths, err := filepath.Glob(NetnsPath("*"))
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	names := make([]string, 0, len(paths))
	for _, p := range paths {
		names = append(names, strings.TrimPrefix(filepath.Base(p), netnsPrefix))
	}
	return names, nil
}

func ensureNetns(name string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(NetnsPath(name), &st); err == nil && st.Type == nsfsMagic {
		return nil
	}
	if err := removeNetns(name); err != nil { // removes the plain file that remains after a reboot where /run is on a disk
		return err
	}
	if err := shareNetnses(); err != nil {
		return err
	}
	return onThread(func() error {
		ns, err := netns.NewNamed(netnsPrefix + name)
		if err != nil {
			return fmt.Errorf("make network namespace %s: %w", name, err)
		}
		defer ns.Close()
		for key, value := range sysctls {
			if err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0); err != nil {
				return fmt.Errorf("set %s in network namespace %s: %w", key, name, err)
			}
		}
		return nil
	})
}

// shareNetnses makes the directory of namespaces a shared mount, as ip-netns(8) and other programs do. When they do it after a namespace exists, it has two
// mounts, and cannot be removed.
func shareNetnses() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	share := func() error { return unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "") }
	err := share()
	if errors.Is(err, unix.EINVAL) { // it is no mount yet
		if err = unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("share the directory of network namespaces: %w", err)
	}
	return nil
}

func removeNetns(name string) error {
	path := NetnsPath(name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// inNetns runs f on a thread in a namespace; "" is the caller's namespace.
func inNetns(name string, f func() error) error {
	return onThread(func() error {
		if name != "" {
			ns, err := netns.GetFromPath(NetnsPath(name))
			if err != nil {
				return fmt.Errorf("open network namespace %s: %w", name, err)
			}
			defer ns.Close()
			if err := netns.Set(ns); err != nil {
				return fmt.Errorf("enter network namespace %s: %w", name, err)
			}
		}
		return f()
	})
}

// onThread runs f on an OS thread that ends afterwards, whatever namespaces f entered.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		result <- f()
	}()
	return <-result
}
