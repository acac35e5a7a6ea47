// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host_test tests the scripts that make runs before it needs Go.
package host_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// host is the input of a script: the output of programs, and files below the root directory. A program with an empty output does not exist.
type host struct {
	script          string
	programs, files map[string]string
	env             []string
	args            []string
}

// goodHost is a machine that can run the lab.
func goodHost() host {
	return host{
		script: "./check-host",
		programs: map[string]string{
			"uname -s": "Linux", "uname -m": "x86_64", "id -u": "0", "go env GOVERSION": "go1.99.1",
			"df -Pk": "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 263000000 1 20000000 1% /",
		},
		files: map[string]string{
			"etc/os-release": "PRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\nNAME=\"Debian GNU/Linux\"\nVERSION_ID=\"13\"\nID=debian\n",
			"proc/meminfo":   "MemTotal:       16393004 kB\nMemFree:         1393004 kB\n",
		},
	}
}

// run runs the script on the host and returns its output and whether it succeeds.
func (h host) run(t *testing.T) (string, bool) {
	t.Helper()
	root, bin := t.TempDir(), t.TempDir()
	for name, content := range h.files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	scripts := map[string]string{}
	for command, output := range h.programs {
		if output == "" {
			continue
		}
		name, args, _ := strings.Cut(command, " ")
		scripts[name] += fmt.Sprintf("case \"$*\" in %q*) printf '%%s\\n' '%s'; exit;; esac\n", args, output)
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"echo no such arguments; exit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "sed", "awk", "dirname"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(program, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(h.script, h.args...)
	cmd.Env = append([]string{"PATH=" + bin, "CHECK_HOST_ROOT=" + root, "KILN_CACHE=" + filepath.Join(root, "cache")}, h.env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), err == nil
}

func TestCheckHostSaysWhatToChange(t *testing.T) {
	debian := func(version string) map[string]string {
		return map[string]string{"etc/os-release": "NAME=\"Debian GNU/Linux\"\n" + version + "\n"}
	}
	for _, c := range []struct {
		name            string
		programs, files map[string]string // replace the same keys of goodHost
		env, args       []string
		want            []string // in the sentence; none if the host is accepted
	}{
		{name: "Debian 13"},
		{name: "Debian 12", files: debian(`VERSION_ID="12"`)},
		{name: "Debian 11", files: debian(`VERSION_ID="11"`), want: []string{"is Debian GNU/Linux 11", "Debian 12 and 13", "KILN_DISTRIBUTION=any"}},
		{name: "Debian testing", files: debian("ID=debian"), want: []string{"is Debian GNU/Linux without a version", "Debian 12 and 13"}},
		{
			name: "another distribution", files: map[string]string{"etc/os-release": "NAME=Fedora\nVERSION_ID=44\n"},
			want: []string{"is Fedora 44", "Debian 12 and 13", "mmdebstrap"},
		},
		{name: "another distribution on request", files: map[string]string{"etc/os-release": "NAME=Fedora\n"}, env: []string{"KILN_DISTRIBUTION=any"}},
		{
			name: "macOS, which has none of Linux's files", programs: map[string]string{"uname -s": "Darwin", "uname -m": "arm64", "id -u": "501", "go env GOVERSION": ""},
			files: map[string]string{"etc/os-release": "", "proc/meminfo": ""}, want: []string{"runs macOS", "needs Linux", "Debian 12 or 13"},
		},
		{name: "another system", programs: map[string]string{"uname -s": "FreeBSD"}, want: []string{"runs FreeBSD", "needs Linux"}},
		{name: "another architecture", programs: map[string]string{"uname -m": "aarch64"}, want: []string{"aarch64", "needs x86_64"}},
		{name: "a user", programs: map[string]string{"id -u": "1000"}, want: []string{"needs root", "sudo"}},
		{name: "a user, where only the machine is checked", programs: map[string]string{"id -u": "1000"}, args: []string{"machine"}},
		{name: "no Go", programs: map[string]string{"go env GOVERSION": ""}, want: []string{"no Go in the PATH", "needs Go 1."}},
		{name: "an old Go", programs: map[string]string{"go env GOVERSION": "go1.19.8"}, want: []string{"is version 1.19.8", "needs Go 1."}},
		{name: "Go's next release candidate", programs: map[string]string{"go env GOVERSION": "go2.0rc1"}},
		{name: "little memory", files: map[string]string{"proc/meminfo": "MemTotal:        4028412 kB\n"}, want: []string{"3933 MiB of memory", "needs 7168 MiB"}},
		{
			name: "little disk", programs: map[string]string{"df -Pk": "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 9 1 2048000 99% /"},
			want: []string{"2000 MiB of free space", "KILN_CACHE"},
		},
		{
			name: "little disk, and a cache that is filled", programs: map[string]string{"df -Pk": "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 9 1 2 99% /"},
			files: map[string]string{"cache/containerd/there": ""},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := goodHost()
			maps.Copy(h.programs, c.programs)
			maps.Copy(h.files, c.files)
			h.env, h.args = c.env, c.args
			out, ok := h.run(t)
			if ok != (len(c.want) == 0) {
				t.Fatalf("accepted: %t; it prints %q", ok, out)
			}
			if ok && out != "" || !ok && strings.Count(out, "\n") != 1 {
				t.Errorf("it prints %q, want one line for a refused host only", out)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("it prints %q, want %q", out, want)
				}
			}
		})
	}
}

func TestCompilersGetMemoryWhereThereIsEnough(t *testing.T) {
	for _, c := range []struct{ name, memory, cpus, want string }{
		{"8 GiB and two CPUs", "8048412", "2", "GOGC=off GOMEMLIMIT=1309MiB\n"},
		{"much memory", "66048412", "4", "GOGC=off GOMEMLIMIT=2000MiB\n"},
		{"little for each of many CPUs", "16048412", "16", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := host{
				script: "./compiler-memory", programs: map[string]string{"nproc": c.cpus}, files: map[string]string{"proc/meminfo": "MemTotal:       " + c.memory + " kB\n"},
			}
			if out, ok := h.run(t); !ok || out != c.want {
				t.Errorf("it prints %q (%t), want %q", out, ok, c.want)
			}
		})
	}
}
