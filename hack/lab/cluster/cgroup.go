// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/hack/lab/config"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the mount points of the host's control groups, cgroups(7). With version 2 there is one. With version 1 there
// is one per controller, and there may be a version 2 hierarchy without controllers besides.
func hierarchies() ([]string, error) {
	if isCgroup(cgroupRoot) {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("list control group hierarchies: %w", err)
	}
	var out []string
	for _, e := range entries {
		path := filepath.Join(cgroupRoot, e.Name())
		if e.IsDir() && isCgroup(path) { // cpu may be a link to cpu,cpuacct
			out = append(out, path)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no control groups are mounted in %s", cgroupRoot)
	}
	return out, nil
}

func isCgroup(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && (st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC)
}

// makeCgroup makes a group at the top of every hierarchy, where kubelet expects its root group.
func makeCgroup(name string) error {
	paths, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range paths {
		group := filepath.Join(h, name)
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make control group: %w", err)
		}
		if h == cgroupRoot {
			err = errors.Join(delegate(h), delegate(group))
		} else {
			err = inheritCPUs(h, group)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inheritCPUs copies the settings of the parent to a group of version 1's cpuset: a new group has no CPUs and then accepts no
// process.
func inheritCPUs(parent, group string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another controller, or version 2, where a group without CPUs uses its parent's
		}
		if err != nil {
			return fmt.Errorf("read the parent's %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(group, name), value, 0); err != nil {
			return fmt.Errorf("set the control group's %s: %w", name, err)
		}
	}
	return nil
}

// delegate enables every controller of a version 2 group for the groups below it.
func delegate(group string) error {
	raw, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read the control group's controllers: %w", err)
	}
	for _, controller := range strings.Fields(string(raw)) {
		err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if err != nil {
			return fmt.Errorf("delegate the controller %s: %w", controller, err)
		}
	}
	return nil
}

// removeCgroups removes the control groups of nodes from every hierarchy.
func removeCgroups() error {
	paths, err := hierarchies()
	if err != nil {
		return err
	}
	var problems []error
	for _, h := range paths {
		groups, err := filepath.Glob(filepath.Join(h, config.CgroupPrefix+"*"))
		if err != nil {
			return fmt.Errorf("list control groups: %w", err)
		}
		for _, g := range groups {
			problems = append(problems, removeCgroup(g))
		}
	}
	return errors.Join(problems...)
}

// removeCgroup removes a group and its subgroups, deepest first, because rmdir needs a group without subgroups. The kernel removes
// the files of a group together with it.
func removeCgroup(root string) error {
	var groups []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			groups = append(groups, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list control groups: %w", err)
	}
	for i := len(groups) - 1; i >= 0; i-- {
		if err := os.Remove(groups[i]); err != nil {
			return fmt.Errorf("remove control group: %w", err)
		}
	}
	return nil
}
