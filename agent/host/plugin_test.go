// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestInstall(t *testing.T) {
	source, bin, conf := t.TempDir(), t.TempDir(), t.TempDir()
	write := func(path, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	stat := func(path string) os.FileInfo {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	install := func() {
		t.Helper()
		p := Plugin{Source: source, BinDir: bin, ConfDir: conf, Socket: "/run/agent.sock"}
		if err := p.Install(); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(source, "kube-ovn"), "new", 0o644)
	write(filepath.Join(source, "loopback"), "same", 0o644)
	write(filepath.Join(bin, "kube-ovn"), "old", 0o755)
	write(filepath.Join(bin, "loopback"), "same", 0o755)
	write(filepath.Join(bin, "bridge"), "someone else's", 0o755)
	for _, directory := range []string{bin, conf} {
		write(filepath.Join(directory, ".kiln-4711"), "half of wh", 0o600) // left by an agent that was killed
	}
	running, err := os.Open(filepath.Join(bin, "kube-ovn"))
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	loopback := stat(filepath.Join(bin, "loopback"))

	install()
	if content, _ := os.ReadFile(filepath.Join(bin, "kube-ovn")); string(content) != "new" || stat(filepath.Join(bin, "kube-ovn")).Mode() != 0o755 {
		t.Errorf("kube-ovn is %q, mode %s", content, stat(filepath.Join(bin, "kube-ovn")).Mode())
	}
	before := make([]byte, 3)
	if _, err := running.Read(before); err != nil || string(before) != "old" {
		t.Errorf("the program in execution was written over: %q, %v", before, err)
	}
	if !os.SameFile(loopback, stat(filepath.Join(bin, "loopback"))) {
		t.Error("a plugin that is the same was replaced")
	}
	list := stat(filepath.Join(conf, ConfigName("")))
	install()
	if !os.SameFile(list, stat(filepath.Join(conf, ConfigName("")))) {
		t.Error("a conflist that is the same was replaced")
	}
	if entries, _ := os.ReadDir(bin); len(entries) != 3 {
		t.Errorf("leftovers: %v", entries)
	}
	if entries, _ := os.ReadDir(conf); len(entries) != 1 {
		t.Errorf("leftover files next to the conflist: %v", entries)
	}
	p := Plugin{Source: source, BinDir: filepath.Join(bin, "nowhere"), ConfDir: conf}
	if err := os.Remove(filepath.Join(conf, ConfigName(""))); err != nil {
		t.Fatal(err)
	}
	if err := p.Install(); err == nil {
		t.Error("a missing directory is no error")
	}
	if _, err := os.Stat(filepath.Join(conf, ConfigName(""))); err == nil {
		t.Error("the conflist is there without the plugins")
	}
}

// TestThePriorityChanges installs with one priority after another. A killed agent leaves both files; the next one, and the clean-up, find them.
func TestThePriorityChanges(t *testing.T) {
	source, bin, conf := t.TempDir(), t.TempDir(), t.TempDir()
	for _, name := range []string{"05-cilium.conflist", "aa-kube-ovn.conflist", "001-kube-ovn.conflist", "02-kube-ovn.conflist"} {
		if err := os.WriteFile(filepath.Join(conf, name), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	others := []string{"001-kube-ovn.conflist", "05-cilium.conflist", "aa-kube-ovn.conflist"}
	expect := func(own ...string) {
		t.Helper()
		var got []string
		entries, _ := os.ReadDir(conf)
		for _, entry := range entries {
			got = append(got, entry.Name())
		}
		want := slices.Sorted(slices.Values(slices.Concat(others, own)))
		if !slices.Equal(got, want) {
			t.Errorf("files %v, want %v", got, want)
		}
	}
	install := func(priority string) {
		t.Helper()
		p := Plugin{Source: source, BinDir: bin, ConfDir: conf, Priority: priority, Socket: "/run/agent.sock"}
		if err := p.Install(); err != nil {
			t.Fatal(err)
		}
	}
	install("")
	expect("01-kube-ovn.conflist")
	install("10")
	expect("10-kube-ovn.conflist")
	install("01")
	expect("01-kube-ovn.conflist")
	install("90")
	if err := os.WriteFile(filepath.Join(conf, "10-kube-ovn.conflist"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := Plugin{BinDir: bin, ConfDir: conf}
	for range 2 {
		if err := p.Remove(); err != nil {
			t.Fatal(err)
		}
		expect()
	}
}

func TestPriorities(t *testing.T) {
	for given, want := range map[string]bool{"01": true, "99": true, "": false, "1": false, "001": false, "0a": false, "..": false, "../01": false, "01\n": false} {
		if err := CheckPriority(given); (err == nil) != want {
			t.Errorf("%q: %v", given, err)
		}
	}
}
