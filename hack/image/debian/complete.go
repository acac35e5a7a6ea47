// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Accounts and lookups of the image: Debian's own entries of the accounts that files and programs of the image name (base-passwd, libc-bin).
const (
	passwd = `root:x:0:0:root:/root:/usr/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`
	group = `root:x:0:
tty:x:5:
nogroup:x:65534:
`
	nsswitch = `passwd: files
group: files
hosts: files dns
networks: files
protocols: files
services: files
`
)

// bundle is the file of all trusted CA certificates, which libraries and Go read.
const (
	certificates = "usr/share/ca-certificates/mozilla/"
	bundle       = "etc/ssl/certs/ca-certificates.crt"
)

// complete adds the results of package scripts that the image needs, and the parents of all files.
func (r Root) complete() error {
	r["etc/passwd"], r["etc/group"], r["etc/nsswitch.conf"] = text(passwd), text(group), text(nsswitch)
	for _, dir := range []string{"dev", "proc", "run", "sys", "etc/openvswitch", "etc/ovn", "var/lib/openvswitch", "var/lib/ovn", "var/log/openvswitch", "var/log/ovn"} {
		r[dir] = directory(0o755)
	}
	r["root"], r["tmp"], r["var/tmp"] = directory(0o700), directory(0o777|fs.ModeSticky), directory(0o777|fs.ModeSticky)
	r["var/run"] = link("/run")                                                 // where Open vSwitch and OVN have their sockets
	r["usr/sbin/ovs-vswitchd"] = link("../lib/openvswitch-switch/ovs-vswitchd") // Debian's alternative without DPDK
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if strings.HasPrefix(name, certificates) && r[name].kind == tar.TypeReg {
			all = append(append(all, bytes.TrimSpace(r[name].content)...), '\n')
			delete(r, name)
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("no package has CA certificates in %s", certificates)
	}
	r[bundle] = file{kind: tar.TypeReg, mode: 0o644, content: all}
	for _, applet := range strings.Fields(applets) {
		if _, there := r["usr/bin/"+applet]; !there && r["usr/sbin/"+applet].kind == 0 {
			r["usr/bin/"+applet] = link("busybox")
		}
	}
	for _, name := range slices.Collect(maps.Keys(r)) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, there := r[dir]; !there {
				r[dir] = directory(0o755)
			}
		}
	}
	return nil
}

// applets are the programs that busybox stands for in the image.
const applets = `awk basename cat chmod chown clear cmp cp cut date dd df diff dirname dmesg du echo egrep env expr false fgrep find free grep gunzip gzip head
hexdump hostname id kill killall less ln ls md5sum mkdir mktemp more mount mv nc nproc nslookup od pgrep pidof pkill printf ps pwd readlink realpath rm rmdir
sed seq sh sha256sum sleep sort stat stty sync tail tar tee test timeout top touch tr true tty umount uname uniq uptime vi watch wc wget which whoami xargs yes zcat`

// check returns an error if a program or library needs a library that the root file system lacks, or if a symbolic link leads nowhere.
func (r Root) check() error {
	libraries := map[string]bool{}
	for name, f := range r {
		if strings.Contains(path.Base(name), ".so") && f.kind != tar.TypeDir {
			libraries[path.Base(name)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		f := r[name]
		if f.kind == tar.TypeSymlink && !r.leads(name) {
			return fmt.Errorf("the symbolic link /%s leads to %s, which no package has", name, f.link)
		}
		if !bytes.HasPrefix(f.content, []byte(elf.ELFMAG)) {
			continue
		}
		program, err := elf.NewFile(bytes.NewReader(f.content))
		if err != nil {
			return fmt.Errorf("read the program /%s: %w", name, err)
		}
		needed, err := program.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("read the libraries of /%s: %w", name, err)
		}
		for _, library := range needed {
			if !libraries[library] {
				return fmt.Errorf("/%s needs %s: add its package to the wanted ones", name, library)
			}
		}
	}
	return nil
}

// leads reports whether a symbolic link leads to a file.
func (r Root) leads(name string) bool {
	for range 10 {
		name = r.resolveParent(name)
		f, there := r[name]
		if !there || f.kind != tar.TypeSymlink {
			return there
		}
		name = r.target(name, f.link)
	}
	return false
}

func (r Root) target(name, link string) string {
	if path.IsAbs(link) {
		return strings.TrimPrefix(path.Clean(link), "/")
	}
	return strings.TrimPrefix(path.Join("/", path.Dir(name), link), "/")
}

// resolveParent replaces a directory that is a symbolic link, such as /bin, by its target.
func (r Root) resolveParent(name string) string {
	first, rest, nested := strings.Cut(name, "/")
	if f := r[first]; nested && f.kind == tar.TypeSymlink {
		return path.Join(r.target(first, f.link), rest)
	}
	return name
}
